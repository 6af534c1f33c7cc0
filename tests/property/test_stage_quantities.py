"""One stage program for both speeds: what the search's columns say a stage keeps, runs and exchanges is what the compiler
lays out, to the last digits, for every stack, op family, precision and kind of machine.

`FORETRAIN_EXAMPLES=5000` draws as many cases.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from foretrain.cluster.cluster import Cluster
from foretrain.compile.compile import stage_programs
from foretrain.compile.execution import BACKWARD, BACKWARD_WEIGHT, FORWARD
from foretrain.errors import InputError
from foretrain.model.ops import FAMILIES as KINDS_OF_OPS
from foretrain.model.optimizer import optimizers
from foretrain.model.precision import precisions
from foretrain.planning.choices import lone
from foretrain.planning.estimator import Estimator
from foretrain.planning.footprint import static, workspace
from foretrain.planning.hosts import issue_seconds
from foretrain.planning.layers import chain_seconds
from foretrain.planning.plan_batch import PlanBatch, plan_batch
from foretrain.planning.replicas import Replicas
from foretrain.planning.sends import sends
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.runtime import presets
from tests.gate.questions import EXPERTS, FAMILIES, FOUR_EXPERTS, REPLICAS, SMALL, SPLIT
from tests.support.mamba import mamba
from tests.support.stages import Compiled, is_boundary

CASES = int(os.environ.get("FORETRAIN_EXAMPLES", "200"))
MACHINES = {
    "switch": "1 x dgx-h100", "two nodes": "2 x aws:p3.8xlarge", "blackwell": "1 x dgx-b200", "amd": "1 x hgx-mi300x",
    "no links": "2 x aws:g5.12xlarge", "cube mesh": "1 x dgx-1-v100-32gb", "ampere": "2 x gcp:a2-highgpu-4g",
    "domain of trays": "2 x gb200-nvl72-tray", "hosts": "8 x cpu-host", "many cards": "1 x aws:g6e.48xlarge",
    "mixed": {"name": "mixed", "nodes": [{"node": "gcp:a2-highgpu-4g"}, {"node": "aws:p3.8xlarge"}], "network": {"topology": "star"}},
}  # fmt: skip
MODELS = FAMILIES | {
    "deep": {**FAMILIES["dense"], "num_hidden_layers": 8, "tie_word_embeddings": True},
    "tied": {"zoo": "gpt2", **SMALL, "tie_word_embeddings": True},
    "alibi": {"zoo": "mpt-125m", **SMALL},
    "several tokens": {"zoo": "deepseek-v3", **SMALL, **FOUR_EXPERTS},
    "boxes": "yolov3",
    "branches": "inception-v3",
    "speech": "deepspeech2",
    "filtering": "neumf",
    "state space": mamba(),
}  # fmt: skip
PLANS = {
    "tied": (*SPLIT, "tp2 pp2 dp2 sp zero1", "pp4 dp2 zb-h1"),
    "alibi": (*SPLIT, "tp2 pp2 dp2 recompute=full*0.5", "dp8 zero3 recompute=selective"),
    "several tokens": (*EXPERTS, "pp2 ep4 dp4 zero1 recompute=full"),
    "deep": ("pp2 vpp2 dp4 recompute=full*0.3", "pp2 dp4 recompute=selective", "pp4 dp2 dualpipev zero1", "pp2 dp4 zb-v", "pp4 dp2 zb-v zero1", "tp2 pp2 dp2 zb-v zero2"),
    "dense": (*SPLIT, "pp2 dp4 zb-v", "tp2 dp4 sp zero2", "tp2 pp2 dp2 sp zero1 offload=optimizer", "pp2 vpp2 dp4 offload=activations", "dp8 zero3 shard=4"),
    "experts": (*SPLIT, *EXPERTS, "tp2 ep4 dp4 sp zero3"),
    "latent": (*EXPERTS, "pp2 dp4 zb-v zero2", "tp2 pp2 dp2 sp zero1"),
    "bert": (*SPLIT, "tp4 dp2 sp zero3"),
    "state space": (*REPLICAS, "tp2 dp4", "pp2 dp4 zero1", "cp2 dp4"),
    "recommender": (*REPLICAS, "dp8 tables=rows", "dp8 zero1 tables=rows"),
}  # fmt: skip
NEAR = 1e-9


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    """A family of models, and what is asked about it."""
    family = draw(st.sampled_from(sorted(MODELS)))
    return family, {
        "on": MACHINES[draw(st.sampled_from(sorted(MACHINES)))],
        "runtime": draw(st.sampled_from(sorted(presets()))),
        "plan": draw(st.sampled_from(PLANS.get(family, REPLICAS))),
        "precision": draw(st.sampled_from((None, None, None, *precisions()))),
        "optimizer": draw(st.sampled_from((None, None, *optimizers()))),
        "batch": 64,
        "micro_batch": draw(st.sampled_from((1, 2))),
    }


def stages(family: str, words: dict[str, object]) -> tuple[PlanBatch, Compiled]:
    """A plan as the search has it and as the compiler has it."""
    try:
        scenario = ask(MODELS[family], **words)
        task, plan = Task.of(scenario), scenario.plan
        programs = stage_programs(task.workload, plan, task.runtime)
        compiled = Compiled(*programs, plan.schedule.pieces)
    except InputError:
        reject()
    said = replace(task.words(plan.text), micro=plan.schedule.micro_batch)
    choices = lone(said.with_devices(task.devices))
    estimator = Estimator(task, only_fitting=False)
    rows, known = estimator.states(choices)
    assert rows[0] >= 0, f"the compiler takes {plan.text}, the search does not: {known.refused}"
    return plan_batch(estimator.shares, choices, known, rows, estimator.exchanges), compiled


def same(search: object, compiler: object, floor: float = 0.0) -> None:
    one, other = np.asarray(search, dtype=float), np.asarray(compiler, dtype=float)
    assert one.reshape(-1) == pytest.approx(other.reshape(-1), rel=NEAR, abs=floor or 1e-9)


def model_states_and_buffers(f: PlanBatch, compiled: Compiled) -> None:
    kept, gradients, unreduced = static(f)
    held = [p.stage for p in compiled.programs]
    same(kept[0], [s.weights + s.optimizer + s.buffers for s in held])
    same(gradients[0], [s.gradients for s in held])
    same(unreduced[0], [p.update.workspace for p in compiled.programs])


def activations_and_what_is_sent(f: PlanBatch, compiled: Compiled) -> None:
    layers = f.layers
    ahead, back = compiled.segments(FORWARD), compiled.segments(BACKWARD)
    stays = 0.0 if f.leaves[0] else 1.0
    same(f.by_part(layers.saved)[0] * stays, [s.memory for s in ahead])
    same(workspace(f, layers.forward_workspace)[0], [s.workspace for s in ahead])
    splits = (BACKWARD_WEIGHT, 0, False) in compiled.programs[0].segments
    frees = compiled.segments(BACKWARD_WEIGHT) if splits else back
    same(workspace(f, layers.backward_workspace)[0], [s.workspace for s in frees])
    if splits:
        apart = workspace(f, layers.backward_workspace, frees=False)
        same(apart[0], [s.workspace for s in back])
    sent = [compiled.items[s.send].work.bytes for s in ahead if s.send is not None]
    same(sends(f).size[0, compiled.pieces.hops != 0], sent)


def updates(f: PlanBatch, compiled: Compiled) -> None:
    states, none = f.task.states, np.zeros((1, f.stages))
    groups = [f.weights_of(kind) for kind in f.kinds_held]
    kernels = compiled.updates("optimizer.update")
    if any(kernels):
        same(
            states.update_traffic(groups) + none,
            [sum(w.kernel.bytes for w in ws) for ws in kernels],
        )
        same(
            states.update_flops(groups) + none, [sum(w.kernel.flops for w in ws) for ws in kernels]
        )
    launches = compiled.updates("optimizer.launches")
    if any(launches):
        issued = states.tensors_issued(
            sum(f.by_stage(f.elements("tensors", kind)) for kind in f.kinds_held)
        )
        same(issued, [sum(w.kernel.shape[0] for w in ws) for ws in launches])


def gathers_of_weights(f: PlanBatch, compiled: Compiled) -> None:
    states = f.task.states
    blocks = sum(np.asarray(states.gathered(f.block_weights(kind))) for kind in f.kinds_held)
    same(
        blocks @ f.share.T, [sum(compiled.moved(s, "weights")) for s in compiled.segments(FORWARD)]
    )


def buckets_of_gradients(f: PlanBatch, compiled: Compiled) -> None:
    runtime = f.task.runtime
    if runtime.fusion_cycles or runtime.gradients.synchronises_at != "gradient":
        return  # fused by time: the engine's clock decides
    made = (
        BACKWARD_WEIGHT if (BACKWARD_WEIGHT, 0, True) in compiled.programs[0].segments else BACKWARD
    )
    replicas = Replicas(f)
    pieces = np.zeros(len(f.share))
    for kind in f.kinds_held:
        if f.axes_of(kind):
            rounds = 2 if f.choices.zero[0] >= 1 and runtime.gradients.scatters_gradients and set(f.axes_of(kind)) > set(f.owners_of(kind)) > set() else 1  # fmt: skip
            pieces += rounds * replicas.buckets(kind, f.share)[0][0]
    found = [compiled.moved(s, "data") for s in compiled.segments(made, True)]
    same(pieces, [len(sizes) for sizes in found])


def seconds_of_kernels_and_exchanges_in_blocks(f: PlanBatch, compiled: Compiled) -> None:
    task, layers = f.task, f.layers
    if layers.copied.any() and f.ties.is_stored_before.any():
        return  # copies of a gathered weight that another shares the storage of count twice in the search
    plain = f.seconds_by_part(layers.forward[f.rows])[0]
    if f.choices.zero[0] >= 3:
        plain = plain + f.seconds_by_part(layers.copied[f.rows][..., 0])[0]
    chains = [compiled.chain(s) for s in compiled.segments(FORWARD)]
    chains = [tuple(i for i in chain if not is_boundary(i)) for chain in chains]
    device, host, *_ = chain_seconds(task, f.mesh, chains)
    runs_on = f.kinds[compiled.pieces.stage_of].T  # of several kinds of devices, a stage's own
    same(plain, np.where(runs_on, device, 0.0).max(axis=0))
    issued = issue_seconds(f, sends(f))
    if issued is not None and task.runtime.network_polling is None:
        same(issued[0][0], host)


@settings(
    max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(questions())
@example(
    ("tied", {"on": MACHINES["amd"], "runtime": "composer", "plan": "tp4 dp2 sp", "batch": 64})
)
@example(
    (
        "deep",
        {
            "on": MACHINES["switch"],
            "runtime": "fms-fsdp",
            "plan": "dp8 zero3 recompute=selective",
            "batch": 64,
        },
    )
)
@example(
    (
        "boxes",
        {
            "on": MACHINES["amd"],
            "runtime": "megatron",
            "plan": "dp8 zero2",
            "optimizer": "none",
            "batch": 64,
        },
    )
)
def test_search_and_compiler_agree_on_every_stage(question):
    f, compiled = stages(*question)
    model_states_and_buffers(f, compiled)
    activations_and_what_is_sent(f, compiled)
    updates(f, compiled)
    gathers_of_weights(f, compiled)
    buckets_of_gradients(f, compiled)
    seconds_of_kernels_and_exchanges_in_blocks(f, compiled)


@pytest.mark.parametrize("family", sorted(MODELS))
def test_what_is_drawn_of_a_family_is_not_refused(family):
    """A plan that every stack refuses would be drawn and never looked at."""
    for plan in PLANS.get(family, REPLICAS):
        ask(MODELS[family], on=MACHINES["switch"], runtime="megatron", plan=plan, batch=64)


def test_no_kind_of_op_and_no_number_format_is_left_out():
    built = [ask(words, on="1 x dgx-h100", batch=64).workload.model for words in MODELS.values()]
    missing = KINDS_OF_OPS.keys() - {op.kind for model in built for _, op in model.ops()}
    assert not missing, (
        f"no model of this test has an op of kind {sorted(missing)}: add one to MODELS in "
        "tests/property/test_stage_quantities.py"
    )
    drawn = ask(MODELS["dense"], on=MACHINES["blackwell"], batch=64, precision="nvfp4")
    assert drawn.workload.precision.matmul == "fp4"
    devices = {Cluster.of(on).devices[0].name for on in MACHINES.values()}
    assert len(devices) >= 9
