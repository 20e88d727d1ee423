"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from chasquimq import version

QUIET_LOAD_MAX = 1.5
_PACKAGES = ("hiredis", "msgspec", "ormsgpack", "redis", "uvloop")


def describe_machine() -> dict[str, Any]:
    """Processor, cores this process may use, system, and how busy it is before we add to it."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def quiet_text(machine: dict[str, Any]) -> str:
    """How busy the machine was before the run, with a warning when it was too busy to trust."""
    load = machine["load_average"][0]
    said = f"load average before the run: {load:.1f} on {machine['cores']} cores"
    if load <= QUIET_LOAD_MAX:
        return said
    return f"warning: {said}; above {QUIET_LOAD_MAX} no figure is a peak and ratios may be off"


def own_versions() -> dict[str, str]:
    """This package and what its speed rests on; what is not installed is left out."""
    versions = {"chasquimq-py": version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version_of(package)
    return versions


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
