"""FLOPs against torch's own counter, on shapes alone (meta tensors hold no data)."""

from __future__ import annotations

import math

import pytest

from foretrain.model import zoo
from foretrain.model.ops import KernelChoices, family, forward_flops, training_flops
from foretrain.model.precision import precision

torch = pytest.importorskip("torch", reason="torch counts the FLOPs we compare with")
nn = torch.nn
functional = torch.nn.functional
FlopCounterMode = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode


def counted(call, train: bool = False) -> int:
    """FLOPs that torch counts, forward or forward and backward."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        result = call()
        if train:
            result.sum().backward()
    return int(counter.get_total_flops())


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * 4
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.skip = nn.Identity()
        if stride != 1 or channels != out:
            conv = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x):
        return functional.relu(self.body(x) + self.skip(x))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        for index in range(depth):
            width = 64 * 2**stage
            layers.append(Bottleneck(channels, width, 2 if stage and not index else 1))
            channels = width * 4
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


def attention(q, k, v):
    """Explicit products, as the mathematics has them."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int, gated: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, hidden // heads
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.width)
        self.proj = nn.Linear(hidden, hidden)
        self.fc1 = nn.Linear(hidden, ffn * (2 if gated else 1))
        self.fc2 = nn.Linear(ffn, hidden)
        self.gated = gated

    def forward(self, x):
        batch, seq, hidden = x.shape
        sizes = [n * self.width for n in (self.heads, self.kv_heads, self.kv_heads)]
        parts = self.qkv(x).split(sizes, -1)
        q, k, v = (p.reshape(batch, seq, -1, self.width).transpose(1, 2) for p in parts)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        x = x + self.proj(attention(q, k, v).transpose(1, 2).reshape(batch, seq, hidden))
        inner = self.fc1(x)
        if self.gated:
            gate, up = inner.chunk(2, -1)
            inner = functional.silu(gate) * up
        else:
            inner = functional.gelu(inner)
        return x + self.fc2(inner)


def test_resnet50_forward() -> None:
    count = counted(lambda: resnet50()(torch.empty(1, 3, 224, 224)))
    assert forward_flops(zoo.build("resnet50")) == pytest.approx(count, rel=0.01)
    assert count / 2e9 == pytest.approx(4.09, rel=0.01)


def test_resnet50_parameters() -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in resnet50().parameters())
    assert zoo.build("resnet50").parameters == count


def test_resnet50_training() -> None:
    """Kernels of both directions: the image itself gets no gradient, here as in torch."""
    count = counted(lambda: resnet50()(torch.empty(2, 3, 224, 224)), train=True)
    choices, number = KernelChoices(), precision("fp32")
    total = 0.0
    for block, op in zoo.build("resnet50").ops():
        local = op.local({}, 2)
        kernels = family(op).forward(local, number, choices)
        kernels += family(op).backward(local, number, choices)
        total += block.repeat * sum(k.flops for k in kernels if k.kind in ("conv", "gemm"))
    assert total == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    ("name", "hidden", "heads", "kv_heads", "ffn", "gated", "seq"),
    [
        ("gpt3-1.3b", 2048, 16, 16, 8192, False, 2048),
        ("llama3-8b", 4096, 32, 8, 14336, True, 4096),
        ("bert-large", 1024, 16, 16, 4096, False, 512),
    ],
)
def test_transformer_layer(
    name: str, hidden: int, heads: int, kv_heads: int, ffn: int, gated: bool, seq: int
) -> None:
    model = zoo.build(name, seq)
    layer = next(block for block in model.blocks if block.name == "layers")
    ours = sum(family(op).flops(op) for op in layer.ops)

    def run():
        x = torch.empty(1, seq, hidden, requires_grad=True)
        return Layer(hidden, heads, kv_heads, ffn, gated)(x)

    assert ours == pytest.approx(counted(run), rel=0.01)
    assert 3 * ours == pytest.approx(counted(run, train=True), rel=0.01)


def test_whole_bert() -> None:
    """Layers, pooler, masked-LM transform and logits."""
    hidden, vocab, seq = 768, 30522, 512

    def run():
        x = torch.empty(1, seq, hidden)
        for _ in range(12):
            x = Layer(hidden, 12, 12, 3072, False)(x)
        pooled = nn.Linear(hidden, hidden)(x[:, 0])
        nn.Linear(hidden, 2)(pooled)
        return nn.Linear(hidden, vocab)(nn.Linear(hidden, hidden)(x))

    assert forward_flops(zoo.build("bert-base", seq)) == pytest.approx(counted(run), rel=0.01)


def test_mixture_layer() -> None:
    """Balanced experts: each sees top_k·seq/experts tokens."""
    seq, hidden, ffn, experts, chosen = 4096, 4096, 14336, 8, 2
    model = zoo.build("mixtral-8x7b", seq)
    ours = sum(family(op).flops(op) for op in model.blocks[1].ops if "expert" in op.size)

    def run():
        x = torch.empty(experts, seq * chosen // experts, hidden)
        inner = torch.bmm(x, torch.empty(experts, hidden, 2 * ffn)).chunk(2, -1)[0]
        return torch.bmm(inner, torch.empty(experts, ffn, hidden))

    assert ours == pytest.approx(counted(run), rel=0.01)


def test_training_is_three_forwards() -> None:
    model = zoo.build("gpt2")
    assert training_flops(model) == 3 * forward_flops(model)
