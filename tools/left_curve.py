"""How far off the model of collectives is where measured curves exist but do not hold.

python tools/left_curve.py     prints it, by device and in all

Every curve that ships is asked of the model alone, on the first machine of the catalog that has its device, from
1 MB to 512 MB. The root mean square of log(model / curve) is the term `left_curve` of
`cost/calibration/uncertainty.yaml`: a standard deviation of log seconds of the collectives concerned.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from foretrain.cluster.catalog import nodes
from foretrain.cluster.cluster import Cluster
from foretrain.cost.collective_costs import contended
from foretrain.cost.curves import CurveTable, Key, MeasuredCurve, shipped
from foretrain.cost.network import Network

SIZES = 2.0 ** np.arange(20, 30)


class Modelled(Network):
    """A network that knows no curve."""

    def curves(self, library: str, domains: int) -> tuple[CurveTable, ...]:
        return ()


def off() -> dict[str, NDArray[np.float64]]:
    """By device log(model / curve) of every size of every curve that holds for more than one machine."""
    found: dict[str, list[float]] = {}
    for (device, ranks, collective), curve, machine in _placed():
        group = np.arange(ranks)[None, :]
        asked = contended(Modelled(Cluster.of(f"1 x {machine}")), group, collective, "nccl")
        found.setdefault(device, []).extend(
            float(np.log(asked.seconds(size)[0] / float(curve.at(size)))) for size in SIZES.tolist()
        )
    return {device: np.array(values) for device, values in found.items()}


def _placed() -> Iterator[tuple[Key, MeasuredCurve, str]]:
    for key, curve in shipped().curves.items():
        able = (
            name
            for name, node in nodes().items()
            if node.devices[0].identity == key[0] and node.device_count >= key[1]
        )
        machine = next(able, None)
        if machine is not None and not curve.only_on:
            yield key, curve, machine


def spread() -> float:
    """Root mean square over all."""
    return float(np.sqrt(np.mean(np.concatenate(list(off().values())) ** 2)))


def main() -> None:
    for device, values in off().items():
        print(f"{device}: {len(values)} points, {np.sqrt(np.mean(values**2)):.3f}")
    print(f"all: {spread():.3f}")


if __name__ == "__main__":
    main()
