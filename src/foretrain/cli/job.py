"""Options of a job: all the steps, not one."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from foretrain.cli.options import (
    CheckpointRate,
    JobSamples,
    JobSteps,
    JobTokens,
    NodeMtbf,
    RestartTime,
)


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """How long to train, and what that costs."""

    tokens: JobTokens = None
    samples: JobSamples = None
    steps: JobSteps = None
    epochs: Annotated[
        str | None, typer.Option(metavar="N", help="… or in epochs over a dataset of …")
    ] = None
    dataset_samples: Annotated[
        str | None, typer.Option(metavar="N", help="… this many samples,")
    ] = None
    dataset_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="… or this many tokens.")
    ] = None
    usd_per_hour: Annotated[
        str | None,
        typer.Option(metavar="USD", help="Price per device-hour. Default: catalog price."),
    ] = None
    pue: Annotated[
        str | None,
        typer.Option(
            metavar="FACTOR",
            help="Power usage effectiveness: data center power over device power, for energy.",
        ),
    ] = None
    mtbf: NodeMtbf = None
    restart: RestartTime = None
    checkpoint_rate: CheckpointRate = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        return {name: text for name, text in dataclasses.asdict(self).items() if text is not None}
