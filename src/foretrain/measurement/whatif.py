"""What would change the speed of a measured run: cache, workers and cores, disk, network; `feeding` is the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from foretrain.errors import InputError, did_you_mean, refuse
from foretrain.limits import is_finite
from foretrain.measurement.feeding import Feeding, feeding
from foretrain.measurement.train_runs import TrainRun

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
FACTORS = (2.0, 4.0, 10.0)


def whatif_document(runs: Mapping[str, TrainRun]) -> dict[str, Any] | None:
    """Speed and bottleneck over cached fraction, workers, disk and network; what removes the data stall."""
    now = feeding(runs)
    if now is None:
        return None
    counts = sorted({1, 2, 4, 8, max(1, now.workers), 2 * max(1, now.workers)})
    return {
        "now": _row(now),
        "cached_fraction": [{"cached": x, **_row(now.with_(cached=x))} for x in FRACTIONS],
        "workers": [{"workers": n, **_row(now.with_(workers=n))} for n in counts],
        "workers_warm": [{"workers": n, **_row(now.with_(workers=n, cached=1.0))} for n in counts],
        "cores": [
            {"cores": now.cores * k, **_row(now.with_(cores=now.cores * k, cached=1.0))}
            for k in (1.0, *FACTORS)
        ],
        "disk": [{"factor": k, **_row(now.with_(disk=k))} for k in FACTORS],
        "network": [{"factor": k, **_row(now.with_(network=k))} for k in FACTORS],
        "smallest_cached_fraction": now.smallest_cache(),
        "smallest_cache_bytes": _cache_bytes(now, runs),
        "fewest_workers_cold": now.with_(cached=0.0).fewest_workers(),
        "fewest_workers_warm": now.with_(cached=1.0).fewest_workers(),
        "cores_per_rank": now.cores_needed(),
        "worker_seconds_warm": now.warm,
        "worker_seconds_cold": now.cold,
        "communication_seconds_alone": now.communication,
        "feeding": asdict(now),
    }


def feeding_of(document: Any, name: str = "the document") -> Feeding:
    """What a `measure train` document says."""
    fields_of = document.get("what_if") if isinstance(document, Mapping) else None
    fields_of = fields_of.get("feeding") if isinstance(fields_of, Mapping) else None
    if not isinstance(fields_of, Mapping):
        raise InputError(f"{name} was not written by `measure train`, or has no data loader run.")
    faults = [
        f"what_if.feeding.{field.name}: {fields_of.get(field.name)!r} must be a number, zero or more."
        for field in fields(Feeding)
        if not _is_amount(fields_of.get(field.name))
    ]
    refuse(f"{name} is invalid:", faults)
    return Feeding(**{field.name: fields_of[field.name] for field in fields(Feeding)})


CHANGES = ("cached", "workers", "cores", "disk", "network")


def changed(now: Feeding, changes: Mapping[str, Any]) -> Feeding:
    """`{"workers": 8, "disk": "2x"}` applied; every wrong one is named."""
    faults, wanted = [], {}
    for name, value in changes.items():
        if name not in CHANGES:
            known = ", ".join(CHANGES)
            faults.append(f"{name}: unknown.{did_you_mean(name, CHANGES)} Known: {known}.")
            continue
        number = _amount(value)
        if (
            number is None
            or (name == "cached" and number > 1)
            or (name != "cached" and number == 0)
        ):
            faults.append(f"{name}: {value!r} is invalid; write for example {_EXAMPLE[name]}.")
        elif name == "workers" and not number.is_integer():
            faults.append(f"workers: {value!r} is not a whole number.")
        else:
            wanted[name] = number
    refuse("invalid change:", faults)
    workers = wanted.pop("workers", None)
    return now.with_(**wanted, workers=None if workers is None else int(workers))


_EXAMPLE = {
    "cached": "cached=0.5",
    "workers": "workers=8",
    "cores": "cores=4",
    "disk": "disk=2x",
    "network": "network=2x",
}


def _amount(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value.removesuffix("x"))
        except ValueError:
            return None
    return float(value) if _is_amount(value) else None


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and is_finite(value) and value >= 0


def _row(fed: Feeding) -> dict[str, Any]:
    point = fed.point()
    return {"step_seconds": point.step_seconds, "bottleneck": point.bottleneck}


def _cache_bytes(fed: Feeding, runs: Mapping[str, TrainRun]) -> float | None:
    share = fed.smallest_cache()
    sizes = [float(run.facts.get("data_bytes") or 0.0) for run in runs.values()]
    return None if share is None or not any(sizes) else share * max(sizes)
