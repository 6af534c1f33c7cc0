"""`foretrain recommend`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrain.cli.options import (
    NO_MODEL,
    BatchTokens,
    CheckpointRate,
    HeadroomOption,
    JobSamples,
    JobSteps,
    JobTokens,
    ModelName,
    NodeMtbf,
    OptimizerName,
    Output,
    PrecisionName,
    RestartTime,
    RuntimeName,
    SequenceLength,
    batch_of,
)
from foretrain.errors import InputError


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """What is to be trained."""

    model: ModelName = None
    tokens: JobTokens = None
    samples: JobSamples = None
    steps: JobSteps = None
    epochs: Annotated[str | None, typer.Option(metavar="N", help="… or in epochs over --data.")] = (
        None
    )
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Maximum time, such as 36h or 2 weeks.")
    ] = None
    budget_usd: Annotated[str | None, typer.Option(metavar="N", help="Maximum cost in USD.")] = None
    batch: Annotated[
        str | None,
        typer.Option(metavar="N", help="Global batch size in samples, or in tokens such as 4Mtok."),
    ] = None
    batch_tokens: BatchTokens = None
    batch_per_device: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Batch size per device instead; the global batch scales with the number of "
            "devices.",
        ),
    ] = None
    seq: SequenceLength = None
    precision: PrecisionName = None
    optimizer: OptimizerName = None
    runtime: RuntimeName = None
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Dataset: imagenet-1k, or 'samples=1.3M,sample=110kB,prep=5ms,workers=8'.",
        ),
    ] = None
    storage: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Storage read bandwidth per node, such as 2GB/s."),
    ] = None


@dataclasses.dataclass(frozen=True)
class Market:
    """What may be rented, and how."""

    spot: Annotated[bool, typer.Option("--spot", help="Use spot prices.")] = False
    reserved: Annotated[
        bool, typer.Option("--reserved", help="Use the reserved prices from --prices.")
    ] = False
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Your own prices and quotas (CSV or YAML); overrides the catalog."
        ),
    ] = None
    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|NAME=N", help="Maximum number of instances: 16, 'aws:p4*=8'. Repeatable."
        ),
    ] = None
    instances: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="Only these instances, * as wildcard: 'aws:p*,gcp:a3*'. Repeatable.",
        ),
    ] = None
    max_devices: Annotated[
        str | None,
        typer.Option(metavar="N", help="Maximum number of devices in a cluster. Default: 512."),
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Only consider plans matching 'tp<=4', 'no recompute' … Repeatable.",
        ),
    ] = None
    headroom: HeadroomOption = None
    mtbf: NodeMtbf = None
    spot_rate: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Fraction of spot instances preempted per hour."),
    ] = None
    checkpoint_rate: CheckpointRate = None
    restart: RestartTime = None


def recommend(job: TrainingOptions, market: Market, output: Output) -> int:
    """Rank cloud offers for a training job by plan, time and cost.

    Exit code 1 if no offer is feasible. -o FILE.html plots cost over time.
    """
    from foretrain.cli.output import expect_files, give
    from foretrain.cli.progress import Progress

    expect_files(output)
    asked = {**_job(job), **_market(market)}
    from foretrain.recommendation.facade import recommend as recommended
    from foretrain.report.recommendation import recommendation_document

    with Progress("instances", quiet=output.quiet) as progress:
        recommendation = recommended(**asked, progress=progress)
    return give(recommendation_document(recommendation), output)


def _job(job: TrainingOptions) -> dict[str, Any]:
    from foretrain.units import parse_bandwidth, parse_count

    if job.model is None:
        raise InputError(NO_MODEL)
    asked: dict[str, Any] = dataclasses.asdict(job)
    asked["batch"] = batch_of(job.batch, asked.pop("batch_tokens"))
    for name in ("batch_per_device", "seq"):
        if asked[name] is not None:
            asked[name] = parse_count(asked[name], f"--{name.replace('_', '-')}")
    if job.budget_usd is not None:
        asked["budget_usd"] = _usd(job.budget_usd)
    if job.storage is not None:
        asked["storage"] = _positive("--storage", parse_bandwidth(job.storage))
    return {name: value for name, value in asked.items() if value is not None}


def _market(market: Market) -> dict[str, Any]:
    from foretrain.analysis.goodput import Risk
    from foretrain.units import parse_bandwidth, parse_count, parse_seconds

    if market.spot and market.reserved:
        raise InputError("--spot and --reserved are mutually exclusive.")
    if market.reserved and market.prices is None:
        raise InputError("--reserved: the catalog has no reserved prices; specify --prices FILE.")
    if market.spot_rate is not None and not 0 <= market.spot_rate < 1:
        raise InputError(f"--spot-rate {market.spot_rate}: must be a fraction, such as 0.05.")
    mtbf, rate, again = market.mtbf, market.checkpoint_rate, market.restart
    risk = Risk(
        None if mtbf is None else _positive("--mtbf", parse_seconds(mtbf)) / 3600.0,
        market.spot_rate,
        None if rate is None else _positive("--checkpoint-rate", parse_bandwidth(rate)),
        None if again is None else _positive("--restart", parse_seconds(again)),
    )
    asked: dict[str, Any] = {
        "buying": "spot" if market.spot else "reserved" if market.reserved else "on-demand",
        "prices": market.prices,
        "quota": tuple(market.quota or ()),
        "instances": tuple(market.instances or ()),
        "where": tuple(market.where or ()),
        "risk": risk,
        "headroom": market.headroom,
    }
    if market.max_devices is not None:
        asked["max_devices"] = parse_count(market.max_devices, "--max-devices")
    return asked


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
