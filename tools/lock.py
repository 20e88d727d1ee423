"""Writes the pins and their hashes in requirements/ from what pyproject.toml asks for.

uv resolves for every supported platform at once and reads the hashes of all files of a version from
the index. Run it as `make lock`; pins stay as they are unless an upgrade is asked for.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
OLDEST_PYTHON = "3.11"
# For each file what it is for, the files that it extends, and what pyproject.toml calls its content.
CORE, RUN, SQL, SPARK, TEST = "core.txt", "run.txt", "sql.txt", "spark.txt", "test.txt"
WORKER, BUILD, SPARK_BUILD, RELEASE = "worker.txt", "build.txt", "spark-build.txt", "release.txt"
DOCS, MATRIX = "docs.txt", "matrix.txt"
FILES: dict[str, tuple[str, ...]] = {
    CORE: ("pyproject.toml",),
    WORKER: ("pyproject.toml", "--extra", "fast", "--extra", "prometheus"),
    RUN: ("pyproject.toml", "--extra", "embedded"),
    SQL: ("pyproject.toml", "--extra", "sql"),
    SPARK: ("pyproject.toml", "--extra", "spark"),
    TEST: ("pyproject.toml", "--extra", "dev"),
    DOCS: ("--group", "pyproject.toml:docs"),
    MATRIX: (
        *("pyproject.toml", "--extra", "embedded", "--extra", "fast", "--extra", "otel"),
        *("--extra", "prometheus", "--group", "pyproject.toml:matrix"),
    ),
    BUILD: ("--group", "pyproject.toml:build"),
    SPARK_BUILD: ("--group", "pyproject.toml:spark-build"),
    RELEASE: ("--group", "pyproject.toml:release"),
}
# Exists only as source; requirements/spark-build.txt is what builds it.
SOURCE_ONLY = "pyspark"
PLATFORMS = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


class LockFailed(Exception):
    """One sentence with a remedy."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/lock.py", description=__doc__)
    parser.add_argument("--upgrade", metavar="NAME", help="move this package to its newest; or all")
    parser.add_argument(
        "--platforms", action="store_true", help="only say where a pinned wheel is missing"
    )
    options = parser.parse_args(argv)
    try:
        if options.platforms:
            return report_platforms()
        lock(options.upgrade)
    except LockFailed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    return 0


def lock(upgrade: str | None) -> None:
    """Rewrite every file, or none."""
    with tempfile.TemporaryDirectory() as made:
        for name in FILES:
            _compile(name, Path(made), upgrade)
        for name in FILES:
            (REQUIREMENTS / name).write_text((Path(made) / name).read_text())


def report_platforms() -> int:
    """Print a line for each file, platform and Python that lacks a wheel; 1 when there is one."""
    missing = 0
    for name in FILES:
        for platform in PLATFORMS:
            for python in PYTHONS:
                why = _refusal(name, platform, python)
                if why:
                    missing += 1
                    print(f"{name} {platform} {python}: {why}", flush=True)
    return 1 if missing else 0


def extended(head: str) -> list[str]:
    """The files that a file extends, itself left out, lowest first."""
    found: list[str] = []
    for name in re.findall(r"^-r (\S+)$", head, re.MULTILINE):
        found += [*extended(_head(name)), name]
    return found


def _compile(name: str, made: Path, upgrade: str | None) -> None:
    head = _head(name)
    # What is installed beside each other must agree, also where no file extends the other.
    agreeing = [other for other in FILES if (made / other).exists()]
    draft = made / name
    draft.write_text(_without_head(name))
    done = _uv(
        "compile",
        *FILES[name],
        *(word for other in agreeing for word in ("--constraint", str(made / other))),
        *_upgrades(upgrade),
        *("--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"),
        *("--only-binary", ":all:", "--no-binary", SOURCE_ONLY),
        *("--no-header", "--no-annotate", "--quiet", "--output-file", str(draft)),
    )
    if done.returncode:
        raise LockFailed(
            f"uv found no pins for requirements/{name} ({_first_line(done.stderr)}); "
            "correct the ranges in pyproject.toml, or check the network and uv's index settings"
        )
    inherited = {pin for below in extended(head) for pin in _pins((made / below).read_text())}
    pins = _pins(draft.read_text())
    draft.write_text(head + "".join(pin for pin in pins if pin not in inherited))


def _head(name: str) -> str:
    """All before the first pin: comments, the file it extends and the options of pip."""
    return (REQUIREMENTS / name).read_text()[: _first_pin(name)]


def _without_head(name: str) -> str:
    return (REQUIREMENTS / name).read_text()[_first_pin(name) :]


def _first_pin(name: str) -> int:
    text = (REQUIREMENTS / name).read_text()
    first = PIN.search(text)
    return first.start() if first else len(text)


def _pins(text: str) -> list[str]:
    """Each pin with its marker and hashes; one that others extend may hold for some Pythons only."""
    return [entry for entry in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if PIN.match(entry)]


def _upgrades(upgrade: str | None) -> list[str]:
    if upgrade is None:
        return []
    return ["--upgrade"] if upgrade == "all" else ["--upgrade-package", upgrade]


def _refusal(name: str, platform: str, python: str) -> str:
    """Why pip would not install this file there; empty: it would."""
    with tempfile.TemporaryDirectory() as target:
        done = _uv(
            "install",
            *("--dry-run", "--target", target, "--require-hashes", "--quiet"),
            *("--only-binary", ":all:", "--no-binary", SOURCE_ONLY),
            *("--python-platform", platform, "--python-version", python),
            *("--requirements", str(REQUIREMENTS / name)),
        )
    return _first_line(done.stderr) if done.returncode else ""


def _uv(command: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "uv", "pip", command, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    except OSError as missing:
        raise LockFailed(f"{sys.executable} cannot be run ({missing.strerror})") from missing


def _first_line(text: str) -> str:
    """The beginning of what uv said, without the lines that it draws."""
    lines = [re.sub(r"^\W+", "", line) for line in text.splitlines()]
    return (" ".join(list(filter(None, lines))[:3]) or "no output").rstrip(".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
