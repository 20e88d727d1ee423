"""The whole benchmark, and its tables into the page beside this file.

    python -m benchmarks.full_run --server path/to/redis-server

Measures everything that `chasqui bench` can, keeps figures, tables and charts in
`benchmarks/results`, puts the tables into `benchmarks/README.md`, and says how long it took.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
RESULTS = HERE / "results"
BEGIN, END = "<!-- full run: begin -->", "<!-- full run: end -->"
# The rates of every round stay in the file of the run.
RAW = "\n\nRounds:\n"


def main() -> int:
    asked = _arguments()
    began_s = time.monotonic()
    before = set(RESULTS.glob("*.md"))
    command = [
        sys.executable,
        "-m",
        "chasquimq",
        "bench",
        "--out",
        str(RESULTS),
        *_passed_on(asked),
    ]
    exit_code = subprocess.run(command, check=False).returncode
    new = sorted(set(RESULTS.glob("*.md")) - before)
    if not new:
        print("error: the run left no tables; the page stays as it is", file=sys.stderr)
        return exit_code or 1
    PAGE.write_text(with_run(PAGE.read_text("utf-8"), new[-1]), "utf-8")
    minutes, seconds = divmod(round(time.monotonic() - began_s), 60)
    print(f"{new[-1].name} is in {PAGE.name}; all of it took {minutes} min {seconds} s")
    return exit_code


def with_run(page: str, tables: Path) -> str:
    """The page with the tables of a run between its two marks, in place of those before."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"error: {PAGE.name} must have the marks {BEGIN} and {END}")
    run = tables.read_text("utf-8").partition(RAW)[0]
    name = tables.stem
    links = f"Figures `results/{name}.json`, rounds [`results/{name}.md`](results/{name}.md)."
    pictures = [path.name for path in sorted(tables.parent.glob(f"{name}-*.png"))]
    shown = "\n".join(f"![{one}](results/{one})" for one in pictures)
    return f"{head}{BEGIN}\n\n{links}\n\n{run}\n\n{shown}\n\n{END}{tail}"


def _passed_on(asked: argparse.Namespace) -> list[str]:
    server = ["--server", str(asked.server)] if asked.server else []
    return [*server, *(["--quick"] if asked.quick else [])]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--server", type=Path, help="the server program to measure on")
    parser.add_argument("--quick", action="store_true", help="the quick run, to try this program")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
