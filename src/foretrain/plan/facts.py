"""What rules of stacks may ask of the work, beside the plan: the kind of model, its dims, whether weights are tied, the
precision."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from types import MappingProxyType
from typing import Any

from foretrain.model.graph import Model
from foretrain.model.ops import family
from foretrain.model.workload import Workload

KINDS_OF_MODELS = ("recommender", "transformer", "cnn")
"""What ops may tell that a model is; the first word that one of them says."""
OTHER = "other"
DIMS = {"heads": "heads", "kv-heads": "kv_heads", "experts": "expert"}
"""Numbers by the dims they are counted along: what divides them divides them in every op."""
NUMBERS = (*DIMS, "seq", "batch")
NAMES = ("model", "precision", "tied")
Facts = Mapping[str, Any]
NO_FACTS: Facts = MappingProxyType({})


def family_of(model: Model) -> str:
    """transformer, cnn, recommender or other."""
    words = {family(op).makes for _, op in model.ops()}
    return next((kind for kind in KINDS_OF_MODELS if kind in words), OTHER)


def facts_of(work: Workload) -> Facts:
    """By the name in rules; a model has no number of what it does not have."""
    sizes = {name: _along(work.model, dim) for name, dim in DIMS.items()}
    found = {name: size for name, size in sizes.items() if size}
    if work.seq_len is not None:
        found["seq"] = work.seq_len
    return {
        **found,
        "batch": work.global_batch,
        "model": family_of(work.model),
        "tied": "yes" if work.model.tied else "no",
        "precision": work.precision.name,
    }


def _along(model: Model, dim: str) -> int:
    return gcd(*(op.size.get(dim, 0) for _, op in model.ops()))
