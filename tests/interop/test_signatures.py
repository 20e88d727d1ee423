"""Every call that the original takes, ours takes too: names, parameters, kinds and defaults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interop.superset import call_differences, differences

ROOT = Path(__file__).parents[2]
DUMP = Path(__file__).with_name("dump_signatures.py")

NAMES = (
    "BackoffSpec", "Consumer", "Handler", "Job", "MissedFiresPolicy", "NotSupportedError",
    "Producer", "Queue", "QueueEvent", "QueueEvents", "RepeatPattern", "RepeatableMeta",
    "Scheduler", "UnrecoverableError", "Worker", "version",
)  # fmt: skip
MODULES = ("errors", "job", "queue", "queue_events", "repeat", "worker")
# Names of the original that ours does not have yet; whoever brings them takes them out.
NOT_YET: set[str] = set()

# Sentences of `differences` that are meant to be so, each with its reason.
#
# Differences that signatures do not show:
# - `max_stream_len=None` means no cap, where the original trims at a million; a cap refuses adds.
# - `version()` tells this package's version, not that of the original's engine.
# - methods of the handles are coroutines, where the original starts them before they are awaited.
# - what the original accepts and ignores, or what would make a job that never runs, is refused:
#   blank ids, no attempts, delays or ids of repeatable jobs, limits of no fires.
ALLOWED: dict[str, set[str]] = {
    # Without a URL the server is looked up; the original's default address is the last answer.
    name: {f"{name} must default redis_url to 'redis://127.0.0.1:6379', not to None"}
    for name in ("Queue", "QueueEvents", "Worker")
}


def dumped(python: str | Path, **environ: str) -> dict:
    said = subprocess.run([python, DUMP], env=environ, capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


@pytest.fixture(scope="session")
def theirs(original_python) -> dict:
    return dumped(original_python)


@pytest.fixture(scope="session")
def ours() -> dict:
    return dumped(sys.executable, PYTHONPATH=str(ROOT / "src"))


def test_the_list_of_names_is_complete(theirs):
    assert set(theirs["public"]) == {*NAMES, *NOT_YET}


def test_the_list_of_modules_is_complete(theirs):
    assert set(theirs["modules"]) == set(MODULES)


def test_what_is_listed_as_missing_is_missing(ours):
    assert not NOT_YET & set(ours["public"])


@pytest.mark.parametrize("name", NAMES)
def test_every_call_of_the_original_is_taken(name, theirs, ours):
    found = differences(name, theirs["public"][name], ours["public"][name])

    assert set(found) == ALLOWED.get(name, set())


def test_modules_are_reached_through_the_package(theirs, ours):
    assert set(theirs["reachable"]) <= set(ours["reachable"])


@pytest.mark.parametrize("module", MODULES)
def test_names_are_found_in_the_modules_where_the_original_has_them(module, theirs, ours):
    missing = set(theirs["modules"][module]["own"]) - set(ours["modules"][module]["holds"])

    assert missing == set()


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [
        ([["a", "POSITIONAL_OR_KEYWORD", None]], [], "f must take a"),
        (
            [["a", "POSITIONAL_OR_KEYWORD", None]],
            [["b", "POSITIONAL_OR_KEYWORD", "1"], ["a", "POSITIONAL_OR_KEYWORD", "1"]],
            "f must take a in place 0",
        ),
        (
            [["a", "POSITIONAL_OR_KEYWORD", None]],
            [["a", "KEYWORD_ONLY", None]],
            "f must take a in place 0",
        ),
        (
            [["a", "KEYWORD_ONLY", "1"]],
            [["a", "POSITIONAL_ONLY", "1"]],
            "f must take a by name",
        ),
        (
            [["a", "KEYWORD_ONLY", "1"]],
            [["a", "KEYWORD_ONLY", "2"]],
            "f must default a to 1, not to 2",
        ),
        (
            [["a", "KEYWORD_ONLY", "1"]],
            [["a", "KEYWORD_ONLY", None]],
            "f must default a to 1, not to None",
        ),
        ([], [["a", "KEYWORD_ONLY", None]], "f must not demand a"),
    ],
)
def test_a_call_that_would_fail_is_found(theirs, ours, found):
    assert list(call_differences("f", theirs, ours)) == [found]
