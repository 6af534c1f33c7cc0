"""The short form: `tp8 pp16 vpp2 dp8 cp2 ep8 zero1 sp 1f1b recompute=selective`.

It is only a way to say a tree: `parse` reads words, `build` lets each parallelism add its nodes. What a text leaves open
is as its stack has it (`plan.defaults`); `zero0`, `no-sp` and `recompute=none` say that it is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from foretrain.errors import PlanError, hint
from foretrain.limits import BUCKET, DEVICES, shown
from foretrain.plan.defaults import PLAIN, PlanDefaults
from foretrain.plan.mesh import Mesh
from foretrain.plan.parallelism import FACTORINGS, PARALLELISMS
from foretrain.plan.schedules import DEFAULT, SCHEDULES, meant
from foretrain.plan.strategy import Schedule, StrategyNode
from foretrain.runtime import Runtime
from foretrain.units import counted, parse_bytes

LONGEST_WORD = 4_000  # characters; layers= and recompute= of many stages and ops have hundreds
_DEGREES = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp")
_FLAGS = {"sp": True, "no-sp": False, "nosp": False}
_SWITCHED = {"on": True, "true": True, "off": False, "false": False}
_OPTIONS = (
    "recompute",
    "schedule",
    "offload",
    "cp",
    "buckets",
    "layers",
    "order",
    "shard",
    "tables",
    "micro",
)
_CHOICES = {"cp": ("ring", "all-gather"), "tables": ("replicated", "rows")}


def vocabulary() -> tuple[str, ...]:
    """Words to choose from, for people who type: degrees without their number, options with their values."""
    choices = {**_CHOICES, "recompute": ("none", "selective", "full"), "schedule": tuple(SCHEDULES)}
    valued = [f"{name}={value}" for name, values in choices.items() for value in values]
    open_ = [f"{name}=" for name in _OPTIONS if name not in choices]
    return (*_DEGREES, *_FLAGS, "zero1", "zero2", "zero3", *SCHEDULES, *valued, *open_)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a short form. `dp` None: as many as the devices allow."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int | None = None
    etp: int | None = None  # tensor parallel degree inside experts; None = tp where it fits
    zero: int = 0
    shard: int | None = None  # hybrid sharding: state is split over groups of this many ranks
    sp: bool = False
    schedule: str | None = None
    recompute: str | None = None
    offload: tuple[str, ...] = ()
    exchange: str = "all-gather"
    tables: str = "replicated"  # embedding tables: replicated | rows
    buckets: float | None = None
    layers: tuple[int, ...] | None = None
    order: tuple[str, ...] | None = None
    micro: int | None = None

    def with_devices(self, devices: int) -> Words:
        """Data parallelism over the devices that the other degrees leave."""
        model_ranks = self.tp * self.pp * self.cp
        if self.dp is not None:
            return self
        if devices % model_ranks:
            raise PlanError(
                f"tp {self.tp} x pp {self.pp} x cp {self.cp} = {counted(model_ranks, 'rank')} "
                f"must divide the {counted(devices, 'device')}. Change a degree or the number "
                "of nodes."
            )
        return replace(self, dp=devices // model_ranks)

    def text(self, defaults: PlanDefaults = PLAIN) -> str:
        """The canonical spelling; what the stack would do by itself and the plan does not is said too."""
        words = [f"{name}{getattr(self, name)}" for name in ("tp", "pp", "dp", "cp", "ep")]
        default = {"tp1", "pp1", "dp1", "cp1", "ep1"}
        words = [word for word in words if word not in default]
        if self.vpp > 1 and self.vpp != meant(self.schedule, self.pp, 1)[1]:
            words.append(f"vpp{self.vpp}")
        if self.etp is not None:
            words.append(f"etp{self.etp}")
        if self.zero or defaults.zero_of(self):
            words.append(f"zero{self.zero}")
        if self.shard:
            words.append(f"shard={self.shard}")
        if self.sp or defaults.sp_of(self):
            words.append("sp" if self.sp else "no-sp")
        schedule = self.schedule or (DEFAULT if defaults.schedule_of(self) else None)
        if schedule and self.pp > 1:
            words.append(schedule)
        recompute = self.recompute or "none"
        if recompute != "none" or defaults.recompute != "none":
            words.append(f"recompute={recompute}")
        if self.offload:
            words.append(f"offload={'+'.join(self.offload)}")
        if self.exchange != "all-gather":
            words.append(f"cp={self.exchange}")
        if self.tables != "replicated" or defaults.tables_of(self) != "replicated":
            words.append(f"tables={self.tables}")
        if self.buckets is not None:
            words.append(f"buckets={self.buckets / 1e6:g}MB")
        if self.layers is not None:
            words.append(f"layers={','.join(map(str, self.layers))}")
        if self.order is not None:
            words.append(f"order={'-'.join(self.order)}")
        if self.micro is not None:
            words.append(f"micro={self.micro}")
        return " ".join(words) or "dp1"


def parse(text: str, defaults: PlanDefaults = PLAIN, devices: int | None = None) -> Words:
    """Words from text, what it leaves open as the defaults have it; every fault is named at once."""
    return filled(said(text), defaults, devices)


def filled(
    said: Mapping[str, object], defaults: PlanDefaults = PLAIN, devices: int | None = None
) -> Words:
    """Words of which only some were said. Data parallelism takes the devices that the other degrees leave."""
    words = Words(**said)  # type: ignore[arg-type]
    if devices is not None:
        words = words.with_devices(devices)
    opened = {
        "zero": defaults.zero_of(words),
        "sp": defaults.sp_of(words),
        "recompute": defaults.recompute,
        "schedule": defaults.schedule_of(words),
        "tables": defaults.tables_of(words),
    }
    words = replace(words, **{name: value for name, value in opened.items() if name not in said})  # type: ignore[arg-type]
    return replace(words, vpp=meant(words.schedule, words.pp, words.vpp)[1])


def said(text: str) -> dict[str, object]:
    """The choices that a text makes."""
    found: dict[str, object] = {}
    faults: list[str] = []
    for word in text.replace(";", " ").split():
        try:
            for name, value in _read(word).items():
                if name in found and found[name] != value:
                    faults.append(f"{word}: {name} is specified twice ({found[name]} and {value}).")
                found[name] = value
        except PlanError as error:
            faults.append(str(error))
    if faults:
        raise PlanError(f"plan {shown(text, 120)} is invalid:", faults=faults)
    return found


def _read(word: str) -> dict[str, object]:
    if len(word) > LONGEST_WORD:
        raise PlanError(f"{shown(word)}: too long.")
    lowered = word.lower()
    if "=" in lowered:
        name, _, value = lowered.partition("=")
        return _option(word, name, value)
    if lowered in _FLAGS:
        return {"sp": _FLAGS[lowered]}
    if lowered in SCHEDULES:
        return {"schedule": lowered}
    match = re.fullmatch(r"([a-z]+)[-:]?(\d{1,19})", lowered, re.ASCII)
    if match and match[1] in (*_DEGREES, "zero"):
        return {match[1]: _degree(word, match[1], int(match[2]))}
    if lowered in (*_DEGREES, "zero"):
        raise PlanError(f"{word}: needs a number, such as {word}{1 if lowered == 'zero' else 8}.")
    known = [
        *_DEGREES,
        *_FLAGS,
        *SCHEDULES,
        "zero1",
        "zero2",
        "zero3",
        *(f"{o}=" for o in _OPTIONS),
    ]
    raise PlanError(f"{word}: unknown keyword.{hint(lowered, known)}")


def _is_number(text: str) -> bool:
    return (
        text.isdecimal() and len(text) < 20
    )  # longer ones cannot be counts, and take long to read


def _degree(word: str, name: str, value: int) -> int:
    if name == "zero" and value > 3:
        raise PlanError(f"{word}: the ZeRO stage must be 0 to 3.")
    if name != "zero" and not DEVICES.allows(value):
        raise PlanError(f"{shown(word)}: {DEVICES.fault(value)}")
    return value


def _option(word: str, name: str, value: str) -> dict[str, object]:
    if name in _DEGREES and _is_number(value):
        return {name: _degree(word, name, int(value))}
    if name == "zero" and _is_number(value):
        return {"zero": _degree(word, "zero", int(value))}
    match name:
        case "sp" if value in _SWITCHED:
            return {"sp": _SWITCHED[value]}
        case "recompute":
            return {"recompute": value}
        case "schedule" if value in SCHEDULES:
            return {"schedule": value}
        case "schedule":
            raise PlanError(f"{word}: unknown schedule.{hint(value, SCHEDULES)}")
        case "offload":
            parts = tuple(value.replace("+", ",").split(","))
            unknown = [part for part in parts if part not in ("optimizer", "activations")]
            if unknown:
                raise PlanError(
                    f"{word}: offload takes optimizer and activations, not {unknown[0]!r}."
                )
            return {"offload": parts}
        case "cp" if value in _CHOICES["cp"]:
            return {"exchange": value}
        case "tables" if value in _CHOICES["tables"]:
            return {"tables": value}
        case "tables" | "cp":
            raise PlanError(f"{word}: {name} takes {' or '.join(_CHOICES[name])}.")
        case "buckets":
            return {"buckets": bucket_bytes(word, parse_bytes(value.upper().replace("IB", "iB")))}
        case "shard" | "micro":
            return {name: _whole(word, value)}
        case "layers":
            parts = tuple(
                value.split(",")
            )  # the first and the last may hold none beside their ends
            return {"layers": tuple(0 if n == "0" else _whole(word, n) for n in parts)}
        case "order":
            order = tuple(value.split("-"))
            _expect_axes(order)
            return {"order": order}
    raise PlanError(f"{word}: unknown option.{hint(name, _OPTIONS)}")


def bucket_bytes(word: str, size: float) -> float:
    if not BUCKET.allows(size):
        raise PlanError(
            f"{shown(word)}: buckets of gradients have {BUCKET.least:g} to {BUCKET.most:g} bytes."
        )
    return size


def value_of(word: str, name: str, value: str) -> object:
    """What an option of a plan is set to; `word` is how it was said."""
    (found,) = _option(word, name, value).values()
    return found


def _whole(word: str, value: str) -> int:
    if not (value.isdecimal() and len(value) < 20 and DEVICES.allows(int(value))):
        raise PlanError(
            f"{shown(word)}: {shown(value)} is not a whole number from 1 to {DEVICES.most:,}."
        )
    return int(value)


def build(words: Words, runtime: Runtime) -> tuple[Mesh, StrategyNode]:
    """The mesh and the tree the words describe; each parallelism adds its part in a fixed order."""
    mesh = _mesh(words, runtime)
    root = StrategyNode(schedule=schedule_of(words))
    for factor in FACTORINGS:
        mesh = factor(words, mesh)
    for parallelism in PARALLELISMS:
        root = parallelism(words, mesh, root)
    return mesh, root


def _mesh(words: Words, runtime: Runtime) -> Mesh:
    degrees = {"pp": words.pp, "dp": words.dp or 1, "cp": words.cp, "tp": words.tp}
    order = tuple(reversed(words.order)) if words.order else runtime.plan.rank_order
    _expect_axes(order[::-1])
    missing = [axis for axis in degrees if axis not in order]
    axes = [(axis, degrees[axis]) for axis in (*missing, *order) if axis in degrees]
    return Mesh(tuple(axes))


def _expect_axes(order: tuple[str, ...]) -> None:
    """Innermost first."""
    if not {*order} <= {"tp", "cp", "dp", "pp", "ep"} or len(set(order)) != len(order):
        raise PlanError(f"order={'-'.join(order)}: must contain each of tp, cp, dp and pp once.")


def schedule_of(words: Words) -> Schedule:
    kind, chunks = meant(words.schedule, words.pp, words.vpp)
    if words.vpp > 1 and words.pp == 1:
        raise PlanError(f"vpp{words.vpp} needs a pipeline: pp is 1. Set pp, or drop vpp.")
    if words.layers is not None and len(words.layers) != words.pp * chunks:
        raise PlanError(
            f"layers= lists {len(words.layers)} parts but pp {words.pp} x vpp {chunks}"
            f" = {words.pp * chunks}."
        )
    return Schedule(
        kind=kind.name,
        micro_batch=words.micro or 1,
        stages=words.pp,
        chunks=chunks,
        layers=words.layers,
    )
