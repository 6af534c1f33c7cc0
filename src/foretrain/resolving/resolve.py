"""The one resolver: a request becomes a scenario. Every default that is taken is noted with the word that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from foretrain.asked import Asked, ModelLike
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.headroom import headroom_share
from foretrain.errors import InputError, ModelError, PlanError
from foretrain.keywords import JobWords
from foretrain.limits import BATCH, MICRO_BATCH
from foretrain.loading import is_file, load_yaml
from foretrain.model.graph import Model
from foretrain.model.load import load_model
from foretrain.model.optimizer import Optimizer, optimizer
from foretrain.model.precision import Precision, precision
from foretrain.plan.facts import facts_of, family_of
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import DEFAULT, SCHEDULES, meant
from foretrain.plan.short_form import Words, filled, said, words_in
from foretrain.plan.strategy import EXCHANGES
from foretrain.plan.supported import always, rules_of, warned
from foretrain.resolving.auto import chosen_plan, own_plan
from foretrain.resolving.defaults import defaults, optimizer_for, precision_for
from foretrain.resolving.draft import Draft
from foretrain.resolving.idle_options import note_idle_options
from foretrain.resolving.idle_words import note_idle_words
from foretrain.resolving.lora import tuned
from foretrain.resolving.micro_batch import (
    MicroBatch,
    default_batch,
    largest_that_fits,
    samples_of,
    shared_batch,
)
from foretrain.resolving.request import AUTO, Notes, Request
from foretrain.resolving.stack import Stack, stack_of
from foretrain.resolving.work import as_trained
from foretrain.runtime import Runtime, presets
from foretrain.scenario import Scenario
from foretrain.units import show_count

if TYPE_CHECKING:
    from foretrain.analysis.job import JobTerms

_OPTIMIZERS = {"adagrad": "adagrad", "adam": "adamw", "lamb": "lamb", "lion": "sgd",
               "lars": "sgd", "sgd": "sgd"}  # fmt: skip
"""Kinds of optimizers by a part of their names, for runs whose own is not known."""
_FILES = (".yaml", ".yml", ".json")


def resolve(request: Request) -> Scenario:
    """The scenario of a request; every wrong word is an `InputError`."""
    first = _Resolver(request)
    scenario = first.scenario()
    if first.is_stuck and first.may_split:
        stack, name = str(defaults()["splitting_stack"]), scenario.runtime.name
        why = f"no {name} plan fits this model, batch and cluster"
        second = _Resolver(replace(request, runtime=stack), f"runtime {stack}: {why} (--runtime)")
        other = second.scenario()
        if not second.is_stuck:
            return other
    if first.is_stuck and not request.strict and request.batch is not None:
        return _shared_out(request, scenario)
    return scenario


def _shared_out(request: Request, scenario: Scenario) -> Scenario:
    """A run whose plan is not known, with the nearest batch that the replicas of its stack's own plan can share."""
    whole, warned = shared_batch(
        scenario.workload.global_batch, request.micro_batch, scenario.plan.replicas
    )
    if not warned:
        return scenario
    return resolve(replace(request, batch=whole, warnings=(*request.warnings, *warned)))


def draft(request: Request) -> Draft:
    """What a request says but for its plan and batch."""
    return _Resolver(request).draft()[0]


def ask(model: ModelLike, **words: Unpack[Asked]) -> Scenario:
    """The scenario of a question in keywords, as `predict` takes them."""
    return resolve(request_of(model, words))


def request_of(model: ModelLike, words: Mapping[str, Any]) -> Request:
    """The request of a question in keywords; what is None was not said."""
    said = {name: value for name, value in words.items() if value is not None}
    job = {name: said.pop(name) for name in JobWords.__annotations__ if name in said}
    return Request(model, **{"on": None, **said}, job=job)  # type: ignore[arg-type]


class _Resolver:
    def __init__(self, request: Request, *assumed: str) -> None:
        self.request = request = _read(request)
        self.notes = Notes(request)
        self.notes.assumptions += assumed
        self.is_stuck = False  # no plan was given, and none of the stack's fits
        self.may_split = (
            False  # another stack may do: none was asked for, and the model can be split
        )

    def draft(self) -> tuple[Draft, Mapping[str, object] | None, Stack]:
        """All but plan and batch, the words of the plan, and the software."""
        cluster = self._cluster()
        model = self._model()
        words = self._said()
        number_format = self._precision(cluster)
        said = words or {}
        if self.request.is_searched:
            # one device leaves nothing to split: there the stack is as for any other question
            said = {"searched": cluster.device_count > 1}
        elif words is None and not self._is_open:
            said = self._said_by_tree(cluster)
        stack = stack_of(self.request, model, cluster, said, number_format.name, self.notes)
        given = self.request.model
        model = as_trained(
            model,
            stack.runtime,
            stack.options,
            self.notes,
            keeps_dropout=isinstance(given, Mapping) and given.get("dropout") is not None,
        )
        model, number_format = tuned(model, number_format, stack.options, self.notes)
        self._expect_experts(words, model)
        is_named = self.request.runtime is not None or bool(self.request.target)
        self.may_split = not is_named and family_of(model) == "transformer"
        draft = Draft(
            model,
            cluster,
            stack.runtime,
            number_format,
            self._optimizer(model),
            self.request.data,
            self.request.measured,
            headroom_share(self.request.headroom, cluster.devices, stack.runtime.memory.headroom),
        )
        return draft, words, stack

    def scenario(self) -> Scenario:
        draft, words, stack = self.draft()
        planned = self._planned(draft, words)
        if stack.options:
            plan = None if self.request.is_searched else planned.plan
            note_idle_options(stack.options, draft.model, plan, stack.runtime, self.notes)
        if not self.request.is_searched:
            for warning in warned(planned.runtime, planned.plan, facts_of(planned.workload)):
                self.notes.warn(warning)
        self._note_storage(planned.cluster)
        return replace(
            planned,
            job=self._job(planned),
            id=self.request.id,
            stragglers=self._stragglers(),
            assumptions=tuple(self.notes.assumptions),
            warnings=tuple(self.notes.warnings),
            is_runtime_known=stack.is_known,
            unknown_switches=self.notes.unknown,
        )

    def _job(self, planned: Scenario) -> JobTerms | None:
        if not self.request.job:
            return None
        from foretrain.analysis.job import job_terms

        return job_terms(self.request.job, planned.workload)

    # --- names into values ----------------------------------------------------------------------------

    def _cluster(self) -> Cluster:
        cluster, assumed, warned = Cluster.read(self.request.on)
        self.notes.assumptions += assumed
        self.notes.warnings += warned
        self.notes.unknown += len(warned)
        if self.request.stragglers is None:
            return cluster
        from foretrain.cluster.stragglers import with_stragglers

        return with_stragglers(cluster, self.request.stragglers)

    def _note_storage(self, cluster: Cluster) -> None:
        data = self.request.data
        nodes = [run.node for run in cluster.runs if run.node.host.storage_bandwidth is None]
        if data is not None and data.bytes_per_sample and nodes:
            self.notes.warn(
                f"data: bytes_per_sample has no effect: the storage bandwidth of {nodes[0].name} is "
                "unknown. Set storage_bandwidth of its host in a cluster file."
            )

    def _stragglers(self) -> str:
        if self.request.stragglers is None:
            return ""
        from foretrain.cluster.stragglers import straggler_text

        return straggler_text(self.request.stragglers)

    def _model(self) -> Model:
        asked = self.request.seq
        model = load_model(self.request.model, asked, self.notes.assumptions)
        if asked is not None and model.seq_len is None:
            raise ModelError(
                f"{model.name} has no sequence length: its samples are not sequences. Remove --seq."
            )
        if (
            asked is None
            and model.seq_len is not None
            and not isinstance(self.request.model, Model)
        ):
            given = self.request.model
            is_named = isinstance(given, str) and not Path(given).exists()
            why = "model default" if is_named else "not specified"
            self.notes.assume(f"sequence length {model.seq_len:,}", why, "--seq")
        return model

    def _said(self) -> Mapping[str, object] | None:
        """The words of the plan; None where it is a tree, or nothing was said."""
        plan = self.request.plan
        if isinstance(plan, str):
            return None if self._is_open else said(plan)
        if isinstance(plan, Mapping) and "mesh" not in plan:
            return words_in(plan)
        return None

    def _tree_has_micro(self) -> bool:
        """Whether a strategy tree says its micro-batch: a `Plan` always does, a document if it is in the schedule."""
        plan = self.request.plan
        if not isinstance(plan, Mapping):
            return True
        from foretrain.plan.document import has_micro_batch

        return has_micro_batch(plan)

    def _said_by_tree(self, cluster: Cluster) -> Mapping[str, object]:
        """What a strategy tree splits, in the words of a plan."""
        if self.request.runtime is not None:
            return {"tree": True}
        stack = presets()[str(defaults()["splitting_stack"])]
        plan = Plan.of(self.request.plan or "", devices=cluster.device_count, runtime=stack)
        stages = {"weight": 3, "gradient": 2, "optimizer": 1}
        zero = max((stages[role] for role, _ in plan.root.state), default=0)
        return {**dict(plan.mesh.axes), "zero": zero, "ep": "dp.in" in dict(plan.mesh.axes)}

    def _precision(self, cluster: Cluster) -> Precision:
        asked = self.request.precision
        if asked is None:
            asked = precision_for(cluster.devices)
            self.notes.assume(
                f"precision {asked}", "supported by the devices' matrix units", "--precision"
            )
        if "float8" not in self.request.runtime_options:
            return precision(asked)
        from foretrain.resolving.float8 import with_float8

        return with_float8(precision(asked), self.request.runtime_options, self.notes)

    def _optimizer(self, model: Model) -> Optimizer:
        asked = self.request.optimizer
        if asked is None:
            asked = optimizer_for(model)
            self.notes.assume(f"optimizer {asked}", "common for this kind of model", "--optimizer")
        try:
            return optimizer(asked)
        except InputError:
            fallback = next(
                (o for part, o in _OPTIMIZERS.items() if part in str(asked).lower()), None
            )
            if self.notes.strict or fallback is None:
                raise
            self.notes.warn(f"optimizer {asked!r} is unknown; falling back to {fallback}.")
            self.notes.unknown += 1
            return optimizer(fallback)

    def _expect_experts(self, words: Mapping[str, object] | None, model: Model) -> None:
        degree = (words or {}).get("ep", 1)
        if isinstance(degree, int) and degree > 1 and not model.has_experts:
            raise PlanError(f"ep{degree}: {model.name} has no experts to distribute. Remove ep.")

    # --- plan, micro-batch and batch --------------------------------------------------------------------

    def _planned(self, draft: Draft, words: Mapping[str, object] | None) -> Scenario:
        asked, micro = self.request.batch, self._micro(words)
        batch = None if asked is None else samples_of(asked, draft.model, self.notes)
        if batch is not None and not BATCH.allows(batch):  # before anything is derived from it
            raise InputError(f"global batch: {BATCH.fault(batch)}")
        if self.request.is_searched:
            return draft.scenario(
                own_plan(draft), batch or 1, 1
            )  # only its other parts are looked at
        if self._is_open:
            return self._chosen(draft, batch, micro)
        plan = self._plan(draft, words)
        if micro is None and words is None and self._tree_has_micro():
            micro = plan.schedule.micro_batch
            if isinstance(self.request.plan, Plan):
                self.notes.assume(f"micro-batch {micro:,}", "as in the plan given", "--micro-batch")
        if batch is not None and not self.notes.strict:
            batch, warned = shared_batch(batch, micro, plan.replicas)
            self.notes.warnings += warned
        if micro is None:
            largest = largest_that_fits(draft, plan, batch)
            self._assume_micro(largest)
            micro = largest.samples
        if batch is None:
            batch = default_batch(plan, micro)
            self._assume_batch(plan, batch, micro)
        return draft.scenario(plan, batch, micro)

    @property
    def _is_open(self) -> bool:
        plan = self.request.plan
        return plan is None or (isinstance(plan, str) and plan.strip().lower() in ("", AUTO))

    def _chosen(self, draft: Draft, batch: int | None, micro: int | None) -> Scenario:
        """What the stack does by itself if that fits, else the winner of a quick search."""
        is_searched = str(self.request.plan or "").strip().lower() == AUTO
        chosen = chosen_plan(draft, batch, micro, is_searched=is_searched)
        self.is_stuck = not chosen.micro.fits
        self.notes.assume(f"plan {chosen.plan.text}", chosen.why, "--plan")
        if micro is None:
            self._assume_micro(chosen.micro)
            micro = chosen.micro.samples
        whole = batch or chosen.batch or default_batch(chosen.plan, micro)
        if batch is None:
            length = draft.model.seq_len
            usual = (
                f"{show_count(whole * length)} tokens per step" if chosen.batch and length else ""
            )
            self._assume_batch(chosen.plan, whole, micro, usual)
        return draft.scenario(chosen.plan, whole, micro)

    def _plan(self, draft: Draft, words: Mapping[str, object] | None) -> Plan:
        if words is None:
            return Plan.of(
                self.request.plan or "",
                devices=draft.cluster.device_count,
                runtime=draft.runtime,
                defaults=draft.defaults,
            )
        whole = filled(words, draft.defaults, draft.cluster.device_count)
        self._assume_words(words, whole, draft.runtime)
        note_idle_words(words, whole, draft.model, self.notes)
        return draft.plan(replace(whole, micro=None))

    def _assume_words(self, words: Mapping[str, object], whole: Words, stack: Runtime) -> None:
        is_split, replicas = whole.tp > 1, (whole.dp or 1) * whole.cp
        switched = "on" if whole.sp else "off"
        is_piped = whole.pp > 1 and whole.vpp == 1  # chunks decide it otherwise
        # words that mean themselves beside a pp of several stages and no vpp
        able = always(rules_of(stack), "schedule")
        names = [
            name
            for name in SCHEDULES
            if meant(name, 2, 1)[0].name == name and all(rule.allows(name) for rule, _ in able)
        ]
        schedules = (
            f"{', '.join(names[:-1])} or {names[-1]} in the plan" if names[1:] else "--runtime"
        )
        lines = (
            ("zero", f"ZeRO {whole.zero}", replicas > 1, "zero0 … zero3 in the plan"),
            ("sp", f"sequence parallelism {switched}", is_split, "sp or no-sp in the plan"),
            ("schedule", f"schedule {whole.schedule or DEFAULT}", is_piped, schedules),
            (
                "exchange",
                f"keys and values by {whole.exchange}",
                whole.cp > 1,
                f"{' or '.join(f'cp={how}' for how in EXCHANGES)} in the plan",
            ),
            (
                "recompute",
                f"recompute {whole.recompute}",
                True,
                "recompute=none|selective|full in the plan",
            ),
        )
        for word, what, matters, change in lines:
            if matters and word not in words:
                self.notes.assume(what, f"{stack.name} default", change)

    def _micro(self, words: Mapping[str, object] | None) -> int | None:
        """As asked for, by an option or in the plan."""
        asked, in_plan = self.request.micro_batch, (words or {}).get("micro")
        if asked is not None and in_plan is not None and asked != in_plan:
            raise InputError(
                f"micro-batch {asked} conflicts with micro={in_plan} in the plan. Specify "
                "only one of them."
            )
        size = asked if asked is not None else in_plan
        if size is not None and not MICRO_BATCH.allows(size):
            raise InputError(f"micro-batch: {MICRO_BATCH.fault(size)}")
        return size  # type: ignore[return-value]  # a whole number, as the limit has it

    def _assume_micro(self, micro: MicroBatch) -> None:
        self.notes.assume(f"micro-batch {micro.samples:,}", micro.why, "--micro-batch")

    def _assume_batch(self, plan: Plan, batch: int, micro: int, usual: str = "") -> None:
        passes = batch // (micro * plan.replicas)
        passes_text = "one micro-batch" if passes == 1 else f"{passes} micro-batches"
        size = f"{usual}, {passes_text}" if usual else passes_text
        self.notes.assume(f"global batch {batch:,}", f"{size} per replica", "--batch")


def _read(request: Request) -> Request:
    """The request with the content of its plan, where a file was named."""
    plan = request.plan
    if not isinstance(plan, str) or not (plan.lower().endswith(_FILES) or is_file(plan)):
        return request
    content = load_yaml(Path(plan), "a plan")
    if not isinstance(content, Mapping):
        raise PlanError(
            f"{plan} is not a plan: expected a mapping of plan words (tp: 8) or of mesh and tree."
        )
    return replace(request, plan=content)
