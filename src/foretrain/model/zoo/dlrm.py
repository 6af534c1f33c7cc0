"""Recommendation: DLRM with dot interaction, DLRM with cross layers (DCNv2), and NeuMF.

Tables are looked up in two fused groups, `large_tables` and `small_tables`, because systems replicate the small
ones and shard the large ones. `tables` on each op lists the single tables as rows x look-ups; `sparse` says
that a step touches only the rows it looked up.
"""

from __future__ import annotations

import itertools

from foretrain.model.graph import Block, Model, Tensor
from foretrain.model.sketch import Sketch, view, weight
from foretrain.model.zoo import Entry, fixed

_DLRM = "MLPerf Training DLRM on Criteo 1TB; Naumov et al. 2019, arXiv 1906.00091"
_DCN = "MLPerf Training DLRM-DCNv2; Wang et al. 2020, arXiv 2008.13535"
_NCF = "He et al. 2017, arXiv 1708.05031, on MovieLens-1M"
_SMALL = "Naumov et al. 2019, arXiv 1906.00091: a small instance for tests"

ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
MULTI_HOT = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
)  # fmt: skip
# 8 MB in fp32: HugeCTR's MLPerf plans replicate smaller tables (dp_sharding_threshold)
SMALL_ROWS = 16_000
# Zipf's law. Of Criteo's rows a few are looked up 10,000 times as often as others (Adnan et al. 2021, arXiv 2103.00686).
# Meta's traces (facebookresearch/dlrm_datasets), whose rows come up 6.9 times in a batch of 65,536 on average, ask for an
# exponent of 1.05 to 1.1.
SKEW = 1.0
_VECTOR = ("batch", "hidden")


class _Stack(Sketch):
    """Linear layers in a row; widths alternate between two dim names so that none contracts itself."""

    def mlp(self, prefix: str, x: Tensor, widths: tuple[int, ...], first_is_data: bool) -> Tensor:
        dims = ("ffn", "hidden")
        h = x
        for index, (inner, width) in enumerate(itertools.pairwise(widths), start=1):
            source, out = dims[index % 2], dims[(index + 1) % 2]
            sizes = {source: inner, out: width}
            h = self.linear(
                f"{prefix}{index}", view(h, "batch", source), f"{prefix}{index}", ("batch", out),
                True, sizes, input_gradient=not (first_is_data and index == 1),
            )  # fmt: skip
            if width != 1:
                h = self.op(
                    f"{prefix}{index}_act", "elementwise", [h],
                    [Tensor(f"{prefix}{index}_act", h.dims)], (), sizes, op="relu", follows_product=True,
                )  # fmt: skip
        return h

    def tables(self, name: str, rows: tuple[int, ...], bags: tuple[int, ...], width: int) -> Tensor:
        sizes = {"table": len(rows), "bag": sum(bags), "rows": sum(rows), "hidden": width}
        listed = ",".join(f"{r}x{b}" for r, b in zip(rows, bags, strict=True))
        ids = Tensor(f"{name}_ids", ("batch", "bag"), "index")
        out = Tensor(name, ("batch", "table", "hidden"))
        return self.op(
            name, "embedding_bag", [ids], [out], [weight("weight", "rows", "hidden")], sizes,
            tables=listed, sparse=True, skew=SKEW,
        )  # fmt: skip

    def both_tables(
        self, rows: tuple[int, ...], bags: tuple[int, ...], width: int
    ) -> tuple[list[Tensor], list[int]]:
        """The large and the small group, and how many tables each has."""
        pairs = tuple(zip(rows, bags, strict=True))
        groups = (
            ("large_tables", tuple(p for p in pairs if p[0] >= SMALL_ROWS)),
            ("small_tables", tuple(p for p in pairs if p[0] < SMALL_ROWS)),
        )
        used = [(name, group) for name, group in groups if group]
        tensors = [
            self.tables(name, tuple(r for r, _ in g), tuple(b for _, b in g), width)
            for name, g in used
        ]
        return tensors, [len(group) for _, group in used]

    def loss(self, logits: Tensor) -> None:
        out = Tensor("loss", ("batch",), "fp32")
        self.op(
            "loss", "elementwise", [view(logits, "batch", "one")], [out], (), {"one": 1}, op="loss"
        )


def _labelled(tensors: list[Tensor], counts: list[int]) -> tuple[list[Tensor], dict[str, int]]:
    """Embedding groups side by side in one op: each keeps a table dim of its own."""
    labels = [f"{t.name.removesuffix('s')}" for t in tensors]
    views = [view(t, "batch", label, "hidden") for t, label in zip(tensors, labels, strict=True)]
    return views, dict(zip(labels, counts, strict=True))


def _bottom(
    s: _Stack, rows: tuple[int, ...], bags: tuple[int, ...], widths: tuple[int, ...]
) -> tuple[list[Tensor], dict[str, int]]:
    """Tables and the dense MLP: everything that runs before features meet."""
    width = widths[-1]
    tensors, counts = s.both_tables(rows, bags, width)
    dense = s.mlp("bottom", Tensor("dense", _VECTOR), widths, True)
    views, sizes = _labelled(tensors, counts)
    return [view(dense, *_VECTOR), *views], {**sizes, "hidden": width}


def _block(name: str, s: _Stack) -> Block:
    return s.block(name, [], [])


def dlrm(
    name: str,
    rows: tuple[int, ...],
    bags: tuple[int, ...],
    bottom: tuple[int, ...],
    top: tuple[int, ...],
    source: str,
) -> Model:
    """Dot interaction: dense vector beside the products of all pairs."""
    s = _Stack(batch=1)
    inputs, sizes = _bottom(s, rows, bags, bottom)
    vectors = len(rows) + 1
    feature = bottom[-1] + vectors * (vectors - 1) // 2
    out = Tensor("features", ("batch", "feature"))
    h = s.op("interaction", "interaction", inputs, [out], (), {**sizes, "feature": feature})
    s.loss(s.mlp("top", h, (feature, *top), False))
    return Model(name, (_block("dlrm", s),), source=source)


def dlrm_dcn() -> Model:
    """Three low-rank cross layers over the concatenation: x' = x0·(W(Vx) + b) + x."""
    s = _Stack(batch=1)
    inputs, sizes = _bottom(s, ROWS, MULTI_HOT, (13, 512, 256, 128))
    width = (len(ROWS) + 1) * 128
    s.sizes |= {"feature": width, "rank": 512, "feature_out": width}
    start = Tensor("joined", ("batch", "feature"))
    s.op("concat", "elementwise", inputs, [start], (), sizes, op="concat", reduces=False)
    h = start
    for index in range(1, 4):
        low = s.linear(f"cross{index}_down", h, f"cross{index}_down", ("batch", "rank"), False)
        up = s.linear(f"cross{index}_up", low, f"cross{index}_up", ("batch", "feature"), True)
        h = s.elementwise(f"cross{index}", "multiply-add", [start, up, h], f"cross{index}")
    s.loss(s.mlp("top", h, (width, 1024, 1024, 512, 256, 1), False))
    return Model("dlrm-dcnv2", (_block("dlrm", s),), source=_DCN)


def neumf() -> Model:
    """Matrix factorisation beside an MLP, 32 factors (He's released setting for MovieLens-1M)."""
    users, items, factors, deep = 6040, 3706, 32, 128
    s = _Stack(batch=1)
    pairs = {}
    for part, width in (("mf", factors), ("mlp", deep)):
        for who, rows in (("user", users), ("item", items)):
            sizes = {"rows": rows, "hidden": width}
            ids = Tensor(f"{who}_ids", ("batch",), "index")
            table = [weight("weight", "rows", "hidden")]
            out = Tensor(f"{part}_{who}", _VECTOR)
            pairs[part, who] = s.op(out.name, "embedding", [ids], [out], table, sizes)
    s.sizes |= {"hidden": factors}
    product = s.elementwise("product", "multiply", [pairs["mf", "user"], pairs["mf", "item"]], "mf")
    joined = _joined(s, "joined", (pairs["mlp", "user"], deep), (pairs["mlp", "item"], deep))
    hidden = s.mlp("mlp", joined, (256, 128, 64, 32), False)
    both = _joined(s, "both", (product, factors), (hidden, factors))
    s.loss(s.mlp("predict", both, (2 * factors, 1), False))
    return Model("neumf", (_block("neumf", s),), source=_NCF)


def _joined(s: Sketch, name: str, *parts: tuple[Tensor, int]) -> Tensor:
    labels = [f"part_{index}" for index in range(len(parts))]
    views = [view(t, "batch", label) for (t, _), label in zip(parts, labels, strict=True)]
    sizes = {label: width for (_, width), label in zip(parts, labels, strict=True)}
    sizes["feature"] = sum(width for _, width in parts)
    out = Tensor(name, ("batch", "feature"))
    return s.op(name, "elementwise", views, [out], (), sizes, op="concat", reduces=False)


def _mlperf() -> Model:
    top = (1024, 1024, 512, 256, 1)
    return dlrm("dlrm-mlperf", ROWS, (1,) * len(ROWS), (13, 512, 256, 128), top, _DLRM)


def _small() -> Model:
    rows = (200_000, 100_000, 10_000, 1_000, 100, 10, 10_000, 1_000)
    top = (256, 128, 1)
    return dlrm("dlrm-small", rows, (1,) * len(rows), (13, 128, 64), top, _SMALL)


MODELS: dict[str, Entry] = {
    "dlrm-mlperf": fixed(_mlperf, _DLRM),
    "dlrm-dcnv2": fixed(dlrm_dcn, _DCN),
    "dlrm-small": fixed(_small, _SMALL),
    "neumf": fixed(neumf, _NCF),
}
