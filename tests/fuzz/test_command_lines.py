"""Any words after a command: an answer and an exit code, never a traceback or a control byte."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.cli.app import COMMANDS, load_command, main
from fuzz.seeds import RUN_S_MAX, budget, lines
from support.screen import CONTROL

QUEUE = "QUEUE"
# Commands that end by themselves, with what they need before anything else.
ENDING = {
    "add": ("add", QUEUE, "n"),
    "completion": ("completion",),
    "delayed cancel": ("delayed", "cancel", QUEUE),
    "delayed list": ("delayed", "list", QUEUE),
    "dlq peek": ("dlq", "peek", QUEUE),
    "dlq purge": ("dlq", "purge", QUEUE),
    "dlq replay": ("dlq", "replay", QUEUE),
    "dlq edit": ("dlq", "edit", QUEUE, "nobody", "--data", "1"),
    "doctor": ("doctor", QUEUE),
    "drain": ("drain", QUEUE),
    "inspect": ("inspect", QUEUE),
    "job show": ("job", "show", QUEUE),
    "metrics": ("metrics", QUEUE),
    "queues": ("queues",),
    "repeatable list": ("repeatable", "list", QUEUE),
    "repeatable quarantined": ("repeatable", "quarantined", QUEUE),
    "repeatable remove": ("repeatable", "remove", QUEUE),
    "repeatable run": ("repeatable", "run", QUEUE),
    "workers": ("workers", QUEUE),
}
# These would open a port, write a file, or ask another server.
LEFT_OUT = {"--port", "--host", "--output", "--redis-url", "--max-rate", "--interval"}
EXITS = {0, 1, 2}
WORDS = [*lines("words.txt"), "", " ", "a\x1b[2Jb", "caf\udce9", "x" * 5_000]
BAD_URLS = [
    "redis://127.0.0.1:port", "redis://127.0.0.1:99999", "redis://127.0.0.1:1/db", "redis://[::1",
    "http://127.0.0.1", "redis:/127.0.0.1", "unix://", "unix:///no/such/socket", "", " ", "\x1b[2J",
    "redis://me:canary@127.0.0.1:1", "rediss://127.0.0.1:1", "redis://127.0.0.1:1?x=y", "🦙",
    "redis://127.0.0.1:1?db=canary", "://", "redis+sentinel://127.0.0.1:1",
]  # fmt: skip


@st.composite
def command_lines(draw) -> list[str]:
    """A command of ours with options of its own, and words of anybody's."""
    name = draw(st.sampled_from(sorted(ENDING)))
    args = list(ENDING[name])
    for _ in range(draw(st.integers(0, 4))):
        option = draw(st.sampled_from(_options(name)) | st.just(""))
        word = draw(st.sampled_from(WORDS))
        args += [option, word] if option else [word]
    return args


@pytest.mark.timeout(RUN_S_MAX)
def test_any_words_end_in_an_answer(url, queue_name):
    @budget(120)
    @given(command_lines())
    def ends_well(args):
        words = [queue_name if word == QUEUE else word for word in args]
        if not LEFT_OUT.isdisjoint(words):
            return
        check(*said(words, url))

    ends_well()


@pytest.mark.parametrize("bad_url", BAD_URLS)
def test_any_address_in_the_environment_ends_in_an_answer(bad_url):
    code, out, err = said(["inspect", "q"], bad_url)

    check(code, out, err)
    assert code != 0
    assert "canary" not in out + err


def said(args: list[str], url: str) -> tuple[int, str, str]:
    """What main says in this process; what it raises and does not mean to is raised here."""
    out, err = io.StringIO(), io.StringIO()
    before, stdin = dict(os.environ), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO())
    os.environ.pop("REDIS_URL", None)
    os.environ["CHASQUI_REDIS_URL"] = url
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(args)
    finally:
        sys.stdin = stdin
        os.environ.clear()
        os.environ.update(before)
    return code, out.getvalue(), err.getvalue()


def check(code: int, out: str, err: str) -> None:
    assert code in EXITS
    assert not CONTROL.search((out + err).replace("\n", "").replace("\t", ""))
    assert "Traceback" not in err
    assert code == 0 or (out + err).strip(), "a failure says why"


def _options(name: str) -> list[str]:
    command = _command(name)
    found = [opt for one in command.params if isinstance(one, click.Option) for opt in one.opts]
    return sorted(opt for opt in found if opt not in LEFT_OUT) or ["--json"]


def _command(name: str) -> click.Command:
    first, _, second = name.partition(" ")
    command = load_command(COMMANDS[first].target)
    if not second:
        return command
    assert isinstance(command, click.Group)
    found = command.get_command(click.Context(command), second)
    assert found is not None
    return found
