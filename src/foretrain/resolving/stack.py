"""The software stack of a request: a preset, the switches that were said, and what the devices make of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from foretrain.cluster.cluster import Cluster
from foretrain.errors import RuntimePresetError, did_you_mean, joined
from foretrain.limits import shown
from foretrain.model.graph import Model
from foretrain.model.ops import family
from foretrain.plan.facts import family_of
from foretrain.resolving.defaults import stack_for
from foretrain.resolving.lora import SWITCHES
from foretrain.resolving.request import Notes, Request
from foretrain.runtime import (
    RENAMED,
    Runtime,
    folded,
    names,
    option_table,
    preset_file,
    presets,
    releases,
    runtime,
)

MIB = float(1 << 20)
OF_MODELS = (
    "max_predictions", "task", "float8", "moe_capacity_factor", "mtp", "mtp_layers", *SWITCHES,
)  # fmt: skip
"""Switches that the model answers to (`resolving.work`, `resolving.lora`)."""
_AS_THE_DEVICE_HAS_IT = (None, "auto", "fused", "te", "transformer_engine")
_SINCE_HOPPER = ("hopper", "blackwell", "blackwell-ultra")
_NOTHING = (False, "none", "false", "0", "", "[]")
_BLACKWELL = {"blackwell", "blackwell-ultra"}
_INVALID = "invalid runtime options:"


@dataclass(frozen=True, slots=True)
class Stack:
    """The software as it runs on these devices; `is_known` unless a preset stands in for it."""

    runtime: Runtime
    options: Mapping[str, Any]  # that were said, under the names of the table
    is_known: bool


def stack_of(
    request: Request,
    model: Model,
    cluster: Cluster,
    said: Mapping[str, object],
    precision: str,
    notes: Notes,
) -> Stack:
    """`said`: the words of the plan; `precision`: the number format by name."""
    _compare_spellings(request.runtime_options, notes)
    given = spelled(request.runtime_options)
    preset, is_known = _preset(request, model, cluster, said, notes)
    if notes.strict:
        _note_labels(given, notes)
    given, errors = _understood(given, notes)
    preset = _with_stated(preset, given, notes)
    try:
        chosen = preset.with_options(_changes(preset, given, notes))
    except RuntimePresetError as error:
        raise joined(_INVALID, (*errors, error)) from None
    if errors:
        raise joined(_INVALID, errors)
    chosen, why = _with_attention(chosen, given.get("attention"), cluster, precision)
    chosen = _as_released(chosen, given, cluster, model, notes)
    _assume(chosen, given, {"attention": why}, model, cluster, notes)
    return Stack(_on_devices(chosen, cluster, given), given, is_known)


def _on_devices(stack: Runtime, cluster: Cluster, options: Mapping[str, Any]) -> Runtime:
    """Matrix units of Blackwell read FP8 operands in either order, so weights need no second, transposed copy
    (NVIDIA Transformer Engine: non-TN FP8 GEMMs), unless an option says that there is one."""
    kinds = {device.architecture for device in cluster.devices}
    is_open = "keeps_transposed" not in options
    if is_open and kinds <= _BLACKWELL and stack.memory.keeps_transposed:
        return stack.with_features({"memory": {"keeps_transposed": False}})
    return stack


def spelled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The switches under the names of the table, those that say nothing left out; one given under both names counts
    as the table spells it."""
    names_of = _spellings()
    stated = {key: value for key, value in options.items() if value is not None}
    renamed = {names_of[key]: value for key, value in stated.items() if key in names_of}
    return {**renamed, **{key: value for key, value in stated.items() if key not in names_of}}


def _spellings() -> dict[str, str]:
    """The table's name of every other spelling, and the name today of fields that had another."""
    rows = preset_file()["spellings"].items()
    renamed = {old: new for old, new in RENAMED.items() if new in _named_fields()}
    return renamed | {spelling: key for key, spellings in rows for spelling in spellings}


def _compare_spellings(options: Mapping[str, Any], notes: Notes) -> None:
    """One switch under two names, with two values."""
    taken = spelled(options)
    for key, value in options.items():
        name = _spellings().get(key)
        if name is None or value is None or _word(value) == _word(taken[name]):
            continue
        same = [one for one in options if (_spellings().get(one) or one) == name]
        other = next(one for one in same if options[one] is taken[name])
        used = f"{other} = {shown(taken[name])}"
        notes.contradiction(f"{key} = {shown(value)}", used, used)


# --- which stack --------------------------------------------------------------------------------------


def _preset(
    request: Request,
    model: Model,
    cluster: Cluster,
    said: Mapping[str, object],
    notes: Notes,
) -> tuple[Runtime, bool]:
    asked = request.runtime
    if isinstance(asked, Runtime):
        return asked, True
    if asked is None:
        name, because = stack_for(model, cluster, said, request.target)
        notes.assume(f"runtime {name}", because, "--runtime")
        return presets()[name], True
    row = preset_file()["work_words"]["rollout"]
    if any(f"-{word}-" in f"-{folded(asked)}-" for word in preset_file()["work_runtimes"]):
        raise RuntimePresetError(
            f"runtime {asked!r}: {row['is']}, which is not supported. {row['remedy']}"
        )
    if notes.strict or folded(asked) in names():
        return runtime(asked), names().get(folded(asked)) != preset_file()["fallback"]
    taken = nearest(asked)
    notes.warn(f"runtime {asked!r} is unknown; falling back to preset {taken!r}.")
    return presets()[taken], False


def preset_of(name: str) -> Runtime:
    """The preset that a run's software is, or the nearest."""
    return presets()[nearest(name)]


def nearest(name: str) -> str:
    """The preset whose name or alias is contained in `name`, else the most similar one, else the generic."""
    wanted = folded(name)
    known = names()
    if wanted in known:
        return known[wanted]
    inside = [alias for alias in known if f"-{alias}-" in f"-{wanted}-"]
    if inside:
        return known[max(inside, key=lambda alias: (len(alias), alias))]
    close = difflib.get_close_matches(wanted, list(known), n=1, cutoff=0.6)
    return known[close[0]] if close else str(preset_file()["fallback"])


def _with_stated(preset: Runtime, options: Mapping[str, Any], notes: Notes) -> Runtime:
    """The stack that a switch gives away, where it is more than the preset's name says."""
    for tell, stands_for in preset_file()["tells"].items():
        key, _, word = tell.partition("=")
        value = options.get(key)
        is_told = value is not None and word in ("", str(value).lower())
        if is_told and preset.name in stands_for:
            meant = stands_for[preset.name]
            why = f"{preset.name} with {key}={shown(value)}"
            notes.assume(f"runtime {meant}", why, f"--set {key}=…")
            return presets()[meant]
    return preset


# --- switches -----------------------------------------------------------------------------------------


def _changes(preset: Runtime, options: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """The fields that the stated switches set. Fields may be named themselves, too, and are then the last word."""
    changes: dict[str, Any] = {}
    setters: dict[str, str] = {}
    for key in options:
        for field, value in _set_by(preset, key, options[key]).items():
            if field in changes and changes[field] != value:
                one, other = (f"{k} = {shown(options[k])}" for k in (setters[field], key))
                notes.contradiction(one, other, other)
            changes[field], setters[field] = value, key
    fields = _named_fields()
    named = {fields[key]: options[key] for key in options if key in fields}
    for field in named.keys() & changes.keys():
        if setters[field] in option_table() and setters[field] != field:
            continue  # the switch is a field's own and but implies this one
        # another number is a finer word for the same; on and off are not
        if (_word(named[field]) in _NOTHING or named[field] == 0) == bool(changes[field]):
            key = setters[field]
            one, other = f"{key} = {shown(options[key])}", f"{field} = {shown(named[field])}"
            notes.contradiction(one, other, other)
    return changes | named


def _set_by(preset: Runtime, key: str, value: Any) -> dict[str, Any]:
    data = preset_file()
    if key in data["mebibytes"]:
        return preset.gradients.buckets_of(float(value) * MIB)
    if key in data["milliseconds"]:
        return {data["milliseconds"][key]: float(value) * 1e-3}
    if key in data["options"]:
        return _kept(preset, data["options"][key].get(_word(value, data["options"][key])) or {})
    return {}


def with_switch(stack: Runtime, key: str, value: Any) -> Runtime:
    """A stack with one switch more, as a question that names it has it."""
    return stack.with_options(_set_by(stack, key, value) or {key: value})


def _named_fields() -> dict[str, str]:
    """Words that set one field: its name, unless a switch has it, which may set more; then the name it had before."""
    data = preset_file()
    switches = {key for table in ("mebibytes", "milliseconds", "options") for key in data[table]}
    before = {old: new for old, new in RENAMED.items() if new in switches}
    return {name: name for name in option_table() if name not in switches} | before


def fields_set(key: str, value: Any) -> tuple[str, ...]:
    """The fields that a switch of the table is about."""
    table = preset_file()["options"].get(key)
    if table is not None:
        return tuple(table.get(_word(value, table)) or ())
    named = _named_fields()
    return (named[key],) if key in named else ()


def _kept(preset: Runtime, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A switch that says "on" does not overrule what the preset knows better: its own share of hidden
    communication, and a host that is quicker than compiled PyTorch."""
    kept = dict(changes)
    if kept.get("expert_overlap") and preset.expert_parallel.expert_overlap:
        del kept["expert_overlap"]
    if "host_seconds_per_kernel" in kept:
        stated = kept["host_seconds_per_kernel"]
        kept["host_seconds_per_kernel"] = min(stated, preset.host.host_seconds_per_kernel)
    return kept


def _word(value: object, table: Mapping[Any, Any] = MappingProxyType({})) -> str | bool:
    """The value as the table of a switch spells it."""
    word: str | bool = value if isinstance(value, bool) else str(value).lower().replace("-", "_")
    if word in table or True not in table:
        return word
    return {"yes": True, "on": True, "true": True, "1": True, "no": False, "off": False,
            "false": False, "none": False, "0": False}.get(str(word), word)  # fmt: skip


def _unusable(options: Mapping[str, Any]) -> dict[str, str]:
    """Sizes and times that are none."""
    kinds = dict.fromkeys(preset_file()["mebibytes"], ("a size", "MiB"))
    kinds |= dict.fromkeys(preset_file()["milliseconds"], ("a time", "ms"))
    faults = {}
    for key, (kind, unit) in kinds.items():
        value = options.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < float("inf")):
            faults[key] = f"{key}: {value!r} is not {kind}; must be a positive number of {unit}."
    return faults


def _unmodelled(options: Mapping[str, Any]) -> dict[str, str]:
    """Switches that change what is computed, not how: they are understood or refused, never passed over."""
    rows = preset_file()["work"]
    parts = preset_file()["work_words"]
    known = known_options()
    faults = {}
    for key, value in options.items():
        row = rows.get(key)
        if row is None and key not in known:
            row = next((parts[part] for part in parts if part in key.lower()), None)
        if row is None or _word(value) in (*row.get("same", ()), *_NOTHING):
            continue
        faults[key] = f"{key} = {value}: {row['is']}, which is not supported. {row['remedy']}"
    return faults


def _said_elsewhere(options: Mapping[str, Any]) -> dict[str, str]:
    """Words that another option says: here they would change nothing."""
    data = preset_file()
    faults = {
        key: f"{key} = {shown(options[key])}: not an option of the runtime. Use {where}."
        for key, where in data["elsewhere"].items()
        if key in options
    }
    task = options.get("task")
    if task is not None and str(task).lower() not in map(str.lower, data["lengths"]):
        known = ", ".join(data["lengths"])
        faults["task"] = f"task = {shown(task)}: unknown task. Known: {known}."
    return faults


def labels() -> tuple[str, ...]:
    """Switches that only tell where a run comes from."""
    return tuple(preset_file()["no_effect"])


def _note_labels(options: Mapping[str, Any], notes: Notes) -> None:
    for key in labels():
        if key in options:
            notes.warn(
                f"{key} = {shown(options[key])} has no effect: it only says where a run comes from."
            )


def _understood(
    options: Mapping[str, Any], notes: Notes
) -> tuple[dict[str, Any], list[RuntimePresetError]]:
    """The switches that something here answers to, so that what is said to be ignored is; and what is wrong with
    the others, as far as it is a mistake."""
    unusable, unmodelled, unknown = _unusable(options), _unmodelled(options), _unknown(options)
    mistakes = dict(unusable)
    if notes.strict:
        mistakes |= _said_elsewhere(options) | unknown
    else:
        for key in unknown:
            notes.unknown_switch(f"runtime_options.{key} = {options[key]}: unknown; ignored.")
    mistakes = {key: fault for key, fault in mistakes.items() if key not in unmodelled}
    told = {"unsupported training workload:": unmodelled, _INVALID: mistakes}
    errors = [
        RuntimePresetError(title, faults=told[title].values()) for title in told if told[title]
    ]
    left_out = unknown.keys() | unmodelled.keys() | mistakes.keys()
    return {key: value for key, value in options.items() if key not in left_out}, errors


def _unknown(options: Mapping[str, Any]) -> dict[str, str]:
    """Words, and values of words, that nothing here answers to."""
    faults = {
        key: f"{key}: unknown option.{did_you_mean(key, known_options())}"
        for key in options
        if key not in known_options()
    }
    for key, table in preset_file()["options"].items():
        value = options.get(key)
        if value is not None and _word(value, table) not in table:
            known = [str(word).lower() for word in table]
            near = did_you_mean(str(value), known) or f" Known: {', '.join(known)}."
            faults[key] = f"{key}: {value!r} is not a valid value.{near}"
    return faults


def known_options() -> frozenset[str]:
    """Every switch and field that a request may set."""
    data = preset_file()
    parts = (
        "options",
        "mebibytes",
        "milliseconds",
        "unmodelled",
        "dates",
        "no_effect",
        "work",
        "elsewhere",
    )
    tells = {tell.partition("=")[0] for tell in data["tells"]}
    return frozenset(
        {key for part in parts for key in data[part]}
        | tells
        | {*OF_MODELS}
        | {*option_table()}
        | {*_named_fields()}
    )


def is_switch(key: str) -> bool:
    """Whether a request may set it, under any spelling, or is told why not."""
    data = preset_file()
    is_work = any(part in key.lower() for part in data["work_words"])
    return is_work or key in known_options() or key in _spellings()


def _assume(
    chosen: Runtime,
    options: Mapping[str, Any],
    reasons: Mapping[str, str],
    model: Model,
    cluster: Cluster,
    notes: Notes,
) -> None:
    """What the preset answers where a switch that matters was not set; `reasons` where there is more to say."""
    data = preset_file()
    for key, row in data["answered_by_preset"].items():
        is_asked = row.get("for") in (None, family_of(model))
        is_asked &= cluster.device_count >= row.get("devices", 1)
        if is_asked and not {key, row["field"]} & options.keys():
            value = chosen.option(row["field"])
            word = {True: "on", False: "off"}.get(value, value)
            why = reasons.get(key) or f"{chosen.name} default"
            change = row.get("stopped_by", key) if value is True else key
            notes.assume(f"{row['title']} {word}", why, f"--set {change}=…")
        is_refused = key in options and _word(options[key]) in _NOTHING
        if is_refused and "stopped_by" in row and chosen.option(row["field"]):
            own = f"{chosen.name} has {row['title']} of its own"
            notes.warn(f"{key} = false has no effect: {own}. Use --set {row['stopped_by']}=false.")
    for key, reason in data["unmodelled"].items():
        if key in options and _word(options[key]) not in _NOTHING:
            notes.warn(f"{key} = {options[key]} is not modeled: {reason}.")


# --- what the devices make of it ------------------------------------------------------------------------


def _with_attention(
    stack: Runtime, stated: object, cluster: Cluster, precision: str
) -> tuple[Runtime, str]:
    """Where attention is left open: fused kernels are for 16-bit precision on devices of Ampere's time and later
    (FlashAttention README), those that know bf16; since Hopper some stacks prefer another kernel. Also why."""
    is_able = all(device.peak("bf16") for device in cluster.devices)
    is_wide = precision in ("fp32", "tf32")
    if stack.kernels.attention == "unfused":
        return stack, ""
    if stated is None and (is_wide or not is_able):
        why = "16-bit precision" if is_wide else "a device with bf16"
        unfused = stack.with_features({"kernels": {"attention": "unfused"}})
        return unfused, f"fused kernels need {why}"
    if (
        stated in _AS_THE_DEVICE_HAS_IT
        and stack.kernels.attention_since_hopper
        and all(device.architecture in _SINCE_HOPPER for device in cluster.devices)
    ):
        word = stack.kernels.attention_since_hopper
        newer = stack.with_features({"kernels": {"attention": word}})
        return newer, f"{stack.name} default on Hopper and later"
    return stack, ""


def on_other_devices(stack: Runtime, here: Cluster, there: Cluster, precision: str) -> Runtime:
    """A stack that was resolved for one cluster as it runs on another; attention that is not as usual was asked for."""
    preset = presets().get(stack.name)
    if preset is not None:
        usual, other = (
            _with_attention(preset, None, cluster, precision)[0].kernels.attention
            for cluster in (here, there)
        )
        if stack.kernels.attention == usual:
            stack = stack.with_features({"kernels": {"attention": other}})
    return _on_devices(stack, there, {})


def _as_released(
    stack: Runtime, options: Mapping[str, Any], cluster: Cluster, model: Model, notes: Notes
) -> Runtime:
    """The stack as the release that a container is named after ran on these devices."""
    dated = re.search(r"(\d\d\.\d\d)", str(options.get("container") or ""))
    architectures = {device.architecture for device in cluster.devices}
    for row in () if dated is None else releases(stack.name):
        is_old = dated is not None and dated[1] < row["before"]
        is_here = architectures & {*row.get("architectures", architectures)}
        if is_old and is_here and _heads(model) == row.get("heads", _heads(model)):
            sets = row.get("sets", {})
            stack = _with_rules(stack.with_options(sets), row.get("rules", {}))
            for key, value in sets.items():
                why = f"{stack.name} before {row['before']} supports nothing else"
                notes.assume(f"{key} {value}", why, "another container")
    return stack


def _with_rules(stack: Runtime, rules: Mapping[str, str]) -> Runtime:
    """The stack with further rules of what it can run."""
    every = {**dict(stack.supported_plans.rules), **rules}
    return stack.with_features({"supported_plans": {"rules": tuple(every.items())}})


def _heads(model: Model) -> str:
    """Whether values have heads of another width than keys, as in latent attention."""
    widths = {family(op).head_widths(op) for _, op in model.ops()} - {None}
    return "equal" if all(one is None or one[0] == one[1] for one in widths) else "unequal"
