"""Ids, timestamps and numbers are whole on every terminal and in a pipe, in every table."""

from __future__ import annotations

import re
import sys
from contextlib import suppress

import pytest

from chasquimq import RepeatPattern
from chasquimq.errors import ServerRefused
from support.command import ESCAPES

pytestmark = pytest.mark.takes_turns

WIDTHS = [40, 60, 80, 120]
ID_SIZES = [26, 256]
DAY = re.compile(r"\d{4}-\d\d-\d\d")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
BIG = 1_234_567_890_123
# What is looked at, and what must be whole in it, by name.
LOOKS = {
    "delayed list": (["delayed", "list", "QUEUE"], ["later id"]),
    "dlq peek": (["dlq", "peek", "QUEUE"], ["dead id", "dlq id"]),
    "dlq triage": (["dlq", "triage", "QUEUE"], ["fingerprint"]),
    "job show": (["job", "show", "QUEUE", "LATER"], ["later id"]),
    "events": (["events", "QUEUE", "--from", "0", "--count", "1"], ["dead id"]),
    "workers": (["workers", "QUEUE"], ["worker"]),
    "group list": (["group", "list", "QUEUE"], ["group"]),
    "repeatable list": (["repeatable", "list", "QUEUE"], ["plan"]),
    "inspect": (["inspect", "QUEUE"], []),
    "queues": (["queues"], ["queue"]),
    "doctor": (["doctor", "QUEUE"], []),
    "watch": (["watch", "QUEUE", "--count", "1"], []),
    # The last, because it ends the job.
    "delayed cancel": (["delayed", "cancel", "QUEUE", "LATER", "--yes"], ["later id"]),
}  # fmt: skip


@pytest.fixture
async def whole(request, queue, queue_name, raw):
    """A queue with long names everywhere; the answer is what must be whole, by its kind."""
    size = request.param
    later, dead, worker = ("l" * size, "d" * size, "w" * size)
    await queue.add("a name of words", {"n": BIG}, delay_ms=3_600_000, job_id=later)
    await queue.upsert_repeatable_job(
        "report", 1, repeat=RepeatPattern.every(90_000), key="p" * size
    )
    envelope = await _envelope(queue, raw, dead)
    dlq_id = await raw("XADD", raw.keys.dlq, "*", "d", envelope, "n", "a name of words",
                       "reason", "retries_exhausted", "error", "ValueError: " + "no answer " * 20,
                       "fp", "0123456789abcdef", "failed_at", 1_794_726_951_751)  # fmt: skip
    await raw("XADD", raw.keys.events, "*", "e", "dlq", "id", dead, "ts", BIG, "n", "mail")
    await raw("XGROUP", "CREATE", raw.keys.stream, "g" * 100, "0", "MKSTREAM")
    with suppress(ServerRefused):  # an add makes it on some servers
        await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", worker)
    return {
        "later id": later, "dead id": dead, "dlq id": dlq_id.decode(), "worker": worker,
        "group": "g" * 100, "fingerprint": "0123456789abcdef", "plan": "p" * size,
        "queue": queue_name,
    }  # fmt: skip


@pytest.mark.parametrize("columns", [*WIDTHS, None], ids=[*map(str, WIDTHS), "pipe"])
@pytest.mark.parametrize("whole", ID_SIZES, indirect=True)
async def test_what_names_something_is_never_wrapped_or_cut(
    say, whole, queue_name, monkeypatch, columns
):
    words = {"QUEUE": queue_name, "LATER": whole["later id"]}
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    for look, (args, kinds) in LOOKS.items():
        if columns is not None:
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        said = await say(*(words.get(word, word) for word in args))
        lines = ESCAPES.sub("", said.out).splitlines()
        for kind in kinds:
            assert [one for one in lines if whole[kind] in one], (look, kind, lines)
        broken = [one for one in lines if len(DAY.findall(one)) > len(TIME.findall(one))]
        assert not broken, (look, broken)


async def _envelope(queue, raw, job_id: str) -> bytes:
    await queue.add("mail", {"n": BIG}, job_id=job_id)
    ((entry_id, fields),) = await raw.entries(raw.keys.stream)
    await raw("XDEL", raw.keys.stream, entry_id)
    return fields[b"d"]
