"""Options of a job: all the steps, not one."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """How long to train, and what that costs."""

    tokens: Annotated[
        str | None,
        typer.Option(metavar="N", help="Length of the job in tokens, such as 15T or 300B."),
    ] = None
    samples: Annotated[
        str | None, typer.Option(metavar="N", help="… or in samples, counting repetitions.")
    ] = None
    steps: Annotated[str | None, typer.Option(metavar="N", help="… or in steps.")] = None
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
    mtbf: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Mean time between failures of one node, such as 90d."),
    ] = None
    restart: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time from a failure until training resumes."),
    ] = None
    checkpoint_rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Checkpoint write bandwidth per node, such as 2GB/s."),
    ] = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        return {name: text for name, text in dataclasses.asdict(self).items() if text is not None}
