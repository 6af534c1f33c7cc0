"""MeasuredCompute: kernels as they were timed on the user's own machine.

A kernel that was timed takes the time it took. Others of its kind, phase and number format are interpolated: the
logarithm of measured time over fitted roofline is a smooth function of the logarithms of FLOPs, bytes and dims,
taken as a Gaussian process over the nearest kernels that were timed (Rasmussen & Williams 2006, ch. 2). Near
measured kernels that is what they say; far from all of them it is the roofline, with a spread that says so. Kinds
and devices nobody timed go to the model that ships.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster import catalog
from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import table
from foretrain.cost.compute import Calibrated, ComputeModel, KernelCosts
from foretrain.cost.compute.roofline import dtype_on
from foretrain.errors import InputError
from foretrain.measurement.machine import GIB, Machine
from foretrain.measurement.tables import LOCAL, MeasuredOp, MeasuredRoofline
from foretrain.model.ops.base import LAUNCHES, Kernel

if TYPE_CHECKING:
    from foretrain.measurement.calibration import Calibration

Group = tuple[str, str, str, int]  # kind, phase, dtype, dims of the shape

REACHES = (0.75, 1.5, 3.0, 6.0)  # of the process, to choose from
UNEXPLAINED = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)  # deviation beyond that of the repeats, likewise
TRIED = 96  # kernels of a group to choose by
LEAST_TRIED = 6
NEIGHBOURS = 32
ANY = ""  # phase
STRANGE_SPREAD = 0.3  # of kinds nobody timed, at the rate of another kind
STREAMING = ("memory", "embedding", LAUNCHES)
"""Kinds that do little arithmetic: their FLOP/s say nothing of others."""
LEAST_SPREAD = 0.01  # of a median, however alike its repeats were
LEAST_PRIOR = 0.05  # of kernels around the roofline
# distance to the nearest timed kernel up to which an answer rests on measurements
MEASURED_WITHIN = 1.0


@dataclass(frozen=True)
class MeasuredCompute:
    """A compute model of one machine; `otherwise` times what the calibration does not know."""

    calibration: Calibration
    otherwise: ComputeModel = field(default_factory=Calibrated)

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts:
        fitted = self.calibration.roofline
        if fitted is None or device.identity != self.calibration.device:
            return self.otherwise.seconds(kernels, device)
        notes: dict[str, None] = {}
        known: dict[Kernel, tuple[float, float, bool, str] | None] = {}
        rest: list[Kernel] = []
        for kernel in kernels:
            if kernel not in known:
                dtype = dtype_on(kernel.dtype, device, table(), notes)
                known[kernel] = self._timed(kernel, dtype, device, fitted)
                if known[kernel] is None:
                    rest.append(kernel)
        if rest:
            other = self.otherwise.seconds(rest, device)
            columns = (other.seconds, other.spread, other.measured, other.source)
            known.update(zip(rest, zip(*columns, strict=True), strict=True))
            notes.update(dict.fromkeys(other.notes))
        answers = [timed for kernel in kernels if (timed := known[kernel]) is not None]
        return KernelCosts(
            seconds=np.array([a[0] for a in answers], dtype=np.float64),
            spread=np.array([a[1] for a in answers], dtype=np.float64),
            measured=np.array([a[2] for a in answers], dtype=np.bool_),
            source=tuple(str(a[3]) for a in answers),
            notes=tuple(notes),
        )

    def _timed(
        self, kernel: Kernel, dtype: str, device: Device, fitted: MeasuredRoofline
    ) -> tuple[float, float, bool, str] | None:
        """Seconds, spread, whether measured kernels say so, and the source; None where the roofline has no rate."""
        rates = self._rates
        base = rates.seconds(kernel.kind, dtype, kernel.flops, kernel.bytes)
        if base is None:
            return None
        slower = self._slower(kernel, dtype, device, fitted)
        own = self._exact.get(_identity(kernel, dtype))
        if own is not None:
            spread = max(own.spread, LEAST_SPREAD)
            return own.seconds * slower, spread, True, f"measured on {self._machine}"
        between = self._interpolated(kernel, dtype)
        if between is None:
            strange = 0.0 if self._rates.is_known(kernel.kind, dtype) else STRANGE_SPREAD
            spread = sqrt(fitted.spread**2 + LEAST_PRIOR**2 + strange**2)
            return base * slower, spread, False, f"roofline fitted on {self._machine}"
        correction, spread, is_measured = between
        seconds = max(base * exp(correction), self._rates.least(dtype, kernel.flops, kernel.bytes))
        source = f"interpolated between kernels measured on {self._machine}"
        return seconds * slower, spread, is_measured, source

    def _interpolated(self, kernel: Kernel, dtype: str) -> tuple[float, float, bool] | None:
        """(logarithm of time over roofline, spread, whether measured kernels are near); those of another phase stand in
        where none of this one were timed. None where none of the kind were."""
        place = _features(kernel.flops, kernel.bytes, kernel.shape)
        for phase in (kernel.phase, ANY):
            points = self._groups.get((kernel.kind, phase, dtype, len(kernel.shape)))
            if points is not None:
                correction, spread, distance = points.at(place)
                is_measured = phase == kernel.phase and distance <= MEASURED_WITHIN
                return correction, spread if phase == kernel.phase else 2.0 * spread, is_measured
        return None

    def _slower(
        self, kernel: Kernel, dtype: str, device: Device, fitted: MeasuredRoofline
    ) -> float:
        """How much slower the device is than the one that was measured: a share of its cores, or a what-if."""
        peak = device.peak(dtype)
        was = self._base_peaks.get(dtype)
        arithmetic = was / peak if peak and was else 1.0
        traffic = self._base_bandwidth / device.memory_bandwidth
        rate = self._rates.peak(kernel.kind, dtype)
        if rate is None or kernel.kind in STREAMING:
            return traffic
        return arithmetic if kernel.flops / rate >= kernel.bytes / fitted.bandwidth else traffic

    # --- worked out once ------------------------------------------------------------------------

    @cached_property
    def _machine(self) -> str:
        return self.calibration.name

    @cached_property
    def _rates(self) -> Rates:
        assert self.calibration.roofline is not None
        return Rates(self.calibration.roofline)

    @cached_property
    def _base_peaks(self) -> Mapping[str, float]:
        return measured_device(self.calibration).peaks

    @cached_property
    def _base_bandwidth(self) -> float:
        return measured_device(self.calibration).memory_bandwidth

    @cached_property
    def _exact(self) -> Mapping[tuple[object, ...], MeasuredOp]:
        return {op.identity: op for op in self.calibration.ops}

    @cached_property
    def _groups(self) -> Mapping[Group, Points]:
        groups: dict[Group, list[MeasuredOp]] = {}
        for op in self.calibration.ops:
            for phase in (op.phase, ANY):
                groups.setdefault((op.kernel, phase, op.dtype, len(op.shape)), []).append(op)
        return {group: Points.of(ops, self._rates) for group, ops in groups.items()}


def measured_device(calibration: Calibration) -> Device:
    """The device that was measured, with all its cores to itself."""
    if calibration.device != LOCAL:
        return catalog.find_device(calibration.device)
    fitted, machine = calibration.roofline, Machine.from_dict(calibration.machine)
    if fitted is None:
        raise InputError(
            "The calibration has no kernels, so the speed of this machine is unknown. Run "
            "'foretrain measure ops' and calibrate again."
        )
    return Device(
        name=LOCAL,
        title=machine.cpu,
        vendor=machine.cpu.split(" ")[0].lower() or "unknown",
        kind="cpu",
        architecture="x86",
        memory_bytes=max(machine.memory_gib, 1) * GIB,
        memory_bandwidth=fitted.best_bandwidth,
        peak_flops=tuple(sorted(fitted.best_flops.items())),
        pcie_bandwidth=calibration.data.host_to_device or fitted.best_bandwidth,
        source=f"highest rates measured on {machine.title}",
        compute_units=calibration.threads,
    )


def _identity(kernel: Kernel, dtype: str) -> tuple[object, ...]:
    return (kernel.kind, kernel.phase, dtype, kernel.shape, kernel.flops, kernel.bytes)


def _features(flops: float, moved: float, shape: Sequence[int]) -> Floats:
    features: Floats = np.log(
        np.array([max(flops, 1.0), max(moved, 1.0), *(dim + 1.0 for dim in shape)])
    )
    return features


@dataclass(frozen=True)
class Rates:
    """A fitted roofline, by kind of kernel."""

    fitted: MeasuredRoofline

    @cached_property
    def _peaks(self) -> Mapping[tuple[str, str], float]:
        return {(peak.kernel, peak.dtype): peak.flops for peak in self.fitted.peaks}

    def peak(self, kind: str, dtype: str) -> float | None:
        """FLOP/s of a kind of kernel; of the slowest kind like it in that format where it was not timed."""
        own = self._peaks.get((kind, dtype))
        others = [peak for peak in self.fitted.peaks if peak.dtype == dtype]
        alike = [peak for peak in others if (peak.kernel in STREAMING) == (kind in STREAMING)]
        return own or min((peak.flops for peak in alike or others), default=None)

    def is_known(self, kind: str, dtype: str) -> bool:
        return (kind, dtype) in self._peaks

    def least(self, dtype: str, flops: float, moved: float) -> float:
        """Seconds at the highest rates that anything reached."""
        best = self.fitted.best_flops.get(dtype)
        return max(flops / best if best else 0.0, moved / self.fitted.best_bandwidth)

    def seconds(self, kind: str, dtype: str, flops: float, moved: float) -> float | None:
        """None where nothing of that number format was timed."""
        peak = self.peak(kind, dtype)
        if peak is None:
            return None
        return self.fitted.start_seconds + max(flops / peak, moved / self.fitted.bandwidth)


@dataclass(frozen=True, eq=False)
class Points:
    """Kernels of one group that were timed: where they lie and how far they are from the roofline."""

    places: Floats  # [kernels, features]
    ratios: Floats  # natural logarithm of measured over fitted
    noise: Floats  # variance of each
    mean: float
    prior: float  # variance of the process around its mean
    reach: float  # natural logarithms over which kernels tell of each other

    @classmethod
    def of(cls, ops: Sequence[MeasuredOp], rates: Rates) -> Points:
        base = [rates.seconds(op.kernel, op.dtype, op.flops, op.bytes) or op.seconds for op in ops]
        ratios = np.array([log(op.seconds / b) for op, b in zip(ops, base, strict=True)])
        middle = float(np.median(ratios))
        prior = max(float(np.mean((ratios - middle) ** 2)), LEAST_PRIOR**2)
        noise = np.array([max(op.spread, LEAST_SPREAD) ** 2 for op in ops])
        places = np.stack([_features(op.flops, op.bytes, op.shape) for op in ops])
        few = np.linspace(0, len(ops) - 1, min(len(ops), TRIED)).round().astype(np.int64)
        reach, unexplained = _smoothing(places[few], ratios[few] - middle, noise[few], prior)
        return cls(places, ratios, noise + unexplained, middle, prior, reach)

    def at(self, place: Floats) -> tuple[float, float, float]:
        """(logarithm of time over roofline, its standard deviation, distance to the nearest kernel)."""
        apart = np.sqrt(((self.places - place) ** 2).mean(axis=1))
        near = np.argsort(apart, kind="stable")[:NEIGHBOURS]
        places, noise = self.places[near], self.noise[near]
        covariance = self.prior * _alike(_between(places), self.reach) + np.diag(noise)
        here = self.prior * _alike(apart[near] ** 2, self.reach)
        sides = np.stack([self.ratios[near] - self.mean, here], axis=1)
        solved = np.linalg.solve(covariance, sides)
        correction = self.mean + float(here @ solved[:, 0])
        variance = self.prior - float(here @ solved[:, 1])
        spread = sqrt(max(variance, 0.0) + float(noise[0]))
        return correction, spread, float(apart[near[0]])


def _smoothing(places: Floats, ratios: Floats, noise: Floats, prior: float) -> tuple[float, float]:
    """The reach and the variance beyond that of the repeats under which each kernel is foretold best by the others:
    the greatest leave-one-out likelihood (Rasmussen & Williams 2006, eq. 5.10-5.12). Caches and tiles that shapes do
    not tell of, and a machine that was busy at the time, are such variance."""
    if len(ratios) < LEAST_TRIED:
        return REACHES[1], 0.0
    between = _between(places)
    best, chosen = -np.inf, (REACHES[1], 0.0)
    for reach in REACHES:
        alike = prior * _alike(between, reach)
        for unexplained in UNEXPLAINED:
            inverse = np.linalg.inv(alike + np.diag(noise + unexplained**2))
            variance = 1.0 / np.diag(inverse)
            missed = (inverse * ratios).sum(axis=1) * variance
            likelihood = float(-0.5 * (np.log(variance) + missed**2 / variance).sum())
            if likelihood > best:
                best, chosen = likelihood, (reach, unexplained**2)
    return chosen


def _between(places: Floats) -> Floats:
    """Squared distances."""
    squared: Floats = ((places[:, None, :] - places[None, :, :]) ** 2).mean(axis=2)
    return squared


def _alike(squared: Floats, reach: float) -> Floats:
    """Correlation of a Matérn process of smoothness 3/2: smooth, but no smoother than tiles and caches allow."""
    scaled = sqrt(3.0) * np.sqrt(squared) / reach
    likeness: Floats = (1.0 + scaled) * np.exp(-scaled)
    return likeness
