"""`chasqui add` takes data from an argument, a pipe or a file, and prints the id."""

from __future__ import annotations

import os
import re

import pytest

from chasquimq.cli.app import main
from chasquimq.cli.values import DURATION, duration_text, interval_text
from chasquimq.queue.inspector import Inspector
from support.faultproxy import FaultProxy

pytestmark = pytest.mark.takes_turns


async def test_a_job_is_added_and_its_id_printed(chasqui, queue_name, queue):
    said = await chasqui("add", queue_name, "mail", '{"to": "ñ"}')

    state = await queue.get_job(said.out.strip())
    assert (said.code, said.err) == (0, "")
    assert (state.state, state.name) == ("ready", "mail")


async def test_data_comes_from_a_pipe_or_a_file_or_is_null(
    chasqui, queue, queue_name, url, tmp_path
):
    (tmp_path / "data.json").write_text('["file"]')

    added = [
        await chasqui("add", queue_name, "n", "-", stdin=b'["pipe"]'),
        await chasqui("add", queue_name, "n", "@data.json"),
        await chasqui("add", queue_name, "n"),
    ]

    async with Inspector(redis_url=url) as inspector:
        found = [
            await inspector.contents(queue_name, await queue.get_job(one.out.strip()))
            for one in added
        ]
    assert [contents.data for contents in found] == [["pipe"], ["file"], None]


async def test_delay_id_and_attempts_are_the_jobs_own(chasqui, queue_name, queue):
    options = ("--delay", "90s", "--job-id", "mine", "--attempts", "3")

    first = await chasqui("add", queue_name, "mail", "1", *options)
    again = await chasqui("add", queue_name, "mail", "1", *options, "--json")

    assert first.out == "mine\n"
    assert again.json == {"job_id": "mine", "queue": queue_name, "is_duplicate": True}
    assert again.err == "a job of this id was added before and is kept\n"
    assert (await queue.get_job("mine")).state == "delayed"


async def test_in_a_new_directory_a_server_is_started(bare_chasqui):
    environ = {"CHASQUI_REDIS_URL": "", "XDG_RUNTIME_DIR": "/tmp", "CHASQUI_SERVER_BIN": ""}

    said = await bare_chasqui("add", "q", "mail", "1", **environ)
    stopped = await bare_chasqui("server", "stop", **environ)

    assert len(said.out.strip()) == 26
    assert stopped.out == "stopped\n"


@pytest.mark.parametrize("data", ["{", "text", "", "@/no/such/file", "[" * 100_000])
def test_data_that_is_no_json_is_wrong_usage(data, capsys):
    assert main(["add", "q", "n", data]) == 2
    assert "error: " in capsys.readouterr().err


def test_data_that_is_no_utf_8_is_wrong_usage(capsys):
    assert main(["add", "q", "n", os.fsdecode(b'"\xff"')]) == 2
    assert "the data must be UTF-8; byte 1 is not" in capsys.readouterr().err


async def test_a_value_without_a_wire_form_is_one_line(chasqui, queue_name):
    said = await chasqui("add", queue_name, "n", str(2**70))

    assert said.code == 1
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("5s", 5_000),
        ("1.5m", 90_000),
        ("2 min", 120_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_durations_are_a_number_and_a_unit(text, ms):
    assert DURATION.convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["5", "-1s", "s", "1e3s", "1s1s", "\u0661s"])
def test_what_is_no_duration_is_wrong_usage(text, capsys):
    assert main(["add", "q", "n", "1", f"--delay={text}"]) == 2
    assert "is no duration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (5, "5 ms"),
        (999.9, "1000 ms"),
        (1_000, "1 s"),
        (1_500, "1.5 s"),
        (59_940, "59.9 s"),
        (59_960, "1 min"),
        (60_000, "1 min"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (3_700_000, "1 h 1 min"),
        (172_800_000, "2 d"),
        (200_000_000, "2 d 7 h"),
    ],
)
def test_a_duration_is_told_in_two_units(ms, text):
    assert duration_text(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (1_000, "1 s"),
        (1_005, "1.005 s"),
        (60_000, "1 min"),
        (60_001, "1 min 0.001 s"),
        (90_000, "1 min 30 s"),
        (86_400_000, "1 d"),
        (90_061_500, "1 d 1 h 1 min 1.5 s"),
    ],
)
def test_an_interval_is_told_in_as_many_units_as_it_has(ms, text):
    assert interval_text(ms) == text


async def test_a_job_without_a_name_is_added_and_said_to_have_none(chasqui, queue_name, raw):
    said = await chasqui("add", queue_name, "")

    assert said.code == 0
    assert said.err.startswith("the job has no name: only a worker with one handler for every name")
    assert len(await raw.entries(raw.keys.stream)) == 1


async def test_a_server_that_is_started_for_a_command_is_a_warning_in_a_pipe_too(bare_program):
    nowhere = {"CHASQUI_REDIS_URL": "", "XDG_RUNTIME_DIR": "/tmp"}
    added = await bare_program("add", "mails", "1", **nowhere)
    stopped = await bare_program("server", "stop", **nowhere)

    assert (added.code, stopped.code) == (0, 0), added.err
    assert re.fullmatch(
        r"warning: no server was named, started one for this project at unix://\S+; set "
        r"CHASQUI_REDIS_URL for production\n", added.err,
    )  # fmt: skip


async def test_a_new_queue_with_a_name_like_another_is_said_to_be_new(chasqui, url):
    first = await chasqui("add", "invoices-of-may", "a")
    mistyped = await chasqui("add", "invoices-of-mai", "a")
    again = await chasqui("add", "invoices-of-mai", "a")

    assert (first.code, mistyped.code, again.code) == (0, 0, 0)
    assert mistyped.err == (
        "warning: there was no queue named 'invoices-of-mai', so it was made; did you mean "
        "'invoices-of-may'?\n"
    )
    assert first.err == again.err == ""


@pytest.mark.parametrize("question", [b"XPENDING", b"SCAN"], ids=["exists", "similar"])
async def test_a_hint_that_cannot_be_given_does_not_fail_the_add(
    chasqui, url, queue, queue_name, question
):
    async with FaultProxy(url) as proxy:
        proxy.lose_replies(1, [question])
        said = await chasqui("add", queue_name, "n", "1", CHASQUI_REDIS_URL=proxy.url)

    assert (said.code, said.err) == (0, "")
    assert (await queue.get_job(said.out.strip())).state == "ready"
