"""Memory that is kept free is kept free by every door: what is shown as fitting leaves it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from foretrain import fit, predict, recommend, search
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.headroom import headroom_share
from foretrain.errors import InputError
from foretrain.runtime import runtime
from foretrain.units import parse_bytes

CLUSTERS = ("1 x dgx-a100-40gb", "1 x dgx-1-v100-32gb", "2 x aws:g5.12xlarge", "1 x dgx-h100")
MODELS = ("gpt3-1.3b", "llama3.2-1b", "bert-large", "gpt2-xl")
STACKS = ("megatron", "fsdp2", "deepspeed")


def drawn(count: int) -> Iterator[dict[str, Any]]:
    lot = random.Random(5)
    for _ in range(count):
        yield {
            "model": lot.choice(MODELS), "on": lot.choice(CLUSTERS), "batch": lot.choice((32, 64)),
            "runtime": lot.choice(STACKS),
            "headroom": lot.choice((0.0, 0.05, "12%", 0.3, 0.6, "3GiB", "10GiB")),
        }  # fmt: skip


def left_for_the_allocator(asked: dict[str, Any]) -> float:
    """Bytes of a device, by hand: without what is kept free, and without driver and libraries."""
    size = min(device.memory_bytes for device in Cluster.of(asked["on"]).devices)
    text = str(asked["headroom"])
    if text.endswith("%"):
        free = float(text[:-1]) / 100.0 * size
    else:
        free = parse_bytes(text) if text.endswith("B") else float(text) * size
    return size - free - runtime(asked["runtime"]).memory.context_bytes


@pytest.mark.parametrize("asked", [*drawn(10)], ids=str)
def test_what_fits_leaves_what_is_kept_free(asked: dict[str, Any]) -> None:
    most = left_for_the_allocator(asked) * (1.0 + 1e-12)
    found = search(**asked, top=2, where="cp=1, vpp=1, pp<=2")
    for row in found.best:
        assert row.simulation.memory.peak_bytes <= most
    assert all(row.memory <= most for row in found.pareto)
    if not found.best:
        assert found.nearest is None or found.nearest.memory > most
        return
    plan = found.best[0].plan.text
    told = predict(**asked, plan=plan)
    assert told.fits
    assert told.memory.peak_bytes <= most
    for remedy in told.what_would_help:
        if remedy.kind in ("plan", "option"):
            assert (remedy.peak_bytes or 0.0) <= most
    for change in fit(
        **{**asked, "plan": plan.partition(" micro=")[0], "micro_batch": asked["batch"] // 8}
    ).changes:
        assert change.kind == "machine" or change.fits == ((change.peak_bytes or 0.0) <= most)


def test_walks_and_reasons_keep_to_it() -> None:
    asked: dict[str, Any] = {
        "model": "gpt3-2.7b", "on": "1 x dgx-a100-40gb", "batch": 32, "runtime": "megatron", "headroom": 0.4,
    }  # fmt: skip
    most = left_for_the_allocator(asked)
    found = search(**asked, where="cp=1, vpp=1, tp<=2, pp<=2, no offload", per_layer=True, top=4)
    assert found.best
    assert all(row.simulation.memory.peak_bytes <= most for row in found.best)
    one = found.why("dp8 micro=4")
    assert not one.fits
    assert one.lacks_bytes == pytest.approx(
        predict(**asked, plan="dp8", micro_batch=4).memory.peak_bytes - most
    )


def test_offers_keep_to_it() -> None:
    kinds = ("lambda:gpu_8x_a100", "aws:p3.16xlarge")
    for headroom in (0.0, 0.4):
        found = recommend(
            "gpt3-2.7b", headroom=headroom, batch=64, steps=1000, max_devices=16, instances=kinds
        )
        assert found.offers
        for offer in found.offers:
            devices = Cluster.of(offer.name).devices
            size = min(device.memory_bytes for device in devices)
            assert offer.peak_bytes <= offer.usable_bytes < (1.0 - headroom) * size


@pytest.mark.parametrize("text", ["-1%", "95%", "4 parsecs", "1TiB", "nan"])
def test_what_cannot_be_kept_free_is_a_fault(text: str) -> None:
    with pytest.raises(InputError, match="headroom"):
        headroom_share(text, Cluster.of("1 x dgx-h100").devices)
