"""Machine: which hardware and software a measurement is of."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from foretrain.units import counted

GIB = 2**30


# Not slotted: cached_property keeps the fingerprint in the instance's __dict__.
@dataclass(frozen=True)
class Machine:
    """A fingerprint. Two machines are the same if hardware, driver and the versions of `SPEED` are."""

    cpu: str  # model name
    cores: int  # logical
    memory_gib: int
    devices: tuple[str, ...]  # GPUs by name; empty where there are none
    driver: str
    host: str  # hash of the host name: tells machines apart, names none
    system: str
    software: tuple[tuple[str, str], ...]  # (package, version), sorted

    @cached_property
    def id(self) -> str:
        """16 hexadecimal digits over what decides how fast the machine is."""
        facts = self.to_dict()
        facts["software"] = {k: v for k, v in self.software if k in SPEED}
        del facts["system"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """For people: `2 x AMD EPYC 7B13 cores, 8 GiB`."""
        gpus = f", {len(self.devices)} x {self.devices[0]}" if self.devices else ""
        return f"{counted(self.cores, 'core')} of {self.cpu}, {self.memory_gib} GiB{gpus}"

    @classmethod
    def here(cls) -> Machine:
        """The machine this runs on. Does not import torch: versions come from installed packages."""
        devices, driver = _gpus()
        return cls(
            cpu=_cpu_model(),
            cores=os.cpu_count() or 1,
            memory_gib=round(_memory_bytes() / GIB),
            devices=devices,
            driver=driver,
            host=hashlib.sha256(socket.gethostname().encode()).hexdigest()[:16],
            system=f"{platform.system()} {platform.release()}",
            software=_software(),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "devices": list(self.devices),
            "software": dict(self.software),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Machine:
        """Inverse of `to_dict`; a `ValueError` says what is wrong."""
        missing = [one.name for one in fields(cls) if one.name not in row]
        if missing:
            raise ValueError(f"machine: {', '.join(missing)} missing")
        software = row["software"]
        if not isinstance(software, Mapping) or not isinstance(row["devices"], list):
            raise ValueError("machine: software must be a mapping and devices a list")
        return cls(
            cpu=_text(row["cpu"]),
            cores=_count(row["cores"]),
            memory_gib=_count(row["memory_gib"]),
            devices=tuple(_text(name) for name in row["devices"]),
            driver=_text(row["driver"]),
            host=_text(row["host"]),
            system=_text(row["system"]),
            software=tuple(sorted((_text(k), _text(v)) for k, v in software.items())),
        )


SPEED = ("torch",)
"""Packages whose version decides how fast kernels are."""
TOLD = ("torch", "numpy", "foretrain")


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**40:
        raise ValueError(f"machine: expected a whole number, got {str(value)[:60]!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 1000:
        raise ValueError(f"machine: expected a short string, got {str(value)[:60]!r}")
    return value


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Hardware", "cpu model"):
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 0.0


def _gpus() -> tuple[tuple[str, ...], str]:
    """Names and driver of the GPUs that `nvidia-smi` sees."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return (), ""
    rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line]
    return tuple(row[0].strip() for row in rows), rows[0][1].strip() if rows else ""


def _software() -> tuple[tuple[str, str], ...]:
    versions = {"python": platform.python_version()}
    for package in TOLD:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return tuple(sorted(versions.items()))
