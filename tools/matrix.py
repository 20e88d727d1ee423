"""Runs the core tests on every supported Python of this machine, each in an environment of its own.

`make matrix` runs it. Environments are kept in .venv-matrix/, and renewed when the pins change.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pinned import InstallFailed, install_pins, make_environment

ROOT = Path(__file__).resolve().parents[1]
PINS = "matrix.txt"
ENVIRONMENTS = ROOT / ".venv-matrix"
# Pure functions, and of promises those that lean on the interpreter: event loops, threads, processes,
# signals, sockets and tracebacks. None needs a JVM or tables.
STORE = ("blocking_connection", "connection", "fork_and_loops", "script_ack", "tls")
BEHAVIOUR = (
    "adding", "blocking_facade", "delays", "handlers", "leases", "process_pool", "results", "retries",
    "shutdown", "timeouts", "tracebacks", "tracing", "working",
)  # fmt: skip
TESTS = (
    *("tests/unit", "tests/wire", "tests/conformance", "--ignore=tests/unit/spark"),
    *(f"tests/store/test_{name}.py" for name in STORE),
    *(f"tests/behaviour/test_{name}.py" for name in BEHAVIOUR),
)
# Where version managers put interpreters that are not on PATH.
KEPT_BY_MANAGERS = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin")
ASK_VERSION = "import sys, venv; print('{}.{}'.format(*sys.version_info))"
SUMMARY = re.compile(r"^(?:\d+ \w+(?:, )?)+ in .*$", re.MULTILINE)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/matrix.py", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="3.N")
    words = "other tests, and words for pytest; it comes last"
    parser.add_argument("--tests", nargs=argparse.REMAINDER, default=TESTS, help=words)
    options = parser.parse_args(argv)
    interpreters = {version: find_python(version) for version in options.versions}
    results = {
        version: run_tests(version, python, options.tests)
        for version, python in interpreters.items()
        if python
    }
    return report(options.versions, results)


def find_python(version: str) -> str:
    """Look for an interpreter of a version on PATH and where version managers keep theirs."""
    return next((path for path in _candidates(version) if _is_python(path, version)), "")


def _candidates(version: str) -> Iterator[str]:
    folders = [Path(folder) for folder in os.get_exec_path()]
    folders += [path for kept in KEPT_BY_MANAGERS for path in sorted(Path.home().glob(kept))]
    for name in (f"python{version}", "python3"):
        yield from (str(folder / name) for folder in folders if (folder / name).is_file())


def _is_python(path: str, version: str) -> bool:
    """True: it starts, has this version and can make environments; a shim may do none of it."""
    try:
        asked = [path, "-c", ASK_VERSION]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == version


def run_tests(version: str, python: str, tests: Sequence[str]) -> tuple[bool, str]:
    """Run the tests on one Python; return whether they passed, and the sentence that says so."""
    print(f"── Python {version}: {python}", flush=True)
    try:
        inside = _prepare(version, python)
    except InstallFailed as failed:
        return False, str(failed)
    # Not the cache of .venv, whose failed tests somebody may want to look at again.
    words = ["-P", "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "-q", *tests]
    with subprocess.Popen(
        [str(inside), *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as pytest:
        said = _shown(pytest)
    counts = SUMMARY.findall(said)
    return pytest.returncode == 0, counts[-1] if counts else "no test ran"


def _prepare(version: str, python: str) -> Path:
    inside = ENVIRONMENTS / version / "bin/python"
    if not _is_python(str(inside), version):
        inside = make_environment(ENVIRONMENTS / version, python)
    install_pins(inside, ROOT / "requirements" / PINS)
    (site,) = (ENVIRONMENTS / version).glob("lib/python*/site-packages")
    (site / "chasqui-src.pth").write_text(f"{ROOT / 'src'}\n")
    return inside


def _shown(process: subprocess.Popen[str]) -> str:
    """Pass on what a process prints, and return it."""
    lines: list[str] = []
    for line in process.stdout or ():
        print(line, end="", flush=True)
        lines.append(line)
    return "".join(lines)


def report(versions: Sequence[str], results: dict[str, tuple[bool, str]]) -> int:
    """Print a line for each version; 1 when one failed, or when none was found."""
    print("── matrix")
    for version in versions:
        if version in results:
            passed, sentence = results[version]
            print(f"Python {version}: {'passed' if passed else 'FAILED'}, {sentence}")
        else:
            print(f"Python {version}: not found on this machine, so nothing is known about it")
    return 0 if results and all(passed for passed, _ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
