"""Fields: measured times of many related curves, completed and smoothed together.

Collective libraries switch algorithm and protocol at certain sizes, so one curve alone says little about the
sizes between its points. But the switches of related curves are related: another rank count, another
collective, the next GPU generation. So log-seconds of all curves are one Gaussian process (Rasmussen &
Williams 2006, chapters 2 and 5) over (device, ranks, collective, size): a sum of components, each a Matérn 3/2
function of log2 of the size (or of the size per rank), less alike the more devices, ranks or collectives
differ, with its own strength along the size axis. Strengths and likenesses are found by marginal likelihood
with weak priors; a Student-t likelihood with four degrees of freedom (by reweighting) keeps single bad
readings from bending a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Floats, Ints

SIZE_KNOTS = np.array([9.0, 12, 15, 18, 21, 24, 29])  # log2 bytes at which strengths are given
MEAN = (1e-5, 3e11)  # seconds + bytes / (bytes/s): a rough bend that the field then corrects
JITTER, MEAN_VARIANCE, DEGREES = 1e-8, 1.0, 4.0
FROM_ONE_READING = 2.0  # variance of a median falls with its readings …
ALWAYS = 0.3  # … but not to nothing: runs differ


@dataclass(frozen=True)
class Points:
    """Medians of readings, one row each. `family` groups devices of one generation, `bus` is 1 for PCIe."""

    device: Ints
    family: Ints
    bus: Ints
    ranks: Floats  # log2
    collective: Ints
    size: Floats  # log2 bytes
    log_seconds: Floats
    readings: Floats

    def take(self, rows: Ints | NDArray[np.bool_]) -> Points:
        return Points(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True)
class Component:
    """Where a component starts its search."""

    strength: float
    length: float
    per_rank: bool  # along size / ranks instead of size
    unlike_bus: float = -1.5
    bus_strength: float = 0.0


COMPONENTS = (
    Component(-0.3, 8.0, per_rank=False),
    Component(-2.5, 1.0, per_rank=False),
    Component(-2.5, 1.0, per_rank=True),
    Component(-2.3, 2.5, per_rank=True),
    Component(-3.5, 1.0, per_rank=False, unlike_bus=1.0, bus_strength=1.5),
)


class Shape:
    """Where each hyperparameter stands in the one long vector; priors are normal."""

    def __init__(self, devices: int, collectives: int) -> None:
        self.devices, self.collectives, self.sizes = devices, collectives, len(SIZE_KNOTS)
        self.width = 6 + devices + collectives + self.sizes + 1
        self.noise = self.width * len(COMPONENTS)
        mean, spread = [], []
        for c in COMPONENTS:
            mean += [c.strength, np.log(c.length), -1.5, c.unlike_bus, -1.5, -1.5]
            mean += [-3.5] * devices + [-2.0] * collectives + [0.0] * self.sizes + [c.bus_strength]
            spread += [1.5, 0.7, 1.5, 1.5, 1.5, 1.5]
            spread += [1.0] * (devices + collectives) + [0.6] * self.sizes + [0.7]
        mean += [np.log(0.012)] * devices + [0.0] * (collectives + self.sizes)
        spread += [0.7] * devices + [0.4] * (collectives + self.sizes)
        self.mean, self.spread = np.array(mean), np.array(spread)

    def component(self, values: Floats, index: int) -> tuple[Floats, ...]:
        own = values[index * self.width : (index + 1) * self.width]
        ends = np.cumsum([2, 4, self.devices, self.collectives, self.sizes, 1])
        return tuple(np.split(own, ends[:-1]))

    def noise_parts(self, values: Floats) -> tuple[Floats, ...]:
        ends = (self.devices, self.devices + self.collectives)
        return tuple(np.split(values[self.noise :], ends))


def _along(size: Floats) -> Floats:
    """Weights of the size knots at each size."""
    return np.stack([np.interp(size, SIZE_KNOTS, row) for row in np.eye(len(SIZE_KNOTS))], axis=1)


@dataclass
class Pairs:
    """Differences of every point of `a` to every point of `b`."""

    a: Points
    b: Points
    unlike: list[Floats] = field(init=False)
    other_device: Floats = field(init=False)
    other_collective: Floats = field(init=False)
    apart: tuple[Floats, Floats] = field(init=False)

    def __post_init__(self) -> None:
        def differ(x: Ints, y: Ints) -> Floats:
            return (x[:, None] != y[None]).astype(np.float64)

        def distance(x: Floats, y: Floats) -> Floats:
            return np.abs(x[:, None] - y[None])

        a, b = self.a, self.b
        few, many = (
            distance(np.clip(a.ranks, low, low + 1), np.clip(b.ranks, low, low + 1))
            for low in (1, 2)
        )
        self.unlike = [differ(a.family, b.family), differ(a.bus, b.bus), few, many]
        self.other_device = differ(a.device, b.device)
        self.other_collective = differ(a.collective, b.collective)
        self.apart = (distance(a.size, b.size), distance(a.size - a.ranks, b.size - b.ranks))


def _covariance(pairs: Pairs, shape: Shape, values: Floats, index: int) -> tuple[Floats, Floats]:
    """One component between all pairs, and its derivative by the log of its length (negated)."""
    (strength, length), unlike, device, collective, sizes, bus = shape.component(values, index)
    a, b = pairs.a, pairs.b
    r = np.sqrt(3.0) * pairs.apart[COMPONENTS[index].per_rank] * np.exp(-length)
    fall = np.exp(-r)
    decay = sum(np.exp(w) * d for w, d in zip(unlike, pairs.unlike, strict=True))
    own, kind = np.exp(device), np.exp(collective)
    decay = decay + (own[a.device][:, None] + own[b.device][None]) * pairs.other_device
    decay += (kind[a.collective][:, None] + kind[b.collective][None]) * pairs.other_collective
    left = _along(a.size) @ sizes + bus * a.bus
    right = _along(b.size) @ sizes + bus * b.bus
    weight = np.exp(2.0 * strength - decay + left[:, None] + right[None])
    return (1.0 + r) * fall * weight, -r * r * fall * weight


def _noise(points: Points, shape: Shape, values: Floats) -> Floats:
    device, collective, sizes = shape.noise_parts(values)
    level = device[points.device] + collective[points.collective] + _along(points.size) @ sizes
    return np.exp(2.0 * level) * (ALWAYS + FROM_ONE_READING / points.readings)


def _mean(points: Points) -> Floats:
    return np.log(MEAN[0] + np.exp2(points.size) / MEAN[1])


class Field:
    """The process given points: `at` predicts log-seconds elsewhere."""

    def __init__(self, points: Points, shape: Shape, values: Floats, passes: int = 3) -> None:
        from scipy.linalg import cho_factor, cho_solve

        self.points, self.shape, self.values = points, shape, values
        pairs = Pairs(points, points)
        clean = _total(pairs, shape, values)
        noise = _noise(points, shape, values) + JITTER
        self.doubt = np.ones(len(points))
        rest = points.log_seconds - _mean(points)
        for _ in range(passes):
            inverse = cho_solve(cho_factor(clean + np.diag(noise * self.doubt)), np.eye(len(rest)))
            self.weights = inverse @ rest
            self.left_out = self.weights / np.diag(inverse)  # residual without the point itself
            surprise = self.left_out * np.sqrt(np.diag(inverse))
            self.doubt = np.maximum((DEGREES + surprise**2) / (DEGREES + 1.0), 0.6)

    def at(self, points: Points) -> Floats:
        return (
            _mean(points)
            + _total(Pairs(points, self.points), self.shape, self.values) @ self.weights
        )


def _total(pairs: Pairs, shape: Shape, values: Floats) -> Floats:
    parts = (_covariance(pairs, shape, values, i)[0] for i in range(len(COMPONENTS)))
    return sum(parts, start=np.full(pairs.apart[0].shape, MEAN_VARIANCE))


def fit(points: Points, shape: Shape, rounds: Sequence[int] = (90, 25, 25)) -> Floats:
    """Hyperparameters: the most probable ones given the points alone."""
    from scipy.optimize import minimize

    values, doubt = shape.mean, np.ones(len(points))
    pairs = Pairs(points, points)
    for iterations in rounds:
        found = minimize(
            _loss, values, (points, pairs, shape, doubt), "L-BFGS-B", True, options={"maxiter": iterations}
        )  # fmt: skip
        values = found.x
        doubt = Field(points, shape, values, passes=2).doubt
    return np.round(values, 4)


def _loss(
    values: Floats, points: Points, pairs: Pairs, shape: Shape, doubt: Floats
) -> tuple[float, Floats]:
    """Negative log of likelihood times prior, and its gradient (Rasmussen & Williams, eq. 5.9)."""
    from scipy.linalg import cho_solve

    count = len(points)
    parts = [_covariance(pairs, shape, values, i) for i in range(len(COMPONENTS))]
    noise = _noise(points, shape, values) * doubt
    total = sum((k for k, _ in parts), start=np.full((count, count), MEAN_VARIANCE))
    total[np.diag_indices(count)] += noise + JITTER
    try:
        lower = np.linalg.cholesky(total)
    except np.linalg.LinAlgError:
        return 1e9, np.zeros_like(values)
    inverse = cho_solve((lower, True), np.eye(count))
    rest = points.log_seconds - _mean(points)
    weights = inverse @ rest
    by_entry = 0.5 * (inverse - np.outer(weights, weights))
    pieces = [
        _component_gradient(by_entry, part, points, pairs, shape, values, i)
        for i, part in enumerate(parts)
    ]
    by_noise = 2.0 * np.diag(by_entry) * noise
    pieces += [
        np.bincount(points.device, by_noise, shape.devices),
        np.bincount(points.collective, by_noise, shape.collectives),
        _along(points.size).T @ by_noise,
    ]
    off = (values - shape.mean) / shape.spread
    loss = 0.5 * rest @ weights + np.log(np.diag(lower)).sum() + 0.5 * off @ off
    return float(loss), np.concatenate(pieces) + off / shape.spread


def _component_gradient(
    by_entry: Floats,
    part: tuple[Floats, Floats],
    points: Points,
    pairs: Pairs,
    shape: Shape,
    values: Floats,
    index: int,
) -> Floats:
    _, unlike, device, collective, _, _ = shape.component(values, index)
    pull = by_entry * part[0]
    by_row = pull.sum(axis=1)
    by_device = np.bincount(points.device, (pull * pairs.other_device).sum(1), shape.devices)
    by_kind = np.bincount(points.collective, (pull * pairs.other_collective).sum(1), shape.collectives)  # fmt: skip
    return np.concatenate([
        [2.0 * by_row.sum(), -np.vdot(by_entry, part[1])],
        [-np.exp(w) * np.vdot(pull, d) for w, d in zip(unlike, pairs.unlike, strict=True)],
        -2.0 * np.exp(device) * by_device,
        -2.0 * np.exp(collective) * by_kind,
        2.0 * _along(points.size).T @ by_row,
        [2.0 * points.bus @ by_row],
    ])  # fmt: skip
