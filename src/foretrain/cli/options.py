"""Options: what each is called and says in help, told once (`options.yaml`), and groups that commands share.

A command takes plain parameters and groups (`question: Question`, `output: Output`), which `app.py` unfolds into one
parameter per field.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

from foretrain.errors import InputError, refuse
from foretrain.loading import load_own_yaml, whole_number

LOCAL_PROCESSES = re.compile(r"\s*(?:\d+\s*[x×*]\s*)?local\s*")
"""Clusters that are this machine. Told here, because measurements are loaded only for them."""
NO_MODEL = "MODEL: missing. Specify a zoo name such as llama3-8b ('foretrain catalog list models')."
NO_CLUSTER = (
    "--on: missing. Specify a cluster such as '2 x dgx-h100' ('foretrain catalog list nodes')."
)
KINDS = ("devices", "nodes", "links", "models", "runtimes", "measurements")
"""What the catalog lists."""
SCHEMAS = ("cluster", "plan", "model", "case", "prediction", "search", "runtime", "calibration")
"""Documents that have a JSON Schema; named here so that a key press does not load them."""

_WORDS: dict[str, dict[str, list[str]]] = load_own_yaml(Path(__file__).with_name("options.yaml"))
OPTIONS = _WORDS["options"]
ARGUMENTS = _WORDS["arguments"] | {
    "schema.name": ["NAME", " | ".join(SCHEMAS)],
    "catalog list.kind": ["KIND", " | ".join(KINDS)],
}


@dataclasses.dataclass(frozen=True)
class Output:
    """Where the answer goes. Files that cannot be written are refused before the command runs."""

    json: bool = False
    files: list[Path] | None = None
    quiet: bool = False
    verbose: bool = False

    is_expected_later: typing.ClassVar[bool] = False  # where the command itself says what it writes

    @property
    def detail(self) -> int:
        return -1 if self.quiet else 1 if self.verbose else 0


@dataclasses.dataclass(frozen=True)
class Question:
    """What to predict."""

    model: str | None = None
    on: str | None = None
    plan: str | None = None
    batch: str | None = None
    batch_tokens: str | None = None
    micro_batch: str | None = None
    seq: str | None = None
    precision: str | None = None
    optimizer: str | None = None
    runtime: str | None = None
    headroom: str | None = None
    stragglers: str | None = None
    options: list[str] | None = None
    calibration: str | None = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        needed = ((self.model, NO_MODEL), (self.on, NO_CLUSTER))
        missing = [fault for value, fault in needed if value is None]
        refuse("incomplete command:", missing)
        texts = (
            "model",
            "on",
            "plan",
            "precision",
            "optimizer",
            "runtime",
            "headroom",
            "stragglers",
        )
        asked = {name: getattr(self, name) for name in texts}
        asked |= counts(vars(self), "micro_batch", "seq")
        asked["batch"] = batch_of(self.batch, self.batch_tokens)
        asked["runtime_options"] = assignments(self.options, "--set") or None
        return given({**asked, **self._measured()})

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
class OpenQuestion(Question):
    """A question whose plan is what is asked for."""

    LEFT_OUT: typing.ClassVar[tuple[str, ...]] = ("plan",)


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """How long to train, and what that costs: all the steps, not one."""

    tokens: str | None = None
    samples: str | None = None
    steps: str | None = None
    epochs: str | None = None
    dataset_samples: str | None = None
    dataset_tokens: str | None = None
    usd_per_hour: str | None = None
    pue: str | None = None
    mtbf: str | None = None
    restart: str | None = None
    checkpoint_rate: str | None = None

    def asked(self) -> dict[str, Any]:
        """Arguments of the public API; what was left out stays out."""
        return given(vars(self))


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without what was left out."""
    return {name: value for name, value in arguments.items() if value is not None}


def counts(arguments: dict[str, Any], *names: str) -> dict[str, int]:
    """Those of these arguments that were given, as whole numbers."""
    from foretrain.units import parse_count

    texts = given({name: arguments[name] for name in names})
    return {name: parse_count(text, f"--{name.replace('_', '-')}") for name, text in texts.items()}


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
    try:
        value = json.loads(text, parse_constant=lambda _: text, parse_int=whole_number)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, dict | list) else value
