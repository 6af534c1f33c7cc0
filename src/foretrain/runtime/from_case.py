"""From the words of a case (`runtime`, `runtime_options`) to a `Runtime`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from foretrain.errors import RuntimePresetError
from foretrain.runtime.runtime import Runtime, folded, names, preset_file, presets, runtime

MIB = float(1 << 20)
FALLBACK = "generic"


def runtime_from_case(
    name: str | None, options: Mapping[str, Any] | None = None
) -> tuple[Runtime, list[str], list[str]]:
    """The runtime, the assumptions made and the warnings to show.

    Unknown software is answered with the nearest preset and a warning. Null switches follow the preset;
    those that matter are listed as assumptions. Switches of no consequence here are passed over.
    """
    given = options or {}
    preset, warnings = _preset(name)
    preset = _told(preset, given)
    faults = list(_unusable(given))
    if faults:
        raise RuntimePresetError("runtime_options cannot be used:", faults=faults)
    changes = _changes(preset, given)
    chosen = preset.with_options(changes)
    return chosen, _assumptions(name, chosen, given), [*warnings, *_unknown_values(given)]


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
    for key, stands_for in preset_file()["tells"].items():
        if options.get(key) is not None and preset.name in stands_for:
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
            changes |= data["options"][key].get(_word(value)) or {}
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


def _word(value: object) -> str | bool:
    """The value as the table of switches spells it."""
    return value if isinstance(value, bool) else str(value).lower().replace("-", "_")


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
        if value is not None and _word(value) not in table:
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
