"""Recurrent layers as sketches: one direction, and two directions joined or added."""

from __future__ import annotations

from foretrain.model.graph import Tensor
from foretrain.model.sketch import Sketch, view, weight

TOKENS = ("batch", "seq", "hidden")
_CELLS = ("batch", "seq", "cell")


def lstm(s: Sketch, name: str, x: Tensor, width: int, cells: int) -> Tensor:
    """An LSTM layer from `width` features to `cells`, with the two bias vectors libraries keep."""
    sizes = {"hidden": width, "cell": cells, "cell_in": cells, "gate": 4}
    weights = [
        weight("input_weight", "hidden", "gate", "cell"),
        weight("state_weight", "cell_in", "gate", "cell"),
        weight("input_bias", "gate", "cell"),
        weight("state_bias", "gate", "cell"),
    ]
    out = Tensor(name, _CELLS)
    s.op(name, "recurrent", [view(x, *TOKENS)], [out], weights, sizes)
    return view(out, *TOKENS)


def both_ways(s: Sketch, name: str, x: Tensor, width: int, cells: int, joined: bool) -> Tensor:
    """A forward and a backward layer whose results are joined (2·cells wide) or added."""
    forth = lstm(s, f"{name}_forth", x, width, cells)
    back = lstm(s, f"{name}_back", x, width, cells)
    if not joined:
        sizes = {"hidden": cells}
        return s.op(name, "elementwise", [forth, back], [Tensor(name, TOKENS)], (), sizes, op="add")
    views = [view(forth, "batch", "seq", "forth"), view(back, "batch", "seq", "back")]
    sizes = {"forth": cells, "back": cells, "hidden": 2 * cells}
    out = Tensor(name, TOKENS)
    return s.op(name, "elementwise", views, [out], (), sizes, op="concat", reduces=False)
