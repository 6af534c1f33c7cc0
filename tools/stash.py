"""Writes `docs/stash.md`: which published findings of Stash predictions reproduce, which not, and why.

    python tools/stash.py [-o docs/stash.md]

Stash: Sharma et al., ICDCS 2023 (arXiv 2208.14344). Its measurements are not public; its abstract, its scripts (which
models, batches, machines and prices) and the formulas of its stalls are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np

from foretrain import predict, recommend
from foretrain.cluster.catalog import meshes
from foretrain.cluster.cluster import Cluster
from foretrain.errors import ClusterError
from foretrain.model.graph import Model
from foretrain.report.md import table

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from studies.stall_scaling.networks import Net  # noqa: E402
from studies.stall_scaling.prediction import graph_of  # noqa: E402

PER_DEVICE = 32
"""Samples of a step on every device: the smallest batch that all of Stash's models ran with."""
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
OTHERS = ("alexnet", "vgg11", "vgg16")
P2, P3 = ("aws:p2.xlarge", "fp32"), ("aws:p3.2xlarge", "fp16")
MACHINES = ("aws:p2.8xlarge", "aws:p2.16xlarge", "aws:p3.8xlarge", "aws:p3.16xlarge")
PUBLISHED = {"interconnect": 0.90, "network": 5.0}


@cache
def seconds(model: str | Model, on: str, precision: str) -> float:
    """T0 or T1: a step on synthetic data, as DistributedDataParallel runs it."""
    return _step(model, on, Cluster.of(on).device_count, precision)


def _step(model: str | Model, on: Any, devices: int, precision: str) -> float:
    answer = predict(
        model, on=on, plan=f"dp{devices}", batch=PER_DEVICE * devices, precision=precision, optimizer="sgd", runtime="ddp",
    )  # fmt: skip
    return float(answer.step_seconds)


def interconnect_stall(model: str | Model, on: str) -> float:
    """(T1 - T0) / T1: all devices of a machine against one."""
    one, precision = P2 if "p2." in on else P3
    whole = seconds(model, on, precision)
    return max(0.0, 1.0 - seconds(model, one, precision) / whole)


def network_slowdown(model: str | Model, pair: str, whole: str) -> float:
    """T1 of two machines over T1 of one with as many devices."""
    precision = P2[1] if "p2." in whole else P3[1]
    return seconds(model, pair, precision) / seconds(model, whole, precision)


@dataclass(frozen=True)
class Slice:
    """Four devices of the cube mesh, and what a step of VGG-11 takes on them; None where NVLink does not join them."""

    devices: tuple[int, ...]
    seconds: float | None
    alike: int  # slices of the same links


@cache
def slices() -> tuple[Slice, ...]:
    """All ways to cut four devices out of eight, those of like links once, fastest first."""
    full = meshes()["cube-nvlink2"]
    kinds: dict[Any, list[tuple[int, ...]]] = {}
    for picked in combinations(range(8), 4):
        links = tuple(sorted(tuple(sorted(full[a][b] for b in picked)) for a in picked))
        kinds.setdefault(links, []).append(picked)
    found = [Slice(alike[0], _on_slice(alike[0]), len(alike)) for alike in kinds.values()]
    return tuple(sorted(found, key=lambda one: one.seconds or np.inf))


def _on_slice(picked: Sequence[int]) -> float | None:
    """In the best order of its devices, since NCCL looks for rings along links."""
    first, *others = picked
    steps = [_in_order((first, *rest)) for rest in permutations(others)]
    return min((step for step in steps if step is not None), default=None)


def _in_order(picked: Sequence[int]) -> float | None:
    """On the lanes of the whole mesh, those of the slice first."""
    full = meshes()["cube-nvlink2"]
    order = [*picked, *(device for device in range(8) if device not in picked)]
    lanes = [[full[a][b] for b in order] for a in order]
    wiring = {"kind": "nvlink2", "lanes": lanes}
    try:
        return _step("vgg11", _machine("v100-sxm2-16gb", 4, wiring), 4, P3[1])
    except ClusterError:
        return None


def _machine(device: str, count: int, wiring: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    row = {
        "count": 1, "devices": {"device": device, "count": count}, "interconnect": dict(wiring),
        "host": {"cpu_cores": 4 * count}, **more,
    }  # fmt: skip
    return {"nodes": [row]}


def one_slot_stall(model: str) -> float:
    """Of a p2.16xlarge whose sixteen GPUs all shared one slot to the CPU."""
    wiring = {"kind": "pcie3", "through_root": True, "socket_devices": 16}
    whole = _step(model, _machine("k80", 16, wiring), 16, P2[1])
    return 1.0 - seconds(model, *P2) / whole


def slowdown_at_line_rate(model: str) -> float:
    """Of two p3.8xlarge over one p3.16xlarge if messages reached the whole 10 Gb/s, as RDMA nearly does."""
    on = _machine(
        "v100-sxm2-16gb",
        4,
        {"kind": "nvlink2"},
        nics={"kind": "infiniband", "count": 1, "bandwidth": "10Gb/s"},
    )
    on["nodes"][0]["count"] = 2
    return _step(model, on, 8, P3[1]) / seconds(model, "aws:p3.16xlarge", P3[1])


def offers() -> Mapping[str, Any]:
    """ResNet-50 on ImageNet for 90 epochs at Stash's prices, by instance and deadline."""
    asked: dict[str, Any] = {
        "epochs": 90, "data": "imagenet-1k", "batch": 256, "precision": "fp16", "optimizer": "sgd", "quota": ("4",),
        "instances": ("aws:p2.*", "aws:p3.*", "aws:p3dn.24xlarge"),
    }  # fmt: skip
    every = recommend("resnet50", deadline="30d", **asked)
    picks = {d: recommend("resnet50", deadline=d, **asked).offers[0] for d in ("24h", "9h", "6h")}
    return {"all": {one.name: one for one in every.offers}, "picks": picks}


# --- laws -------------------------------------------------------------------------------------------


def exposed(model: str | Model, on: str) -> float:
    """Seconds of a step that a machine, or two, add to that of one device."""
    return seconds(model, on, P3[1]) - seconds(model, P3[0], P3[1])


def gradient_bytes(name: str) -> float:
    from foretrain.model.load import load_model

    return 2.0 * load_model(name).parameters


def layers(name: str) -> int:
    return int(name.removeprefix("resnet"))


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def laws() -> dict[str, float]:
    """How closely stalls go with what Stash says they go with."""
    one, two = "aws:p3.16xlarge", "2 x aws:p3.8xlarge"
    every = (*RESNETS, *OTHERS)
    return {
        "nvlink_layers": correlation([layers(m) for m in RESNETS], [exposed(m, one) for m in RESNETS]),
        "nvlink_bytes": correlation([gradient_bytes(m) for m in every], [exposed(m, one) for m in every]),
        "network_bytes": correlation([gradient_bytes(m) for m in every], [exposed(m, two) for m in every]),
    }  # fmt: skip


@cache
def chain(*, is_normed: bool, is_residual: bool = True) -> Model:
    """Thirty-two convolutions; without normalisation a third of the gradient tensors, of as many bytes."""
    return graph_of(Net(32, 128, is_residual, is_normed))


# --- the page ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    published: str
    predicted: str
    verdict: str  # yes | in part | no | not comparable
    why: str


def findings() -> Iterator[Finding]:
    yield _interconnect()
    yield _network()
    yield _sliced()
    found = offers()
    dear, cheap = (found["all"][f"1 x aws:{name}"] for name in ("p3dn.24xlarge", "p3.16xlarge"))
    pair = found["all"]["2 x aws:p3.8xlarge"]
    yield Finding(
        "Dearer instances are not always faster",
        f"p3dn.24xlarge {dear.hours:.1f} h for ${dear.usd:.0f}, p3.16xlarge {cheap.hours:.1f} h for ${cheap.usd:.0f}",
        "yes" if dear.hours > 0.98 * cheap.hours and dear.usd > cheap.usd else "no",
        f"At the rent of one p3.16xlarge, two p3.8xlarge take {pair.hours:.1f} h.",
    )
    picks = found["picks"]
    yield Finding(
        "The cheapest instance depends on the time budget",
        "; ".join(f"{d}: {one.name} (${one.usd:.0f})" for d, one in picks.items()),
        "yes" if len({one.name for one in picks.values()}) == len(picks) else "in part",
        "ResNet-50 on ImageNet, 90 epochs: predicted here, measured in short profiles there.",
    )
    yield Finding(
        "Stalls can be modelled by the number of layers and of gradients",
        "see Layers and gradients",
        "not comparable",
        "Their coefficients and the runs behind them are not public.",
    )


def _interconnect() -> Finding:
    stalls = {(m, on): interconnect_stall(m, on) for m in (*RESNETS, *OTHERS) for on in MACHINES}
    (model, where), most = max(stalls.items(), key=lambda item: item[1])
    return Finding(
        "The interconnect of a machine takes up to 90 % of the training time",
        f"up to {100 * most:.0f} % ({model} on {where})",
        "yes" if most > PUBLISHED["interconnect"] - 0.05 else "in part",
        "P2: eight GPUs share one slot to the CPU. If all sixteen of a p2.16xlarge shared it, AlexNet would reach "
        f"{100 * one_slot_stall('alexnet'):.0f} %; how many do is not published. The stall also holds what the host adds "
        "with many processes.",
    )


def _network() -> Finding:
    pair, whole = "2 x aws:p3.8xlarge", "aws:p3.16xlarge"
    slow = {m: network_slowdown(m, pair, whole) for m in (*RESNETS, *OTHERS)}
    fast = {m: slowdown_at_line_rate(m) for m in (*RESNETS, *OTHERS)}
    named = (min(RESNETS, key=slow.__getitem__), max(RESNETS, key=slow.__getitem__))
    few, many = (slow[name] for name in named)
    return Finding(
        "Two machines on the network are up to 5 times slower than one with as many GPUs",
        f"ResNets {few:.1f} to {many:.1f} times, VGG-16 {slow['vgg16']:.0f}, AlexNet {slow['alexnet']:.0f} times",
        "yes" if few < PUBLISHED["network"] < many and slow["vgg16"] < 6.0 else "in part",
        "ResNets reproduce, VGG and AlexNet are predicted too slow or were not meant. Predictions let TCP reach a third of "
        "10 Gb/s between two machines, as measured over 32 Gb/s; at nearly the whole 10 Gb/s it would be "
        f"{min(fast[m] for m in RESNETS):.1f} to {max(fast[m] for m in RESNETS):.1f} times for ResNets, {fast['vgg16']:.1f} "
        f"for VGG-16 and {fast['alexnet']:.0f} for AlexNet.",
    )


def _sliced() -> Finding:
    cut = slices()
    joined = [one for one in cut if one.seconds is not None]
    best, worst = joined[0], joined[-1]
    one = seconds("vgg11", *P3)
    lost = sum(each.alike for each in cut if each.seconds is None)
    return Finding(
        "AWS may allot a sub-optimal slice of the NVLink mesh to a p3.8xlarge",
        f"VGG-11 takes {1e3 * (best.seconds or 0):.0f} ms on devices {_listed(best)} and "
        f"{1e3 * (worst.seconds or 0):.0f} ms on {_listed(worst)}: an interconnect stall of "
        f"{100 * (1 - one / (best.seconds or 1)):.0f} and {100 * (1 - one / (worst.seconds or 1)):.0f} %",
        "yes" if (worst.seconds or 0) > 1.1 * (best.seconds or 0) else "no",
        f"Of 70 slices {best.alike} are the best; {lost} have devices that NVLink does not join at all (not predicted). The "
        "catalog's p3.8xlarge is a best one.",
    )


def law_rows() -> list[tuple[str, str]]:
    """What predictions say of layers, bytes, normalisation and shortcuts."""
    law = laws()
    near, far = "aws:p3.16xlarge", "2 x aws:p3.8xlarge"
    normed, bare = chain(is_normed=True), chain(is_normed=False)
    plain = chain(is_normed=True, is_residual=False)

    def both(model: Model) -> str:
        return f"{1e3 * exposed(model, near):.1f} ms inside a machine, {1e3 * exposed(model, far):.1f} ms over the network"

    return [
        ("inside a p3.16xlarge, with layers, over ResNets", f"correlation {law['nvlink_layers']:.2f}"),
        ("inside a p3.16xlarge, with gradient bytes, over all models", f"correlation {law['nvlink_bytes']:.2f}"),
        ("over the network, with gradient bytes, over all models", f"correlation {law['network_bytes']:.2f}"),
        ("VGG-16 over ResNet-50, network", f"{exposed('vgg16', far) / exposed('resnet50', far):.1f} times the wait"),
        ("a chain of 32 convolutions", both(normed)),
        ("the same without batch normalisation", both(bare)),
        ("the same without shortcuts", both(plain)),
    ]  # fmt: skip


def _listed(one: Slice) -> str:
    return ", ".join(map(str, one.devices))


PAGE = """# Findings of Stash

Written by `tools/stash.py`; do not edit. Sharma et al. (ICDCS 2023, arXiv 2208.14344) measured how long training on AWS
instances waits for communication. Their measurements are not public; their abstract and scripts say what they found, with
which models and machines. Here is what predictions say of the same models on the same machines, with {batch} samples per GPU
as in their scripts, DistributedDataParallel, fp16 on P3 and fp32 on P2. Nothing is fitted to their figures, with one
exception: that GPUs of a P2 share a slot to the CPU, without direct peer transfers, was inferred from their largest stall.

- Interconnect stall: (T1 - T0) / T1 of all GPUs of one machine (T1) against one GPU (T0), synthetic data.
- Network slowdown: T1 of two machines over T1 of one machine with as many GPUs.

## Findings

{findings}

## Interconnect stalls

{stalls}

## Network slowdown

{network}

## Layers and gradients

Seconds that a step waits beyond T0, against the size of the model. Over the network bytes are all that counts: VGG waits
longest. Inside a machine the host adds most, and it counts launches. Leaving out normalisation or shortcuts changes the number
of gradient tensors but hardly their bytes, and DDP sends buckets, not tensors: next to nothing changes. A
[study](stalls.md#study) measures the same on any machine.

{laws}

## Slices of the cube mesh

Four of the eight V100 of a p3.16xlarge, as a p3.8xlarge has them: VGG-11 on each kind of slice.

{slices}
"""


def page() -> str:
    names = (*RESNETS, *OTHERS)
    verdicts = [(f.published, f.verdict, f.predicted, f.why) for f in findings()]
    rows = [(m, *(f"{100 * interconnect_stall(m, on):.0f} %" for on in MACHINES)) for m in names]
    network = [
        (
            m,
            f"{network_slowdown(m, '2 x aws:p3.8xlarge', 'aws:p3.16xlarge'):.1f} x",
            f"{network_slowdown(m, '2 x aws:p2.8xlarge', 'aws:p2.16xlarge'):.1f} x",
        )
        for m in names
    ]
    cut = [
        (_listed(one), one.alike, "not joined by NVLink" if one.seconds is None else f"{1e3 * one.seconds:.1f} ms")
        for one in slices()
    ]  # fmt: skip
    machines = [name.removeprefix("aws:") for name in MACHINES]
    return PAGE.format(
        batch=PER_DEVICE,
        findings=table(("published", "reproduced", "predicted", "why"), verdicts),
        stalls=table(("model", *machines), rows),
        network=table(("model", "2 x p3.8xlarge / p3.16xlarge", "2 x p2.8xlarge / p2.16xlarge"), network),
        laws=table(("stall", "predicted"), law_rows()),
        slices=table(("devices", "slices alike", "step"), cut),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "docs" / "stash.md")
    Path(parser.parse_args().output).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
