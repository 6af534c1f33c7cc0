"""`foretrain recommend`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.options import NO_MODEL, Output, batch_of, counts, given
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.recommendation.answer import Recommendation


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """What is to be trained."""

    model: str | None = None
    tokens: str | None = None
    samples: str | None = None
    steps: str | None = None
    epochs: str | None = None
    deadline: str | None = None
    budget_usd: str | None = None
    batch: str | None = None
    batch_tokens: str | None = None
    batch_per_device: str | None = None
    seq: str | None = None
    precision: str | None = None
    optimizer: str | None = None
    runtime: str | None = None
    data: str | None = None
    storage: str | None = None
    critical_batch: str | None = None


@dataclasses.dataclass(frozen=True)
class Market:
    """What may be rented, and how."""

    spot: bool = False
    reserved: bool = False
    prices: Path | None = None
    quota: list[str] | None = None
    instances: list[str] | None = None
    max_devices: str | None = None
    where: list[str] | None = None
    hypothetical: bool = False
    headroom: str | None = None
    mtbf: str | None = None
    spot_rate: str | None = None
    checkpoint_rate: str | None = None
    restart: str | None = None
    startup: str | None = None
    discount: str | None = None


def recommend(job: TrainingOptions, market: Market, output: Output) -> Recommendation:
    """Rank cloud offers for a training job by plan, time and cost.

    Exit code 1 if no offer is feasible. -o FILE.html plots cost over time.
    """
    from foretrain.cli.progress import Progress

    asked = {**_job(job), **_market(market)}
    from foretrain.recommendation.facade import recommend as recommended

    with Progress("instances", quiet=output.quiet) as progress:
        return recommended(**asked, progress=progress)


def _job(job: TrainingOptions) -> dict[str, Any]:
    from foretrain.units import parse_bandwidth

    if job.model is None:
        raise InputError(NO_MODEL)
    asked = vars(job).copy()
    asked["batch"] = batch_of(job.batch, asked.pop("batch_tokens"))
    asked |= counts(asked, "batch_per_device", "seq")
    if job.budget_usd is not None:
        asked["budget_usd"] = _usd(job.budget_usd)
    if job.storage is not None:
        asked["storage"] = _positive("--storage", parse_bandwidth(job.storage))
    return given(asked)


def _market(market: Market) -> dict[str, Any]:
    from foretrain.analysis.goodput import Risk
    from foretrain.recommendation.prices import share_below_one
    from foretrain.units import parse_bandwidth, parse_seconds

    if market.spot and market.reserved:
        raise InputError("--spot and --reserved are mutually exclusive.")
    if market.reserved and market.prices is None and market.discount is None:
        raise InputError(
            "--reserved: the catalog has no reserved prices; specify --prices FILE or --discount 30%."
        )
    mtbf, rate, again = market.mtbf, market.checkpoint_rate, market.restart
    risk = Risk(
        None if mtbf is None else _positive("--mtbf", parse_seconds(mtbf, "--mtbf")) / 3600.0,
        None if market.spot_rate is None else share_below_one("--spot-rate", market.spot_rate),
        None if rate is None else _positive("--checkpoint-rate", parse_bandwidth(rate)),
        None if again is None else _positive("--restart", parse_seconds(again, "--restart")),
    )
    return {
        "buying": "spot" if market.spot else "reserved" if market.reserved else "on-demand",
        "prices": market.prices,
        "quota": tuple(market.quota or ()),
        "instances": tuple(market.instances or ()),
        "where": tuple(market.where or ()),
        "hypothetical": market.hypothetical,
        "risk": risk,
        "headroom": market.headroom,
        "startup": market.startup,
        "discount": market.discount,
        **counts(vars(market), "max_devices"),
    }


def _usd(text: str) -> float:
    try:
        return float(text.replace(",", "").removeprefix("$"))
    except ValueError:
        raise InputError(
            f"--budget-usd {text!r} is not an amount; write for example 50000."
        ) from None


def _positive(flag: str, value: float) -> float:
    if value <= 0:
        raise InputError(f"{flag}: {value:g} must be positive.")
    return value
