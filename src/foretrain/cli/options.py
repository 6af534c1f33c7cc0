"""Options that many commands share, as groups.

A command takes a parameter annotated with a group (`question: Question`, `output: Output`); `command`
unfolds it into one option per field and hands the command the filled group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrain.cli.process import COMPLETE, hang_up, interrupted
from foretrain.cli.streams import answer_alone
from foretrain.errors import InputError

HELP = ("-h", "--help")
LOCAL_PROCESSES = re.compile(r"\s*(?:\d+\s*[x×*]\s*)?local\s*")
"""Clusters that are this machine. Told here, because measurements are loaded only for them."""


ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Zoo name, Hugging Face config.json or Foretrain YAML file."
    ),
]
SequenceLength = Annotated[
    str | None, typer.Option(metavar="N", help="Sequence length, such as 4096 or 4k.")
]
PrecisionName = Annotated[str | None, typer.Option(help="bf16, fp16, fp32, fp8 …")]
OptimizerName = Annotated[str | None, typer.Option(help="adam, sgd …")]
RuntimeName = Annotated[
    str | None, typer.Option(help="megatron, fsdp, ddp …; see 'catalog list runtimes'.")
]
BatchTokens = Annotated[
    str | None, typer.Option(metavar="N", help="Global batch size in tokens, such as 4M.")
]
HeadroomOption = Annotated[
    str | None,
    typer.Option(
        "--headroom",
        metavar="SHARE|SIZE",
        help="Device memory to keep free: 5% or 4GiB. Default: runtime default.",
    ),
]
JobTokens = Annotated[
    str | None,
    typer.Option("--tokens", metavar="N", help="Length of the job in tokens, such as 15T or 1e12."),
]
JobSamples = Annotated[
    str | None,
    typer.Option("--samples", metavar="N", help="… or in samples, counting repetitions."),
]
JobSteps = Annotated[str | None, typer.Option("--steps", metavar="N", help="… or in steps.")]
NodeMtbf = Annotated[
    str | None,
    typer.Option(
        "--mtbf", metavar="TIME", help="Mean time between failures of one node, such as 90d."
    ),
]
RestartTime = Annotated[
    str | None,
    typer.Option(
        "--restart", metavar="TIME", help="Time from an interruption until training resumes."
    ),
]
CheckpointRate = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-rate",
        metavar="RATE",
        help="Checkpoint write bandwidth per node, such as 2GB/s.",
    ),
]
NO_MODEL = "MODEL: missing. Specify a zoo name such as llama3-8b ('foretrain catalog list models')."


@dataclasses.dataclass(frozen=True)
class Output:
    """Where the answer goes."""

    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
    ] = False
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Also write FILE; the extension determines the format. Repeatable.",
        ),
    ] = None
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print only the headline, no progress.")
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="More detail, and tracebacks of internal errors."),
    ] = False

    @property
    def detail(self) -> int:
        return -1 if self.quiet else 1 if self.verbose else 0


@dataclasses.dataclass(frozen=True)
class Question:
    """What to predict."""

    model: ModelName = None
    on: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            help="'16 x dgx-a100-80gb', '4 x aws:p4d.24xlarge', a YAML file, or '2 x local' for "
            "this machine.",
        ),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(
            help="'tp8 pp16 dp8 zero1 1f1b recompute=full', a YAML file, or auto for the best "
            "plan of a quick search.",
        ),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Global batch size in samples, or in tokens such as 4Mtok. Default: one "
            "micro-batch per replica of a plan (4 per "
            "pipeline stage), or 4M tokens where the plan is chosen too.",
        ),
    ] = None
    batch_tokens: BatchTokens = None
    micro_batch: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Micro-batch size in samples. Default: the largest that fits."
        ),
    ] = None
    seq: SequenceLength = None
    precision: PrecisionName = None
    optimizer: OptimizerName = None
    runtime: RuntimeName = None
    headroom: HeadroomOption = None
    stragglers: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Slow devices: 'rank:factor,…' such as 3:1.5, or a distribution "
            "'sigma=0.05,seed=1'.",
        ),
    ] = None
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "--runtime-option",
            metavar="KEY=VALUE",
            help="Runtime option: attention=flash, compile=true, cuda_graphs=true … Repeatable.",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Calibration from 'foretrain calibrate -o FILE.json'. Default for local: the "
            "measurement store.",
        ),
    ] = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        from foretrain.units import parse_count

        missing = [
            fault
            for value, fault in (
                (self.model, NO_MODEL),
                (
                    self.on,
                    (
                        "--on: missing. Specify a cluster such as '2 x dgx-h100' ('foretrain "
                        "catalog list nodes')."
                    ),
                ),
            )
            if value is None
        ]
        if missing:
            raise InputError("incomplete command:", faults=missing)
        asked: dict[str, Any] = {"model": self.model, "on": self.on, "plan": self.plan}
        for name in ("precision", "optimizer", "runtime", "headroom", "stragglers"):
            asked[name] = getattr(self, name)
        for name in ("micro_batch", "seq"):
            text = getattr(self, name)
            asked[name] = None if text is None else parse_count(text, f"--{name.replace('_', '-')}")
        asked["batch"] = batch_of(self.batch, self.batch_tokens)
        asked["runtime_options"] = assignments(self.options, "--set") or None
        asked.update(self._measured())
        return {name: value for name, value in asked.items() if value is not None}

    def written(self) -> dict[str, Any]:
        """What `asked` puts values in place of, as it was written: a calibration and the machine at hand."""
        if self.calibration is None and not self._is_local:
            return {}
        options = assignments(self.options, "--set") or None
        files = {"calibration": self.calibration, "measured": None}
        return {"on": self.on, "runtime_options": options, **files}

    @property
    def _is_local(self) -> bool:
        return self.on is not None and LOCAL_PROCESSES.fullmatch(self.on) is not None

    def _measured(self) -> dict[str, Any]:
        """What a calibration, or this machine, changes in the question."""
        if self.on is None or (self.calibration is None and not self._is_local):
            return {}
        from foretrain.measurement.local import resolved

        on, calibration = resolved(self.on, self.calibration)
        arguments: dict[str, Any] = {"on": on, "measured": calibration}
        if self._is_local and calibration.host_seconds_per_kernel is not None:
            measured = {"host_seconds_per_kernel": calibration.host_seconds_per_kernel}
            arguments["runtime_options"] = {**measured, **assignments(self.options, "--set")}
        return arguments


@dataclasses.dataclass(frozen=True)
class ChangedQuestion(Question):
    """A question whose `--set` is taken by the command itself."""

    options: Annotated[
        list[str] | None,
        typer.Option(
            "--runtime-option",
            metavar="KEY=VALUE",
            help="Runtime option, before and after the change. Repeatable.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class OpenQuestion(Question):
    """A question whose plan is what is asked for."""

    LEFT_OUT: typing.ClassVar[tuple[str, ...]] = ("plan",)

    batch: Annotated[
        str | None, typer.Option(metavar="N", help="Global batch size in samples.")
    ] = None


def batch_of(batch: str | None, tokens: str | None) -> str | None:
    """As given; `resolving` knows samples from tokens."""
    if tokens is None:
        return batch
    if batch is not None:
        raise InputError("--batch and --batch-tokens are mutually exclusive.")
    return f"{tokens} tokens"


def assignments(texts: list[str] | None, flag: str) -> dict[str, Any]:
    """`key=value` texts as a mapping; a value that is JSON (a number, true, null …) is taken as such."""
    values: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{flag} {text!r} is not KEY=VALUE.")
        if key.strip() in values:
            raise InputError(f"{flag}: {key.strip()!r} is specified twice.")
        values[key.strip()] = literal(value.strip())
    return values


def literal(text: str) -> Any:
    """A JSON scalar, else the text itself."""
    from foretrain.loading import whole_number

    try:
        value = json.loads(text, parse_constant=lambda _: text, parse_int=whole_number)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, dict | list) else value


def command(app: typer.Typer, function: Callable[..., int], name: str | None = None) -> None:
    """Add `function` to `app`, its groups unfolded."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups = {key: hint for key, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _fields(typing.cast(type, groups[parameter.name]))
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=kind))

    if COMPLETE in os.environ:
        from foretrain.cli.completion import attach

        for parameter in parameters:
            attach(name or function.__name__, parameter)

    @functools.wraps(function)
    def call(**given: Any) -> int:
        for key, group in groups.items():
            names = [parameter.name for parameter in _fields(typing.cast(type, group))]
            given[key] = typing.cast(Any, group)(**{name: given.pop(name) for name in names})
        return _guarded(function, given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    del call.__wrapped__
    app.command(name or function.__name__, context_settings={"help_option_names": list(HELP)})(call)


def _fields(group: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
        if field.name not in getattr(group, "LEFT_OUT", ())
    ]


def _answer_alone_if(is_wanted: bool) -> contextlib.AbstractContextManager[None]:
    """With `--json` nothing but the document may reach stdout."""
    if not is_wanted:
        return contextlib.nullcontext()
    return answer_alone()


def _guarded(function: Callable[..., int], given: dict[str, Any]) -> int:
    """Ends that the parser would answer with codes, or a silence, that mean something else here."""
    try:
        with _answer_alone_if(any(getattr(value, "json", False) for value in given.values())):
            code = function(**given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return hang_up()
    except KeyboardInterrupt:
        return interrupted()
