"""The short form: `tp8 pp16 vpp2 dp8 cp2 ep8 zero1 sp 1f1b recompute=selective`.

It is only a way to say a tree: `parse` reads words, `words_in` those that are given as data, `build` lets each
parallelism add its nodes. What a text leaves open is as its stack has it (`plan.defaults`); `zero0`, `no-sp` and
`recompute=none` say that it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from foretrain.errors import InputError, PlanError, did_you_mean, hint
from foretrain.limits import BUCKET, DEVICES, LAYERS, MICRO_BATCH, Limit, shown
from foretrain.plan.defaults import PLAIN, PlanDefaults
from foretrain.plan.mesh import Mesh
from foretrain.plan.parallelism import FACTORINGS, PARALLELISMS
from foretrain.plan.schedules import DEFAULT, SCHEDULES, meant, remedy
from foretrain.plan.strategy import EXCHANGES, OFFLOADS, Schedule, StrategyNode
from foretrain.plan.words import DEGREES, FLAGS, NUMBERED, OPTIONS, numbered
from foretrain.runtime import Runtime
from foretrain.units import counted, parse_bytes

LONGEST_WORD = 4_000  # characters; layers= and recompute= of many stages and ops have hundreds
_SWITCHED = {"on": True, "true": True, "off": False, "false": False}
_CHOICES = {"cp": EXCHANGES, "tables": ("replicated", "rows")}


def vocabulary() -> tuple[str, ...]:
    """Words to choose from, for people who type: degrees without their number, options with their values."""
    choices = {**_CHOICES, "recompute": ("none", "selective", "full"), "schedule": tuple(SCHEDULES)}
    valued = [f"{name}={value}" for name, values in choices.items() for value in values]
    open_ = [f"{name}=" for name in OPTIONS if name not in choices]
    return (*DEGREES, *FLAGS, "zero1", "zero2", "zero3", *SCHEDULES, *valued, *open_)


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
        if self.exchange != PLAIN.exchange or defaults.exchange_of(self) != PLAIN.exchange:
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
        "exchange": defaults.exchange_of(words),
    }
    words = replace(words, **{name: value for name, value in opened.items() if name not in said})  # type: ignore[arg-type]
    return replace(words, vpp=meant(words.schedule, words.pp, words.vpp)[1])


def said(text: str) -> dict[str, object]:
    """The choices that a text makes."""
    words: dict[str, object] = {}
    faults: list[str] = []
    for word in text.replace(";", " ").split():
        try:
            name, value = _read(word)
        except InputError as error:
            faults.append(f"{word:.80}: {error}")
            continue
        if name in words and words[name] != value:
            faults.append(f"{word}: {name} is specified twice ({words[name]} and {value}).")
        words[name] = value
    if faults:
        raise PlanError(f"plan {shown(text, 120)} is invalid:", faults=faults)
    return words


def words_in(plan: Mapping[str, Any]) -> dict[str, object]:
    """The choices that a mapping makes, `{"tp": 8, "zero": 1}` in Python or as a file; None says nothing."""
    words: dict[str, object] = {}
    faults = []
    for name, value in plan.items():
        if name not in _READERS:
            faults.append(f"{str(name)[:40]}: unknown plan keyword.{hint(name, _READERS)}")
        elif value is not None:
            try:
                words[name] = _READERS[name](value)
            except InputError as error:
                faults.append(f"{name}: {error}")
    if faults:
        raise PlanError("the plan is invalid:", faults=faults)
    return words


def _read(word: str) -> tuple[str, object]:
    """The field of `Words` that a word sets, and to what."""
    if len(word) > LONGEST_WORD:
        raise PlanError("too long.")
    lowered = word.lower()
    name, is_option, text = lowered.partition("=")
    if is_option:
        return _option(name, text)
    if lowered in FLAGS:
        return "sp", FLAGS[lowered]
    if lowered in SCHEDULES:
        return "schedule", lowered
    if degree := numbered(lowered):
        name, count = degree
        return name, _READERS[name](count)
    if lowered in NUMBERED:
        raise PlanError(f"needs a number, such as {word}{1 if lowered == 'zero' else 8}.")
    options = (f"{option}=" for option in OPTIONS)
    known = [*DEGREES, *FLAGS, *SCHEDULES, "zero1", "zero2", "zero3", *options]
    raise PlanError(f"unknown keyword.{remedy(lowered, known)}")


def _option(name: str, text: str) -> tuple[str, object]:
    if name == "cp" and not text.isdecimal():
        return "exchange", _READERS["exchange"](text)
    if name not in (*NUMBERED, "sp", *OPTIONS):
        raise PlanError(f"unknown option.{hint(name, OPTIONS)}")
    value: object = _number(text)
    if name == "sp":
        value = _SWITCHED.get(text, text)
    elif name == "layers":  # the first and the last stage may hold none beside their ends
        value = [_number(part) for part in text.split(",")]
    return name, _READERS[name](value)


def value_of(word: str, name: str, text: str) -> Any:
    """What an option of a plan is set to; `word` is how it was said."""
    try:
        return _READERS[name](text) if name == "exchange" else _option(name, text.lower())[1]
    except InputError as error:
        raise PlanError(f"{word:.80}: {error}") from None


def _number(text: str) -> int | str:
    """The number that a text is; longer ones cannot be counts, and take long to read."""
    return int(text) if text.isdecimal() and len(text) < 20 else text


# --- what each word may be set to, in texts and in mappings -----------------------------------------------


def _count(limit: Limit) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not limit.allows(value):
            raise PlanError(limit.fault(value))
        return int(value)

    return read


def _zero(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 3:
        raise PlanError(f"{shown(value)} is not a stage: the ZeRO stage must be 0 to 3.")
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise PlanError(f"{shown(value)} is not true or false.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{shown(value)} is not a word, such as none, selective or full.")
    return value.lower()


def _one_of(known: Collection[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            is_schedule = known is SCHEDULES and isinstance(value, str)
            near = remedy(value) if is_schedule else did_you_mean(value, known)
            raise PlanError(f"{shown(value)} is not one of {', '.join(known)}.{near}")
        return str(value)

    return read


def _names(separator: str, known: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    def read(value: Any) -> tuple[str, ...]:
        parts = value.replace("+", separator).split(separator) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise PlanError(f"{shown(value)} is not a list of {', '.join(known)}.")
        return tuple(_one_of(known)(part) for part in parts)

    return read


def _layers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise PlanError(f"{shown(value)} is not a list of layers per stage, such as [8, 8].")
    wrong = [n for n in value if not (n == 0 or LAYERS.allows(n))]
    if wrong:
        raise PlanError(f"{shown(wrong[0])} is not a whole number of layers up to {LAYERS.most:,}.")
    return tuple(int(n) for n in value)


def _size(value: Any) -> float:
    unit = value.upper().replace("IB", "iB") if isinstance(value, str) else value
    size = parse_bytes(unit)
    if not BUCKET.allows(size):
        bounds = f"{BUCKET.least:g} to {BUCKET.most:g} bytes"
        raise PlanError(f"{shown(value)}: buckets of gradients have {bounds}.")
    return size


def _order(value: Any) -> tuple[str, ...]:
    axes = _names("-", ("tp", "cp", "dp", "pp", "ep"))(value)
    _expect_axes(axes)
    return axes


_READERS: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "dp", "etp", "vpp", "shard"), _count(DEVICES)),
    "micro": _count(MICRO_BATCH),
    "zero": _zero,
    "sp": _switch,
    "schedule": _one_of(SCHEDULES),
    "recompute": _text,
    "offload": _names(",", OFFLOADS),
    "exchange": _one_of(EXCHANGES),
    "tables": _one_of(_CHOICES["tables"]),
    "buckets": _size,
    "layers": _layers,
    "order": _order,
}
"""One for every word, which a test holds against `Words`."""


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
        parts = f"layers= lists {len(words.layers)} parts but"
        if kind.chunks.start > 1 and len(kind.chunks) == 1:  # nobody had to say vpp
            parts += f" {kind.name} has {chunks} chunks per stage:"
        else:
            parts += f" pp {words.pp} x vpp {chunks} = {words.pp * chunks}:"
        raise PlanError(f"{parts} list {words.pp * chunks} parts, in the order of the model.")
    return Schedule(
        kind=kind.name,
        micro_batch=words.micro or 1,
        stages=words.pp,
        chunks=chunks,
        layers=words.layers,
    )
