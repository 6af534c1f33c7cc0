"""The façade: from a job to ranked offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretrain.analysis.goodput import Risk
from foretrain.cluster.headroom import headroom_share
from foretrain.errors import InputError, hint, refuse
from foretrain.keywords import keywords, texts_of
from foretrain.limits import Limit, shown
from foretrain.model.graph import Model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.plan.constraints import parse
from foretrain.plan.supported import expect_able
from foretrain.recommendation.answer import Recommendation
from foretrain.recommendation.capacity import MOST_DEVICES
from foretrain.recommendation.evaluate import Look
from foretrain.recommendation.job import Dataset, figure
from foretrain.recommendation.job import job as job_of
from foretrain.recommendation.market import assumptions
from foretrain.recommendation.offers import Terms
from foretrain.recommendation.plans import Stacks
from foretrain.recommendation.prices import (
    BUYING,
    OwnPrice,
    chosen,
    discount_share,
    quotas,
    read_prices,
    tariffs,
)
from foretrain.recommendation.round import Round
from foretrain.runtime import Runtime
from foretrain.runtime import runtime as stack_of
from foretrain.units import parse_seconds

SIMULATED = 24
"""Offers that are simulated besides the Pareto front."""


@keywords()
def recommend(
    model: str | Path | Mapping[str, Any] | Model,
    *,
    tokens: float | str | None = None,
    samples: float | str | None = None,
    steps: float | str | None = None,
    epochs: float | str | None = None,
    deadline: float | str | None = None,
    budget_usd: float | None = None,
    batch: int | str | None = None,
    batch_per_device: int | None = None,
    seq: int | None = None,
    precision: str | Precision | None = None,
    optimizer: str | Optimizer | None = None,
    runtime: str | Runtime | None = None,
    data: str | Mapping[str, Any] | Dataset | None = None,
    storage: float | None = None,
    buying: str = "on-demand",
    prices: str | Path | Iterable[OwnPrice] | None = None,
    instances: str | Sequence[str] = (),
    quota: int | str | Sequence[int | str] = (),
    max_devices: int | None = None,
    where: str | Sequence[str] = (),
    hypothetical: bool = False,
    risk: Risk | None = None,
    startup: float | str | None = None,
    discount: float | str | None = None,
    critical_batch: int | str | None = None,
    headroom: float | str | None = None,
    simulated: int = SIMULATED,
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Rank cloud offers for a training job, with plan, time, cost and reason, best first.

    Args:
        model: as for `predict`.
        tokens: length of the job in tokens, such as `1e12`; or use `samples`, `steps` or `epochs`.
        samples: length of the job in samples.
        steps: length of the job in steps.
        epochs: length of the job in epochs over `data`.
        deadline: maximum time, in seconds or as `"14d"`.
        budget_usd: maximum cost in USD.
        batch: global batch in samples, or in tokens (`"4Mtok"`).
        batch_per_device: batch size per device instead; the global batch scales with the number of devices.
        seq: tokens per sample.
        precision: `bf16`, `fp16`, `fp32`, `fp8` …
        optimizer: `adam`, `sgd` …
        runtime: the software stack. Default: chosen for each cluster, as for `predict`.
        data: dataset: `"imagenet-1k"`, or `"samples=1.3M,sample=110kB,prep=5ms,workers=8"`.
        storage: storage read bandwidth per node in bytes per second.
        buying: `on-demand`, `spot` or `reserved`.
        prices: your own prices and quotas, a CSV or YAML file; overrides the catalog.
        instances: only these, `*` as wildcard: `["aws:p*", "gcp:a3*"]`.
        quota: maximum number of instances: `16`, or `["16", "aws:p4*=8"]`.
        max_devices: maximum number of devices in a cluster.
        where: constraints on plans, as for `search`.
        hypothetical: also consider plans that the software stack cannot run.
        risk: failures, checkpoints and restarts.
        startup: time from the order to the first step, in seconds or as `"10min"`; default: published figures.
        discount: what a contract takes off catalog prices, on demand or reserved: `0.3` or `"30%"`.
        critical_batch: batch size in samples or tokens from which larger steps save few of them; the job then takes
            1 + B/B_crit times the samples (McCandlish et al. 2018).
        headroom: device memory to keep free: a fraction or a size.
        simulated: number of offers simulated in addition to the Pareto front of time and cost.
        progress: called with the number of instances done and the total.

    >>> from foretrain import recommend
    >>> answer = recommend("gpt2", tokens=1e9, batch=64, instances=["aws:p4d*"], max_devices=8)
    >>> answer.offers[0].name, answer.rows()[0]["usd"] > 0
    ('1 x aws:p4d.24xlarge', True)
    """
    job = job_of(
        model, tokens=tokens, samples=samples, steps=steps, epochs=epochs, batch=batch, batch_per_device=batch_per_device,
        seq=seq, precision=precision, optimizer=optimizer, data=data, deadline=deadline,
        budget_usd=budget_usd, critical_batch=critical_batch,
    )  # fmt: skip
    if buying not in BUYING:
        raise InputError(f"buying: {buying!r} is unknown.{hint(buying, BUYING)}")
    off = discount_share(discount)
    _expect_partners(storage, data, risk, buying, off)
    most = int(figure("limits", "devices")) if max_devices is None else max_devices
    if not Limit(MOST_DEVICES, "devices").allows(most):
        raise InputError(
            f"max_devices: {shown(most)} is not a whole number from 1 to {MOST_DEVICES:,}."
        )
    rules = texts_of("where", where)
    asked = parse(rules)  # a constraint that cannot be read is no fault of a cluster …
    if runtime is not None and not hypothetical:
        expect_able(stack_of(runtime), asked)  # … nor one for plans that the stack cannot run
    own = read_prices(prices) if isinstance(prices, str | Path) else tuple(prices or ())
    machines = int(figure("limits", "machines")) if max_devices is None else most
    start = None if startup is None else parse_seconds(startup, "startup")
    if start is not None and not 0.0 <= start < float("inf"):
        raise InputError(f"startup: {shown(startup)} must be zero or more.")
    terms = Terms(
        buying, quotas(texts_of("quota", quota)), most, machines, storage, risk or Risk(), start, off
    )  # fmt: skip
    stacks = Stacks(
        job,
        runtime,
        rules,
        figure("limits", "memory_share"),
        headroom,
        is_hypothetical=hypothetical,
    )
    market = {
        name: (node, tariffs(own)[name])
        for name, node in chosen(texts_of("instances", instances)).items()
    }
    # what even the largest device cannot keep free is a fault of the question
    if headroom is not None:
        every = [device for node, _ in market.values() for device in node.devices]
        headroom_share(headroom, [max(every, key=lambda device: device.memory_bytes)])
    assumed = []
    if max_devices is None:
        size = f"clusters of up to {most:,} devices and {machines:,} nodes"
        assumed.append(f"{size}: limits of the ranking (--max-devices, --quota)")
    if not own:
        less = f" less {100 * off:g} %" if off else ""
        assumed.append(f"{buying} prices: list prices of the catalog{less} (--prices)")
    assumed += assumptions([node for node, _ in market.values()], start)
    look = Look(job, terms, stacks)
    return Round(job, terms, look, tuple(assumed), progress).run(market, simulated)


def _expect_partners(
    storage: object, data: object, risk: Risk | None, buying: str, discount: float
) -> None:
    """What would have no effect is refused, not ignored."""
    faults = []
    if storage is not None and data is None:
        faults.append("storage: has no effect without data (--data), whose samples it would read.")
    if risk is not None and risk.spot_rate is not None and buying != "spot":
        faults.append('spot_rate: has no effect without buying="spot" (--spot).')
    if discount and buying == "spot":
        faults.append("discount: has no effect on spot prices (--spot).")
    refuse("invalid job:", faults)
