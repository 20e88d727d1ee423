"""Every example runs as a person would run it, and prints what its page says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import ServerKind, server_kinds

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUN_S_MAX = 40

PRINTED = {
    "credentials.py": ["report May"],
    "flask_style.py": ["202 welcome, a mail is on its way", "mail to ada@example.org"],
    "graceful_stop.py": [
        "page 1 started",
        "page 1 done",
        "stopped; the next worker goes on",
        "page 2 started",
        "page 2 done",
    ],
    "process_pool.py": ["1229 primes below 10000", "never-ends was stopped"],
    "quickstart.py": ["hello, Ada"],
    "retries.py": [
        "order 1: run 1",
        "order 2: run 1",
        "order 2: buried",
        "order 1: run 2",
        "order 1: run 3",
        "order 1: charged",
        "left to do: 0",
    ],
    "routes.py": [
        "email to ada@example.org",
        "thumbnail of cat.jpg, made in a thread",
        "email to alan@example.org",
    ],
    "unique_jobs.py": [
        "first is a duplicate: False",
        "again is a duplicate: True",
        "taken by a different job: invoice-7",
        "invoice for order 7",
    ],
    "worker_process.py": [
        "opened",
        "saved row 1 to the database",
        "saved row 2 to the database",
        "closed after 2 jobs",
    ],
}


def test_every_example_is_run_here():
    assert sorted(PRINTED) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_its_page_says(name):
    done = run(name)

    assert done.stderr == ""
    assert done.stdout.splitlines() == PRINTED[name]
    assert done.returncode == 0


@pytest.mark.parametrize("kind", server_kinds(), ids=lambda kind: kind.label)
def test_an_example_uses_the_server_that_the_environment_names(kind: ServerKind):
    with kind.session(port=0) as session:
        done = run("quickstart.py", CHASQUI_REDIS_URL=session.url, PATH="", CHASQUI_SERVER_BIN="")

    assert done.stdout.splitlines() == PRINTED["quickstart.py"]


def test_the_quickstart_is_fifteen_lines_long():
    lines = (EXAMPLES / "quickstart.py").read_text().splitlines()

    assert len([line for line in lines if line.strip()]) == 15


def run(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in os.environ.items() if key != "CHASQUI_REDIS_URL"}
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        env=plain | {"PYTHONPATH": str(ROOT / "src")} | variables,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
