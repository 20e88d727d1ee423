"""A script refuses arguments that do not fit together, and writes nothing."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError

# Script, keys, arguments, and what the refusal says; `.+` where the words are the server's own.
# `token:x` is a marker, `uniq:x` that of an id.
WRONG = {
    "add: no job": ("add", "stream token:t", (0, 60, 60_000), "threes"),
    "add: one part": ("add", "stream token:t", (0, 60, 60_000, "e", "n", "", "e"), "threes"),
    "add: two parts": ("add", "stream token:t", (0, 60, 60_000, "e", "n", "", "e", "n"), "threes"),
    "add: no key for an id": (
        "add", "stream token:t", (0, 60, 60_000, "e1", "", "", "e2", "", "digest"), ".+",
    ),
    "add_rows: too few": (
        "add_rows", "stream token:t uniq:one uniq:two", (0, 60, 60_000, 1, 2, "d1", "d2", "e1", "e2"),
        "a digest, an envelope and a name",
    ),
    "add_rows: too many": (
        "add_rows", "stream token:t uniq:one uniq:two",
        (0, 60, 60_000, 1, 2, "d1", "d2", "e1", "e2", "n", "n", "n"),
        "a digest, an envelope and a name",
    ),
    "add_run_rows: none": (
        "add_run_rows", "stream token:t delayed dix token:b", (0, 120, 1, "i", 0, 0, 0),
        "rows come in threes",
    ),
    "add_run_rows: a short digest": (
        "add_run_rows", "stream token:t delayed dix token:b",
        (0, 120, 1, "i", 0, 0, 0, "e", "n", "short"), "a digest has 16 bytes",
    ),
    "add_run_rows: no time": (
        "add_run_rows", "stream token:t delayed dix token:b",
        (0, 120, 0, "i", 0, 0, 0, "e", "n", "x" * 16), "keep_ms must be a time",
    ),
    "complete: two parts": (
        "complete", "stream", ("default", 60, 120, 0, 0, "1-1", "result"), "threes",
    ),
    "fire: no marker": (
        "fire", "stream repeat token:spec",
        ("spec", 5_000, 6_000, 0, 0, 60_000, "mail", 5_000, "envelope"),
        "a due time, an envelope and a marker",
    ),
    "fire: no number": (
        "fire", "stream repeat token:spec", ("spec", 5_000, "soon", 0, 0, 60_000, "mail"),
        "must be numbers",
    ),
    "pace: no rows": ("pace", "token:pace", (0, "5"), "rows and their rate must be above 0"),
    "pace: no rate": ("pace", "token:pace", (5, "0"), "rows and their rate must be above 0"),
    "pace: no number": ("pace", "token:pace", (5, "fast"), "rows and their rate must be above 0"),
}  # fmt: skip


def key(keys, name: str) -> str:
    kind, _, of = name.partition(":")
    return getattr(keys, kind)(of) if of else getattr(keys, kind)


@pytest.mark.parametrize("case", WRONG)
async def test_arguments_that_do_not_fit_together_are_refused(run, raw, snapshot, case):
    name, keys, args, words = WRONG[case]

    with pytest.raises(StoreError, match=words):
        await run(name, [key(raw.keys, one) for one in keys.split()], *args)

    assert await snapshot() == {}
