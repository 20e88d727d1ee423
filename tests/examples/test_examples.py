"""Every example runs as a person would run it, and prints what its page says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUN_S_MAX = 40

PRINTED = {
    "batches.py": [
        "4 jobs at once",
        "1 scores 2",
        "2 scores 4",
        "4 scores 8",
        "dead: UnrecoverableError: no amount",
    ],
    "credentials.py": ["report May"],
    "dead_letters.py": [
        "import-row: retries_exhausted, ConnectionError: the warehouse is closed",
        "import-row: unrecoverable, UnrecoverableError: no price given",
        "import-row: retries_exhausted, ConnectionError: the warehouse is closed",
        "replayed: 2",
        "row 1: imported",
        "row 3: imported",
        "deleted: 1",
        "imported: 1, again: 0",
        "row 2: imported",
        "left in the DLQ: 0",
    ],
    "delayed.py": [
        "cancelled: True",
        "cancelled again: False",
        "would cancel 2, first water",
        "cancelled: 2",
        "remember: the tea",
        "remember: the eggs",
        "remember: the bread",
    ],
    "durability.py": ["there after the cut: 1", "written, but not on a replica: 1"],
    "events.py": [
        "active: charge, attempt 1",
        "failed: charge, attempt 1",
        "retry-scheduled: charge, attempt 2",
        "waiting: charge, attempt None",
        "active: charge, attempt 2",
        "completed: charge, attempt 2",
        "run 1 failed: TimeoutError, the bank did not answer",
    ],
    "find_job.py": [
        "ready",
        "delayed",
        "completed",
        "dead: unrecoverable, UnrecoverableError: no such place",
        "ready 0, running 0, delayed 1",
    ],
    "flask_style.py": [
        "202 ready 200",
        "unknown 404 for an id that a visitor made up",
        "completed 200",
        "mail to ada@example.org",
    ],
    "from_celery.py": ["receipt 7 to ada@example.org"],
    "graceful_stop.py": [
        "page 1 started",
        "page 1 done",
        "stopped; the next worker goes on",
        "page 2 started",
        "page 2 done",
    ],
    "json_log.py": ["order-7 failed in run 1: retries_exhausted"],
    "metrics.py": ['chasquimq_jobs_completed_total{name="greet",queue="example-metrics"} 3.0'],
    "process_pool.py": ["1229 primes below 10000", "never-ends was stopped"],
    "quickstart.py": ["hello, Ada"],
    "read_tables.py": ["charge: TimeoutError, failed 5, dead 1, since second 5"],
    "redact.py": ["ConnectionError: card **** was refused by https://***@pay.example.org"],
    "repeat.py": [
        "planned: count-stock::every:100",
        "morning-report: next at 07:30",
        "counting shelf 7",
        "counting shelf 7",
        "counting shelf 7",
        "report for Ada",
        "removed: True",
        "plans left: 0",
    ],
    "handler_options.py": [
        "resized cat.jpg in a child process",
        "email to ada@example.org",
        "charge was given up after 3 runs",
    ],
    "results.py": [
        "the sum is 6",
        "retries_exhausted: ZeroDivisionError: division by zero",
        "still kept: 6",
        "many at once: [6, None]",
    ],
    "retries.py": [
        "order 1: run 1",
        "order 2: run 1",
        "order 2: buried",
        "order 1: run 2",
        "order 1: run 3",
        "order 1: charged",
        "left to do: 0",
    ],
    "retry_later.py": [
        "print-label: OSError: the printer is off; will run again",
        "print-label: OSError: the printer is off; given up, retries_exhausted",
        "called the partner in run 1",
    ],
    "routes.py": [
        "email to ada@example.org",
        "thumbnail of cat.jpg, made in a thread",
        "email to alan@example.org",
    ],
    "tracing.py": ["add example-tracing", "execute example-tracing: completed", "one trace: True"],
    "unique_jobs.py": [
        "first is a duplicate: False",
        "again is a duplicate: True",
        "taken by a different job: invoice-7",
        "invoice for order 7",
    ],
    "upkeep.py": ["delayed: 1", "ready: 1"],
    "worker_process.py": [
        "opened",
        "saved row 1 to the database",
        "saved row 2 to the database",
        "closed after 2 jobs",
    ],
}


# Whose handlers are meant to fail, and with what; all others have nothing to warn of.
FAILURES = {
    "batches.py": ["UnrecoverableError"],
    "dead_letters.py": ["ConnectionError", "UnrecoverableError"],
    "events.py": ["TimeoutError"],
    "find_job.py": ["UnrecoverableError"],
    "handler_options.py": ["OSError"],
    "process_pool.py": ["JobTimeout"],
    "redact.py": ["ConnectionError"],
    "results.py": ["ZeroDivisionError"],
    "retries.py": ["TimeoutError", "UnrecoverableError"],
    "retry_later.py": ["OSError"],
}


def unannounced(stderr: str, failures: list[str]) -> list[str]:
    """Lines on stderr that are about none of these failures; tracebacks are set in."""
    return [
        line
        for line in stderr.splitlines()
        if line
        and not line.startswith((" ", "Traceback "))
        and not any(failure in line for failure in failures)
    ]


def test_every_example_is_run_here():
    assert sorted(PRINTED) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_its_page_says(name):
    done = run(name)

    failures = FAILURES.get(name, [])
    assert unannounced(done.stderr, failures) == []
    assert [one for one in failures if one not in done.stderr] == []
    assert done.stdout.splitlines() == PRINTED[name]
    assert done.returncode == 0


@pytest.mark.own_server(port=0)
def test_an_example_uses_the_server_that_the_environment_names(url):
    done = run("quickstart.py", CHASQUI_REDIS_URL=url, PATH="", CHASQUI_SERVER_BIN="")

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
