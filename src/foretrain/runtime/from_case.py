"""From the words of a case (`runtime`, `runtime_options`) to a `Runtime`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from foretrain.errors import RuntimePresetError, did_you_mean
from foretrain.runtime.runtime import Runtime, folded, names, preset_file, presets, runtime

MIB = float(1 << 20)
FALLBACK = "generic"


def runtime_from_case(
    name: str | None, options: Mapping[str, Any] | None = None
) -> tuple[Runtime, list[str], list[str]]:
    """The runtime, the assumptions made and the warnings to show.

    Unknown software is answered with the nearest preset and a warning. Null switches follow the preset;
    those that matter are listed as assumptions. Switches that only tell where a run is from are passed over; what no
    one knows is told by `unknown_options`.
    """
    given = spelled(options or {})
    preset, warnings = _preset(name)
    preset = _told(preset, given)
    faults = list(_unusable(given))
    if faults:
        raise RuntimePresetError("runtime_options cannot be used:", faults=faults)
    changes = _changes(preset, given)
    chosen = preset.with_options(changes)
    given = {key: value for key, value in given.items() if value is not None}
    return chosen, _assumptions(name, chosen, given), [*warnings, *_unknown_values(given)]


def spelled(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The switches under the names of the table; one given under both names counts as the table spells it."""
    names_of = {
        spelling: key
        for key, spellings in preset_file()["spellings"].items()
        for spelling in spellings
    }
    renamed = {names_of[key]: value for key, value in options.items() if key in names_of}
    stated = {k: v for k, v in options.items() if k not in names_of and v is not None}
    return {**options, **renamed, **stated}


def as_released(
    stack: Runtime,
    options: Mapping[str, Any],
    architectures: Iterable[str],
    model: Mapping[str, Any],
) -> tuple[Runtime, list[str]]:
    """The stack as the release that a case's container names ran on these devices, and what is said about it."""
    found = re.search(r"(\d\d\.\d\d)", str(options.get("container") or ""))
    values = model.get("v_head_dim")
    keys = (model.get("qk_nope_head_dim") or 0) + (model.get("qk_rope_head_dim") or 0)
    heads = "unequal" if values and keys and values != keys else "equal"
    said: list[str] = []
    for row in preset_file()["lacks"]:
        is_old = found is not None and found[1] < row["before"] and stack.name in row["runtimes"]
        is_here = {*architectures} & {*row.get("architectures", architectures)}
        if is_old and is_here and heads == row.get("heads", heads):
            stack = stack.with_options(row["sets"])
            said += [
                f"{key}: {value}, for {stack.name} before {row['before']} had nothing else."
                for key, value in row["sets"].items()
            ]
    return stack, said


def unknown_options(options: Mapping[str, Any], others: Iterable[str] = ()) -> list[str]:
    """A warning for each stated switch that nothing here or among `others` answers to."""
    data = preset_file()
    answered = ("options", "mebibytes", "milliseconds", "unmodelled", "tells", "no_effect")
    known = {key for part in answered for key in data[part]} | {*others}
    known |= {name for names in data["spellings"].values() for name in names}
    return [
        f"runtime_options.{key}: not known and ignored.{did_you_mean(key, known)}"
        for key, value in options.items()
        if value is not None and key not in known
    ]


def is_known(name: str | None) -> bool:
    """Whether a preset is meant by this name, rather than the nearest or the generic one taken for it."""
    return bool(name) and names().get(folded(str(name)), FALLBACK) != FALLBACK


def task_of(options: Mapping[str, Any]) -> Mapping[int, int]:
    """Full length to mean length of a task's samples, where software does not pad them."""
    found: Mapping[int, int] = preset_file()["lengths"].get(str(options.get("task")), {})
    return found


def nearest(name: str) -> str:
    """The preset whose name or alias is contained in `name`, else the most similar one, else the generic."""
    wanted = folded(name)
    known = names()
    inside = [alias for alias in known if f"-{alias}-" in f"-{wanted}-"]
    if inside:
        return known[max(inside, key=lambda alias: (len(alias), alias))]
    close = difflib.get_close_matches(wanted, list(known), n=1, cutoff=0.6)
    return known[close[0]] if close else FALLBACK


def _preset(name: str | None) -> tuple[Runtime, list[str]]:
    if not name:
        return presets()[FALLBACK], []
    if folded(name) in names():
        return runtime(name), []
    taken = nearest(name)
    return presets()[taken], [
        f"runtime {name!r} is not known; the preset {taken!r} stands in for it."
    ]


def _told(preset: Runtime, options: Mapping[str, Any]) -> Runtime:
    """The stack that a switch gives away, where it is more than the preset's name says."""
    for tell, stands_for in preset_file()["tells"].items():
        key, _, word = tell.partition("=")
        value = options.get(key)
        is_told = value is not None and word in ("", str(value).lower())
        if is_told and preset.name in stands_for:
            return presets()[stands_for[preset.name]]
    return preset


def _changes(preset: Runtime, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the stated switches set."""
    data = preset_file()
    changes: dict[str, Any] = {}
    for key, value in options.items():
        if value is None:
            continue
        if key in data["mebibytes"]:
            changes |= _bucket(preset, float(value) * MIB)
        elif key in data["milliseconds"]:
            changes[data["milliseconds"][key]] = float(value) * 1e-3
        elif key in data["options"]:
            changes |= data["options"][key].get(_word(value, data["options"][key])) or {}
    return _kept_from_preset(preset, changes)


def _kept_from_preset(preset: Runtime, changes: dict[str, Any]) -> dict[str, Any]:
    """A switch that says "on" does not overrule what the preset knows better.

    Its own share of hidden communication, and a host that is quicker than compiled PyTorch.
    """
    if changes.get("expert_overlap") and preset.expert_overlap:
        del changes["expert_overlap"]
    if "host_seconds_per_kernel" in changes:
        stated = changes["host_seconds_per_kernel"]
        changes["host_seconds_per_kernel"] = min(stated, preset.host_seconds_per_kernel)
    return changes


def _bucket(preset: Runtime, size: float) -> dict[str, Any]:
    """A stated bucket size; a smaller first bucket stays as it is."""
    keeps_first = preset.first_bucket_bytes < preset.bucket_bytes
    first = min(preset.first_bucket_bytes, size) if keeps_first else size
    return {"bucket_bytes": size, "first_bucket_bytes": first}


def _word(value: object, table: Mapping[Any, Any] = MappingProxyType({})) -> str | bool:
    """The value as the table of a switch spells it."""
    word: str | bool = value if isinstance(value, bool) else str(value).lower().replace("-", "_")
    if word in table or True not in table:
        return word
    return {"yes": True, "on": True, "true": True, "1": True, "no": False, "off": False,
            "false": False, "none": False, "0": False}.get(str(word), word)  # fmt: skip


def _unusable(options: Mapping[str, Any]) -> Iterator[str]:
    kinds = dict.fromkeys(preset_file()["mebibytes"], ("a size", "MiB"))
    kinds |= dict.fromkeys(preset_file()["milliseconds"], ("a time", "ms"))
    for key, (kind, unit) in kinds.items():
        value = options.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < float("inf")):
            yield f"runtime_options.{key}: {value!r} is not {kind}; give a positive number of {unit}."


def _unknown_values(options: Mapping[str, Any]) -> Iterator[str]:
    for key, table in preset_file()["options"].items():
        value = options.get(key)
        if value is not None and _word(value, table) not in table:
            known = ", ".join(str(word).lower() for word in table)
            yield f"runtime_options.{key}: {value!r} is not known ({known}); the preset's choice stays."


def _assumptions(name: str | None, chosen: Runtime, options: Mapping[str, Any]) -> list[str]:
    data = preset_file()
    lines = [] if name else [f"runtime not given; the preset {FALLBACK!r} is used."]
    for key, field in data["answered_by_preset"].items():
        if options.get(key) is None:
            lines.append(
                f"{key} not given; the runtime {chosen.name!r} has {field} = {getattr(chosen, field)}."
            )
    for key, reason in data["unmodelled"].items():
        if options.get(key) is not None:
            lines.append(f"{key} = {options[key]} is not modelled: {reason}.")
    return lines
