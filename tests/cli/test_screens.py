"""What operators look at is readable on a terminal of any width, in tmux, and in a pipe."""

from __future__ import annotations

import re
import shutil

import pytest

from chasquimq import Queue, RepeatPattern
from support.command import PROGRAM
from support.raw import Raw
from support.screen import (
    CONTROL,
    assert_fits,
    assert_frames_meet,
    assert_words_are_whole,
    lines_of,
)
from support.tmux import ENDED, Tmux

QUEUE = "shop-orders"
WIDTHS = [80, 160]
DEAD = [
    ("charge", "unrecoverable", "UnrecoverableError: card refused by the bank"),
    ("報告書の送信", "retries_exhausted", "ValueError: サーバーに接続できませんでした " * 4),
    ("a-name-that-goes-on-and-on-without-any-end-in-sight", "retries_exhausted", "no " * 60),
    ("🚀launch", "oversize_payload", f"GET https://example.com/{'x' * 120} failed"),
    ("evil\x1b[2J\u202e", "retries_exhausted", "two\nlines\tand \x1b]0;title\x07 a \x9bcontrol"),
]
LOOKS = {
    "inspect": ("inspect", QUEUE),
    "queues": ("queues",),
    "workers": ("workers", QUEUE),
    "doctor": ("doctor", QUEUE),
    "dlq peek": ("dlq", "peek", QUEUE),
    "events": ("events", QUEUE, "--from", "0", "--count", "6"),
    "watch": ("watch", QUEUE, "--interval-ms", "50", "--count", "2"),
    "delayed list": ("delayed", "list", QUEUE),
    "repeatable list": ("repeatable", "list", QUEUE),
}
# What is said on terminals alone.
TALK = "every ms Ctrl+C ends data:"
NO_ROOM = re.compile(r"no room for (?P<columns>.+?); a wider terminal or --json shows all")
# Colours, and bold, faint, italic, underlined: all that is not "as it was".
COLOURS = re.compile(r"\x1b\[(?!0?m)[0-9;]*m")
FRAMED = [name for name in LOOKS if name != "events"]
# Without the queues of other tests all of a server's queues can be looked at.
pytestmark = [pytest.mark.takes_turns, pytest.mark.file_server]


@pytest.fixture
async def crowded(url):
    """A queue that has something everywhere, some of it long, wide or evil."""
    raw = await Raw.open(url, QUEUE)
    keys = raw.keys
    await raw("FLUSHALL")
    for name, reason, detail in DEAD:
        await raw("XADD", keys.dlq, "*", "d", "x", "source_id", "1794798054860-1", "n", name,
                  "reason", reason, "detail", detail)  # fmt: skip
        await raw("XADD", keys.events, "*", "e", "dlq", "id", "01M7H4SV41SQSN3RY17M090ZKD",
                  "ts", "1700000000123", "n", name, "reason", detail)  # fmt: skip
    await raw("XADD", keys.events, "*", "e", "retry-scheduled", "id", "j" * 100, "n", "mail")
    await raw("XADD", keys.stream, "*", "d", "x")
    await raw("XGROUP", "CREATE", keys.stream, "default", "0")
    await raw(
        "XREADGROUP", "GROUP", "default", "host-17:20520:1708fe19", "STREAMS", keys.stream, ">"
    )
    await raw("ZADD", keys.delayed, 1_794_798_054_860, b"\0\0\0\4mailx")
    await raw.close()


@pytest.fixture
async def planned(crowded, url):
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.upsert_repeatable_job("report", 1, repeat=RepeatPattern.every(90_000))
        await queue.add("later", 1, delay_ms=3_000_000)


@pytest.fixture
def tmux(environ, tmp_path):
    """Run a command inside tmux, in a window of that many columns."""
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux on this machine")
    opened: list[Tmux] = []

    def start(columns: int, *args: str) -> Tmux:
        opened.append(Tmux(columns, environ | {"TERM": "xterm-256color"}, tmp_path))
        opened[-1].start([*PROGRAM, *args])
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("look", LOOKS)
async def test_a_terminal_shows_whole_words_and_nothing_wider_than_itself(
    terminal, chasqui, planned, look, columns
):
    told = await chasqui(*LOOKS[look])

    shown = await terminal(*LOOKS[look], columns=columns)

    lines = lines_of(shown.out)
    assert shown.code == told.code
    assert_fits(lines, columns)
    answer = [line for line in lines if not line.startswith("server: ")]
    words = " ".join(" ".join(answer).split())
    assert_words_are_whole([NO_ROOM.sub("", words)], f"{told.out} {told.err} {QUEUE} {TALK}")
    assert columns_left_out(words) <= set(told.rows_with_header[0])


def columns_left_out(words: str) -> set[str]:
    """The columns that found no room, as the answer names them."""
    named = [found["columns"].split(" and ") for found in NO_ROOM.finditer(words)]
    return {column for columns in named for column in columns}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("look", FRAMED)
async def test_the_columns_of_a_table_stand_below_each_other(terminal, planned, look, columns):
    shown = await terminal(*LOOKS[look], columns=columns)

    lines = lines_of(shown.out)
    assert_fits(lines, columns)
    assert_frames_meet(lines)


async def test_events_are_in_columns_where_there_is_room_and_hang_below_where_there_is_none(
    terminal, planned
):
    wide = lines_of((await terminal(*LOOKS["events"], columns=160)).out)
    narrow = lines_of((await terminal(*LOOKS["events"], columns=80)).out)

    events = [line for line in wide if line.startswith(("2023-", "- "))]
    assert len({line.index("id=") for line in events if line.startswith("2023-")}) == 1
    assert all(line.startswith(("2023-", "- ", "    ", "server: ")) for line in narrow)


@pytest.mark.parametrize("look", LOOKS)
async def test_a_pipe_gets_no_colour_no_control_byte_and_aligned_columns(chasqui, planned, look):
    said = await chasqui(*LOOKS[look])

    assert CONTROL.search(said.out + said.err) is None
    assert not set(said.out) & set("┌┬┐└┴┘╞╪╡═─│┆")


@pytest.mark.parametrize("look", FRAMED)
async def test_no_color_leaves_no_colour_and_no_bold_on_a_terminal(terminal, planned, look):
    coloured = await terminal(*LOOKS[look])
    plain = await terminal(*LOOKS[look], NO_COLOR="1")

    assert "\x1b[1m" in coloured.out, "a header is bold where it may be"
    assert not COLOURS.search(plain.out)


@pytest.mark.parametrize("look", LOOKS)
async def test_a_terminal_that_cannot_be_redrawn_gets_no_control_byte(terminal, planned, look):
    shown = await terminal(*LOOKS[look], TERM="dumb")

    assert CONTROL.search(shown.out) is None


async def test_a_watch_on_such_a_terminal_shows_every_look(terminal, planned):
    shown = await terminal(*LOOKS["watch"], TERM="dumb")

    assert shown.out.count("stream depth") == 2


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("look", ["inspect", "dlq peek", "events", "doctor", "queues", "workers"])
async def test_inside_tmux_nothing_is_wider_than_the_window(tmux, planned, look, columns):
    lines = await tmux(columns, *LOOKS[look]).until(ENDED)

    assert_fits(lines, columns)
    if look in FRAMED:
        assert_frames_meet(lines)


@pytest.mark.parametrize("columns", WIDTHS)
async def test_inside_tmux_a_watch_redraws_in_place_and_leaves_its_last_look(
    tmux, planned, columns
):
    window = tmux(columns, "watch", QUEUE, "--interval-ms", "50")
    await window.until("steady")

    lines = window.lines()
    window.press("C-c")
    after = await window.until(ENDED)

    for screen in (lines, after):
        assert_fits(screen, columns)
        assert_frames_meet(screen)
        assert sum("Ctrl+C ends" in line for line in screen) == 1
        assert sum(line.startswith("┌") for line in screen) == 1
    assert after[-3] == "steady"
    assert after[-2].endswith("interrupted")
