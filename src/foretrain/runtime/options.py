"""What a field of a Runtime may be set to: its words, or its range, in one table for every reader of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.errors import InputError, hint
from foretrain.limits import Range, shown
from foretrain.units import parse_bytes, parse_seconds

PURPOSES = (
    "tensor",
    "context",
    "expert",
    "data",
    "pipeline",
    "embedding",
    "halo",
    "reshard",
    "weights",
)
"""What communication serves."""

WORDS = {
    "attention": ("flash", "flash3", "triton", "flash1", "cudnn", "unfused"),
    "attention_since_hopper": ("", "flash", "flash3", "cudnn"),
    "library": ("nccl", "nccl-pods", "gloo", "mpi"),
    "rotary": ("halves", "complex", "matrices", "copies"),
    "selective": ("attention", "products", "blocks"),
    "synchronises_at": ("gradient", "forward", "adapted"),
}
_SYNCHRONISES = (
    "all_reduce", "neighbour_all_reduce", "inner_outer_all_reduce",
    "hierarchical_neighbour_all_reduce", "parameter_server",
)  # fmt: skip
_QUANTISED = ("fp8", "mxfp8", "nvfp4")
_AXES = ("pp", "dp", "cp", "tp")

_SHARE = Range(0.0, 1.0)
_COPIES = Range(0.0, 100.0)
_HOST = Range(0.0, 1.0)  # seconds: a thousand times the slowest host there is
_SIZE = Range(1.0, 1e15)  # bytes

# Wide enough for any stack there was, and for what-ifs far from it; products of two of them stay finite.
RANGES: Mapping[str, Range] = {
    "aligned_to": Range(1, 4096),
    "kernel_pace": Range(0.01, 100.0),
    "host_seconds_per_kernel": _HOST,
    "host_seconds_per_collective": _HOST,
    "jitter_seconds": Range(0.0, 60.0),
    "update_passes": Range(0.0, 1000.0),
    "kernels_per_tensor": Range(0.0, 10_000.0),
    "host_delay_on_network": _HOST,
    "bucket_bytes": _SIZE,
    "first_bucket_bytes": _SIZE,
    "exchange_share": _SHARE,
    "prefetched_blocks": Range(0, 10_000),
    "calls_per_part": Range(0.0, 10_000.0),
    "splits_from": Range(0.0, 1e15),
    "replicates_from": Range(0.0, 1e15),
    "expert_overlap": _SHARE,
    "cycle_seconds": Range(0.0, 60.0),
    "fusion_copies": _COPIES,
    "negotiation_rounds": Range(0.0, 1000.0),
    "negotiation_seconds_per_hop": _HOST,
    "negotiation_seconds_per_rank": _HOST,
    "gradient_bytes": Range(0.5, 1000.0),
    "reducer_copies": _COPIES,
    "staging_buckets": Range(0.0, 10_000.0),
    "update_copies": _COPIES,
    "context_bytes": Range(0.0, 1e15),
    "fragmentation": _SHARE,
    "exchange_fragmentation": _SHARE,
    "logits_copies": _COPIES,
    "pads_vocabulary_to": Range(1, 2**20),
}


def usable(name: str, value: Any, kind: str) -> Any:
    """The value in its field's type, or an InputError that says what the field takes."""
    if name in WORDS:
        if value not in WORDS[name]:
            raise InputError(
                f"{shown(value)} is not one of {', '.join(filter(None, WORDS[name]))}."
            )
        return value
    if name in _READERS:
        return _READERS[name](value)
    if kind == "bool":
        if not isinstance(value, bool):
            raise InputError(f"{shown(value)} is not true or false.")
        return value
    if value is None and "None" in kind:
        return None
    return _number(name, value, is_whole=kind == "int")


def _number(name: str, value: Any, *, is_whole: bool) -> float:
    if isinstance(value, bool):
        raise InputError(f"{value!r} is not a number.")
    # plain numbers pass; sizes may carry a unit
    number = parse_seconds(value) if "seconds" in name else parse_bytes(value)
    allowed = RANGES[name]
    if not allowed.allows(number) or (is_whole and not number.is_integer()):
        what = "a whole number" if is_whole else "a number"
        raise InputError(
            f"{shown(value)} must be {what} from {_shown(allowed.least)} to {_shown(allowed.most)}."
        )
    return int(number) if is_whole else number


def _shown(bound: float) -> str:
    return f"{bound:,.0f}" if 1 <= bound < 1e9 and float(bound).is_integer() else f"{bound:g}"


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """`{"all_reduce": "tree"}`, or as text `all_reduce:tree,all_to_all:bruck`."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(k), str(v)) for k, v in value.items()))
    if isinstance(value, tuple) and all(isinstance(v, tuple) and len(v) == 2 for v in value):
        return tuple(sorted((str(k), str(v)) for k, v in value))
    words = [word.strip() for word in str(value).split(",") if word.strip()]
    if not all(":" in word for word in words):
        raise InputError(f"{shown(value)}: write name:value, such as all_reduce:tree.")
    return tuple(sorted((w.partition(":")[0], w.partition(":")[2]) for w in words))


def _priorities(value: Any) -> tuple[tuple[str, float], ...]:
    return tuple((purpose, _priority(purpose, word)) for purpose, word in _pairs(value))


def _priority(purpose: str, word: str) -> float:
    if purpose not in PURPOSES:
        raise InputError(f"{purpose!r} is not a purpose.{hint(purpose, PURPOSES)}")
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not 1e-3 <= number <= 1e3:
        raise InputError(f"{word!r} must be a number from 0.001 to 1000.")
    return number


def _listed(value: Any, separator: str) -> tuple[str, ...]:
    words = value.split(separator) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{shown(value)} is not a list of names.")
    return tuple(word.strip() for word in words if word.strip())


def _quantised(value: Any) -> tuple[str, ...]:
    words = _listed(value, ",")
    for word in words:
        if word not in _QUANTISED:
            raise InputError(f"{word!r} is not one of {', '.join(_QUANTISED)}.")
    return words


def _rank_order(value: Any) -> tuple[str, ...]:
    words = _listed(value, "-")
    if sorted(word for word in words if word != "ep") != sorted(_AXES) or words.count("ep") > 1:
        raise InputError(
            f"{shown(value)} must contain each of pp, dp, cp and tp once, outermost first, such as "
            f"{'-'.join(_AXES)}."
        )
    return words


def _collective(value: Any) -> str:
    """How replicas agree; an argument in brackets is read by the collective itself."""
    name = str(value).partition("(")[0]
    is_closed = ("(" in str(value)) == str(value).endswith(")")
    if name not in _SYNCHRONISES or not is_closed:
        raise InputError(
            f"{shown(value)} is not a collective that replicas agree by.{hint(name, _SYNCHRONISES)}"
        )
    return str(value)


_READERS = {
    "algorithms": _pairs,
    "priorities": _priorities,
    "gathers_quantised": _quantised,
    "rank_order": _rank_order,
    "synchronises": _collective,
}
"""Fields that are neither a number, a switch nor a word of a list."""
