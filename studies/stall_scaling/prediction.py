"""The simulator's own answer to a study: the same networks, the measured exchange, the measured speed of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretrain.cluster import catalog
from foretrain.cluster.cluster import Cluster, NodeRun
from foretrain.cluster.device import Device
from foretrain.cluster.link import ClusterNetwork, Interconnect
from foretrain.cluster.node import Host, Node
from foretrain.cost.compute import Calibrated, ComputeModel
from foretrain.cost.compute.base import KernelCosts
from foretrain.cost.curves import OwnCurves
from foretrain.measurement.link_curves import isotonic, own_curves, wire
from foretrain.measurement.tables import LinkCurve
from foretrain.model.graph import Model
from foretrain.model.ops.base import Kernel
from foretrain.model.zoo.cnn import ConvSketch, carried, image
from foretrain.resolving import ask
from foretrain.simulate import answer
from studies.stall_scaling.networks import CLASSES, PIXELS, Net

__all__ = ["graph_of", "predicted_stalls"]

DEVICE = "generic-cpu"


@dataclass(frozen=True, slots=True)
class ScaledCompute:
    """Kernels of a known device, all of them slower or faster by one factor."""

    factor: float

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts:
        costs = Calibrated().seconds(kernels, device)
        return replace(costs, seconds=costs.seconds * self.factor)


@dataclass(frozen=True, eq=False, slots=True)
class _Measured:
    """What the study measured, as a question takes it."""

    compute: ComputeModel
    curves: OwnCurves | None
    name: str = "study"

    @property
    def digest(self) -> str:
        """Of one run of the study, which is not kept: no other has it."""
        return str(id(self))


def graph_of(net: Net) -> Model:
    """The network as the simulator sees it: the same tensors as `worker.Chain`."""
    s = ConvSketch()
    h = s.conv("conv", image(3, PIXELS, PIXELS), net.width, 3)
    h = s.pointwise("y", "relu", s.batch_norm("bn", h) if net.is_normed else h)
    blocks = [s.finish("stem", None, h)]
    s, x = ConvSketch(), carried(h)
    h = s.conv("conv", x, net.width, 3)
    h = s.batch_norm("bn", h) if net.is_normed else h
    h = s.pointwise("add", "add", h, x) if net.is_residual else h
    h = s.pointwise("y", "relu", h)
    blocks.append(s.finish("unit", x, h, net.depth))
    s, x = ConvSketch(), carried(h)
    s.classify(s.global_pool("pool", x), net.width, CLASSES)
    blocks.append(s.finish("head", x, None))
    return Model(net.name, tuple(blocks), source="foretrain study")


def predicted_stalls(
    family: Sequence[Net],
    devices: int,
    batch: int,
    curve: Sequence[Sequence[float]],
    alone: Sequence[float],
) -> list[float]:
    """Exposed communication of each network on `devices` processes that take `alone` seconds each by themselves."""
    sizes, seconds = [row[0] for row in curve], isotonic([row[1] for row in curve])
    link = LinkCurve("all_reduce", "gloo", devices, 1, tuple(sizes), seconds)
    curves = own_curves((link,), DEVICE)
    latency, bandwidth = wire((link,), 1) or (0.0, sizes[-1] / seconds[-1])
    return [
        _stall(net, devices, batch, _Measured(ScaledCompute(1.0), curves), latency, bandwidth, one)
        for net, one in zip(family, alone, strict=True)
    ]


def _stall(
    net: Net,
    devices: int,
    batch: int,
    measured: _Measured,
    latency: float,
    bandwidth: float,
    alone: float,
) -> float:
    """Scaled so that one process takes what it was measured to take, then asked for several."""
    model = graph_of(net)

    def step(count: int, factor: float) -> dict[str, float]:
        question = ask(
            model,
            on=_processes(count, latency, bandwidth),
            plan=f"dp{count}",
            batch=batch * count,
            micro_batch=batch,
            precision="fp32",
            optimizer="sgd",
            runtime="cpu-gloo",
            runtime_options={"host_seconds_per_kernel": 0.0},
            measured=_Measured(ScaledCompute(factor), measured.curves),
        )
        prediction = answer(question)
        return {"step": prediction.step_seconds, **prediction.stalls}

    together = step(devices, alone / step(1, 1.0)["step"])
    return together["interconnect"] + together["network"]


def _processes(count: int, latency: float, bandwidth: float) -> Cluster:
    device = catalog.find_device(DEVICE)
    node = Node(
        name="local",
        title="processes of one machine",
        devices=(device,) * count,
        interconnect=Interconnect("loopback", "nvswitch", latency, bandwidth),
        nics=None,
        host=Host(),
        source="measured by the study",
    )
    return Cluster(f"{count} processes", (NodeRun(node, 1, count),), ClusterNetwork("none"))
