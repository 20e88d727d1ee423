"""Makes an environment beside .venv and fills it with pinned packages, by hash, with the pinned uv."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


class InstallFailed(Exception):
    """One sentence with a remedy."""


def make_environment(path: Path, base: str) -> Path:
    """Make an environment without packages for a Python; return the Python inside."""
    _uv(
        "venv",
        "--quiet",
        "--clear",
        "--no-project",
        "--no-python-downloads",
        "--python",
        base,
        str(path),
    )
    return path / "bin" / "python"


def install_pins(python: Path, pins: Path) -> None:
    """Make an environment hold what a file pins, and nothing else."""
    run_uv("sync", "--python", str(python), "--require-hashes", "--only-binary", ":all:", str(pins))


def run_uv(command: str, *words: str) -> None:
    """Run a command of `uv pip`."""
    _uv("pip", command, "--quiet", *words)


def _uv(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "uv", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join(re.findall(r"\w.*", done.stderr))
        raise InstallFailed(
            f"uv {' '.join(words[:2])} failed ({said[:300] or 'no output'}); "
            "check the network and uv's index settings, then try again"
        )
