"""Options of a job: all the steps, not one."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer


@dataclasses.dataclass(frozen=True)
class Job:
    """How long to train, and what that costs."""

    tokens: Annotated[
        str | None,
        typer.Option(metavar="N", help="The job: train on so many tokens, such as 15T or 300B."),
    ] = None
    samples: Annotated[
        str | None, typer.Option(metavar="N", help="… or on so many samples, repetitions counted.")
    ] = None
    steps: Annotated[str | None, typer.Option(metavar="N", help="… or for so many steps.")] = None
    epochs: Annotated[
        str | None, typer.Option(metavar="N", help="… or so often over a dataset of …")
    ] = None
    dataset_samples: Annotated[str | None, typer.Option(metavar="N", help="… so many samples,")] = (
        None
    )
    dataset_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="… or so many tokens.")
    ] = None
    usd_per_hour: Annotated[
        str | None,
        typer.Option(
            metavar="USD", help="What one device costs in an hour; left out, the catalogue's price."
        ),
    ] = None
    pue: Annotated[
        str | None,
        typer.Option(
            metavar="FACTOR", help="Power of the data centre over that of the devices, for energy."
        ),
    ] = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        return {name: text for name, text in dataclasses.asdict(self).items() if text is not None}
