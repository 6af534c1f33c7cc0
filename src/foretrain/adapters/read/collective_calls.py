"""What a profiler trace tells of a collective: its name, its bytes and who takes part."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

# Bytes of an element by the name that PyTorch writes.
BYTES = {
    "Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1,
    "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
# The names of collectives in PyTorch's words, as nccl-tests and our collectives call them.
NAMES = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allreduce_coalesced": "all_reduce",
    "_allgather_base": "all_gather", "allgather": "all_gather", "all_gather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather", "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all", "all_to_allv": "all_to_all", "alltoall": "all_to_all",
    "alltoall_base": "all_to_all", "broadcast": "broadcast", "_broadcast_oop": "broadcast",
    "reduce": "reduce", "gather": "gather", "scatter": "scatter", "send": "send", "recv": "recv",
    "isend": "send", "irecv": "recv", "barrier": "barrier",
}  # fmt: skip
POINT_TO_POINT = ("send", "recv")
MAX_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class Call:
    """Two calls of one group that are equal move as many bytes."""

    collective: str
    bytes: float  # as nccl-tests counts: the greater of what goes in and what comes out
    size: int  # ranks of the group; 0: not told
    group: str  # its name
    ranks: tuple[int, ...]  # its ranks, or the first and the last; empty: not told


class CallArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "collective": "Collective name",
        "elements_in": "In msg nelems",
        "elements_out": "Out msg nelems",
        "size": "Group size",
        "group": "Process Group Name",
        "ranks": "Process Group Ranks",
    },
):
    collective: Any = None
    elements_in: Any = None
    elements_out: Any = None
    dtype: Any = None
    size: Any = None
    group: Any = None
    ranks: Any = None


def call_of(args: CallArgs) -> Call | None:
    """The call, if these are the arguments of one."""
    if not isinstance(args.collective, str):
        return None
    name = args.collective[:100]
    elements = max(_count(args.elements_in), _count(args.elements_out))
    width = BYTES.get(args.dtype, 0) if isinstance(args.dtype, str) else 0
    return Call(
        collective=NAMES.get(name.lower(), name.lower()),
        bytes=float(elements * width),
        size=min(_count(args.size), 10**7),
        group=args.group[:200] if isinstance(args.group, str) else "",
        ranks=_ranks(args.ranks),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _ranks(value: Any) -> tuple[int, ...]:
    """From `[0, 1, 2, 3]`, a list or its text; long ones are written with dots, so ends are what can be had."""
    if isinstance(value, list):
        ranks = [rank for rank in value[:MAX_TEXT] if type(rank) is int and 0 <= rank < 10**7]
    elif isinstance(value, str):
        ranks = [int(text) for text in re.findall(r"\d{1,7}", value[:MAX_TEXT])]
    else:
        return ()
    return tuple(ranks) if len(ranks) <= 64 else (min(ranks), max(ranks))
