"""One Ctrl+C ends every command at any moment: one line, exit code 130, nothing left behind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from chasquimq import Queue
from support.command import PROGRAM
from support.interrupting import (
    assert_ends_well,
    assert_no_drafts,
    duration_s,
    interrupt,
    interrupt_on_a_terminal,
    moments,
)

pytestmark = [pytest.mark.takes_turns, pytest.mark.slow, pytest.mark.timeout(1_800)]

ROOT = Path(__file__).parents[2]
# How far into a command that goes on by itself.
ENDLESS_S = 1.5

# Commands that end by themselves; their moments are drawn from the time that they take.
FINITE = {
    "version": ["--version"],
    "inspect": ["inspect", "QUEUE"],
    "queues": ["queues"],
    "workers": ["workers", "QUEUE"],
    "doctor": ["doctor"],
    "job show": ["job", "show", "QUEUE", "nobody"],
    "delayed list": ["delayed", "list", "QUEUE"],
    "delayed cancel": ["delayed", "cancel", "QUEUE", "nobody", "--yes"],
    "dlq peek": ["dlq", "peek", "QUEUE"],
    "dlq triage": ["dlq", "triage", "QUEUE"],
    "dlq export": ["dlq", "export", "QUEUE", "--output", "dead.jsonl"],
    "dlq replay --dry-run": ["dlq", "replay", "QUEUE", "--dry-run", "--limit", "100000"],
    "drain --dry-run": ["drain", "QUEUE", "--dry-run"],
    "delayed cancel --dry-run": ["delayed", "cancel", "QUEUE", "--name", "later", "--dry-run"],
    "repeatable list": ["repeatable", "list", "QUEUE"],
    "group list": ["group", "list", "QUEUE"],
    "metrics": ["metrics", "QUEUE"],
    "worker --check": ["worker", "tasks:send", "--queue", "QUEUE", "--check"],
    "demo --quick": ["demo", "--quick", "--jobs", "1000"],
    "server status": ["server", "status"],
}  # fmt: skip
# Commands that go on until somebody ends them.
ENDLESS = {
    "watch": ["watch", "QUEUE", "--interval-ms", "50"],
    "events": ["events", "QUEUE", "--from", "0"],
    "metrics --port": ["metrics", "--port", "0"],
    "add from stdin": ["add", "QUEUE", "send", "-"],
    "dlq replay": ["dlq", "replay", "QUEUE", "--yes", "--max-rate", "20", "--limit", "100000"],
    "bench": ["bench", "add", "--quick", "--peer", "none"],
}  # fmt: skip
# These answer a signal themselves: they end what they began, and their log tells of it.
DRAINING = {
    "worker": ["worker", "tasks:send", "--queue", "QUEUE"],
    "worker --processes": ["worker", "tasks:send", "--queue", "QUEUE", "--processes", "2"],
    "upkeep": ["upkeep", "QUEUE"],
}  # fmt: skip
# Questions, and the words that they end with.
PROMPTS = {
    "dlq replay": (["dlq", "replay", "QUEUE"], "[y/N]"),
    "dlq purge": (["dlq", "purge", "QUEUE", "--all"], "name to go on:"),
    "delayed cancel": (["delayed", "cancel", "QUEUE", "later-0"], "[y/N]"),
    "delayed cancel --name": (["delayed", "cancel", "QUEUE", "--name", "later"], "name to go on:"),
    "drain": (["drain", "QUEUE", "--delayed"], "name to go on:"),
    "group remove": (["group", "remove", "QUEUE", "default"], "name to go on:"),
}  # fmt: skip


@pytest.fixture
async def folder(tmp_path, url, queue_name, grave):
    """A queue with dead and delayed jobs, and a place to be in."""
    (tmp_path / "tasks.py").write_text("async def send(job):\n    return\n")
    (tmp_path / "tmp").mkdir()
    await grave(*[("mail", at) for at in range(300)])
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add_bulk(
            [{"name": "later", "data": at, "delay_ms": 3_600_000, "job_id": f"later-{at}"}
             for at in range(300)]
        )  # fmt: skip
    return tmp_path


@pytest.fixture
def surroundings(environ, folder):
    return environ | {"TMPDIR": str(folder / "tmp"), "XDG_RUNTIME_DIR": str(folder / "tmp")}


@pytest.fixture
def words(queue_name):
    """A command line with the names of this test in it."""
    return lambda args: [*PROGRAM, *(queue_name if word == "QUEUE" else word for word in args)]


@pytest.mark.parametrize("name", FINITE)
async def test_a_command_that_ends_by_itself_ends_at_once(words, surroundings, folder, name):
    command = words(FINITE[name])
    took_s = await asyncio.to_thread(duration_s, command, surroundings, folder)

    await assert_ends_well(command, took_s, surroundings, folder)


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_command_that_goes_on_ends_at_once(words, surroundings, folder, name):
    await assert_ends_well(words(ENDLESS[name]), ENDLESS_S, surroundings, folder)


@pytest.mark.parametrize("name", DRAINING)
async def test_what_drains_ends_with_130_and_leaves_nobody(words, surroundings, folder, name):
    for after_s in moments(ENDLESS_S):
        ended = await asyncio.to_thread(
            interrupt, words(DRAINING[name]), after_s, surroundings, folder
        )
        assert ended.code == 130, ended
        assert "Traceback" not in ended.said, ended
        assert_no_drafts(folder)


@pytest.mark.parametrize("name", PROMPTS)
async def test_the_first_interrupt_at_a_question_is_heard(words, surroundings, folder, name):
    args, question = PROMPTS[name]
    for after_s in moments(0.2):
        ended = await asyncio.to_thread(
            interrupt_on_a_terminal, words(args), question, after_s, surroundings, folder
        )
        assert (ended.code, ended.said.strip()) == (130, "interrupted"), ended


async def test_the_launcher_answers_from_its_first_line_on(surroundings, folder):
    """It hands over to Python twice, and each start takes its time."""
    command = [str(ROOT / "chasqui"), "--version"]
    took_s = await asyncio.to_thread(duration_s, command, surroundings, folder)

    # The shell has to read its first line, too.
    await assert_ends_well(command, took_s, surroundings, folder, least_s=0.02)


@pytest.mark.parametrize(
    "start",
    [
        ["-m", "chasquimq"],
        ["-c", "import sys; from chasquimq.__main__ import main; sys.exit(main())"],
    ],
    ids=["module", "entry point"],
)
async def test_no_traceback_of_ours_is_shown_whenever_the_interpreter_starts(
    surroundings, folder, start
):
    """What comes before our first line is the interpreter's, and names no file of ours."""
    command = ["env", "--default-signal=INT", sys.executable, *start, "--help"]
    took_s = await asyncio.to_thread(duration_s, command, surroundings, folder)
    for after_s in moments(took_s):
        ended = await asyncio.to_thread(interrupt, command, after_s, surroundings, folder)
        assert "chasquimq" not in ended.said, ended
        assert ended.code in (0, 130) or "KeyboardInterrupt" in ended.said or not ended.said
