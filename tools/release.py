"""Makes and looks over a release: its files, an SBOM of what it installs, and known weaknesses.

Run it by make: build, sbom and audit use the environment that `./chasqui setup release` makes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
# The files that a user installs, each with an SBOM of its own.
INSTALLED = ("core", "worker", "run", "sql", "spark")
# These extend all others or stand alone.
AUDITED = ("docs.txt", "build.txt", "spark-build.txt", "release.txt")
SERVICES = ("pypi", "osv")
# A zip archive knows no moment before 1980.
EARLIEST = "315532800"
EXIT_FOUND = 1
UNREACHED = "requests.exceptions."
# Nothing was learned: not the same as nothing found.
EXIT_NOT_AUDITED = 3


class ToolFailed(Exception):
    """One sentence with a remedy."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/release.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("build", "wheel and sdist"), ("sbom", "CycloneDX, a file for each set")):
        command = commands.add_parser(name, help=words)
        command.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
    commands.add_parser("audit", help="known weaknesses of what is pinned")
    options = parser.parse_args(argv)
    try:
        if options.command == "audit":
            return audit()
        made = (build if options.command == "build" else write_sboms)(options.output.absolute())
    except ToolFailed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return EXIT_NOT_AUDITED if options.command == "audit" else 1
    print(*made, sep="\n")
    return 0


def build(output: Path) -> list[Path]:
    """The wheel and the sdist; the same commit always makes the same bytes."""
    with tempfile.TemporaryDirectory() as draft:
        # The pinned hatchling of this environment, not one that is fetched for the build.
        _checked("build", "--no-isolation", "--outdir", draft, str(ROOT))
        return _moved(Path(draft), output)


def write_sboms(output: Path) -> list[Path]:
    """Write an SBOM for each set of packages; from the pins alone, without network."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with tempfile.TemporaryDirectory() as draft:
        for name in INSTALLED:
            path = Path(draft) / f"chasquimq-py-{version}-{name}.cdx.json"
            _checked(
                "cyclonedx_py", "requirements", str(REQUIREMENTS / f"{name}.txt"),
                "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library",
                "--output-reproducible", "--validate", "--output-file", str(path),
            )  # fmt: skip
        return _moved(Path(draft), output)


def audit() -> int:
    """Ask the first advisory service that knows the pinned packages."""
    refusals: list[str] = []
    for service in SERVICES:
        report, refusal = _ask(service)
        if not refusal:
            return _tell(report)
        refusals.append(f"{service}: {refusal}")
    raise ToolFailed(
        f"nothing was audited, no advisory service answered ({'; '.join(refusals)}); "
        "run it where one of them can be reached"
    )


def _ask(service: str) -> tuple[list[dict[str, Any]], str]:
    """What a service knows about every package, or why that is not known."""
    files = [word for name in AUDITED for word in ("-r", str(REQUIREMENTS / name))]
    done = _run(
        "pip_audit", "--vulnerability-service", service, "--disable-pip", "--require-hashes",
        "--progress-spinner", "off", "--format", "json", *files,
    )  # fmt: skip
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = _last_line(done.stderr)
        return [], "cannot be reached" if UNREACHED in said else said
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    if skipped:
        return [], f"does not know {len(skipped)} of {len(packages)} packages, such as {skipped[0]}"
    return packages, ""


def _tell(packages: Sequence[dict[str, Any]]) -> int:
    found = [(one, weakness) for one in packages for weakness in one["vulns"]]
    for one, weakness in found:
        fixed = ", ".join(weakness["fix_versions"]) or "no version yet"
        print(f"{one['name']}=={one['version']}: {weakness['id']}, fixed in {fixed}")
    if found:
        print(f"{len(found)} known weaknesses; move a package with make lock UPGRADE=NAME")
        return EXIT_FOUND
    print(f"no known weakness in {len(packages)} packages")
    return 0


def _checked(module: str, *words: str) -> None:
    done = _run(module, *words)
    if done.returncode:
        said = _last_line(done.stderr or done.stdout)
        raise ToolFailed(f"{module} failed ({said}); correct what it names and run it again")


def _run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        env={"SOURCE_DATE_EPOCH": _commit_time(), **os.environ},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def _commit_time() -> str:
    """When the commit was made, so that files of a release bear no clock of their own."""
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return EARLIEST
    return done.stdout.strip() or EARLIEST


def _moved(draft: Path, output: Path) -> list[Path]:
    """Put finished files where they belong, so that none is there by half."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path in sorted(draft.iterdir()):
            # Written beside its place first: another file system may be in between.
            half = output / f".{path.name}.part"
            half.write_bytes(path.read_bytes())
            half.replace(output / path.name)
    except OSError as refused:
        raise ToolFailed(
            f"{output} cannot be written to ({refused.strerror}); name another with --output"
        ) from refused
    return sorted(output / path.name for path in draft.iterdir())


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no output"])[-1].rstrip(".")[:200]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
