"""A model of layers that scan a state space in chunks, as Mamba-2's do."""

from __future__ import annotations

from foretrain import Model

CHUNK = 256
SIZES = {"batch": 1, "scan": 4096, "heads": 32, "head_dim": 64, "kv_heads": 8, "state": 128}
TOKENS, GROUPS = "[batch, scan, heads, head_dim]", "[batch, scan, kv_heads, state]"


def mamba(layers: int = 8, hidden: int = 1024) -> Model:
    """Layers of a projection in, a scan and a projection out."""
    sizes = {**SIZES, "seq": SIZES["scan"], "hidden": hidden}
    read = TOKENS.replace("scan", "seq")
    into = [f"x{read}", "dt[batch, seq, heads]"]
    into += [f"{name}{GROUPS.replace('scan', 'seq')}" for name in ("b", "c")]
    columns = ["wx[hidden, heads, head_dim]", "wdt[hidden, heads]"]
    columns += [f"w{name}[hidden, kv_heads, state]" for name in ("b", "c")]
    used = {dim: size for dim, size in sizes.items() if dim != "scan"}
    ops = [
        {"name": "in", "kind": "linear", "sizes": used, "inputs": ["h[batch, seq, hidden]"],
         "outputs": into, "weights": columns},
        {"name": "scan", "kind": "scan", "sizes": SIZES, "attrs": {"chunk": CHUNK}, "weights": ["decay[heads]"],
         "inputs": [f"x{TOKENS}", "dt[batch, scan, heads]", f"b{GROUPS}", f"c{GROUPS}"],
         "outputs": [f"y{TOKENS}"]},
        {"name": "out", "kind": "linear",
         "sizes": {k: sizes[k] for k in ("batch", "seq", "heads", "head_dim", "hidden")},
         "inputs": [f"y{read}"], "outputs": ["o[batch, seq, hidden]"],
         "weights": ["weight[heads, head_dim, hidden]"]},
    ]  # fmt: skip
    ends = {"inputs": ["h[batch, seq, hidden]"], "outputs": ["o[batch, seq, hidden]"]}
    block = {"name": "layer", "repeat": layers, "ops": ops, "sizes": sizes, **ends}
    return Model.of({"name": "mamba", "seq": SIZES["scan"], "blocks": [block]})
