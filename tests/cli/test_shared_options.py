"""Options of every command stand before or behind its name; refusals have one style."""

from __future__ import annotations

import pytest

from chasquimq.cli.app import COMMANDS, behind_the_name, main

pytestmark = pytest.mark.takes_turns

NOBODY = "redis://127.0.0.1:1"


@pytest.mark.parametrize(
    "words",
    [
        ["--redis-url", "URL", "--json", "inspect", "QUEUE"],
        ["--json", "inspect", "QUEUE", "--redis-url", "URL"],
        ["--redis-url=URL", "inspect", "QUEUE", "--json"],
        ["--redis-url", NOBODY, "--json", "inspect", "QUEUE", "--redis-url", "URL"],
        ["--redis-url", NOBODY, "--redis-url", "URL", "--json", "inspect", "QUEUE"],
        ["--redis-url", NOBODY, "--json", "inspect", "QUEUE", "--redis-url-file", "FILE"],
        ["--redis-url-file", "FILE", "--json", "inspect", "QUEUE"],
        ["--redis-url-file", "no-such-file", "--json", "inspect", "QUEUE", "--redis-url", "URL"],
    ],
)
async def test_the_server_may_be_named_before_and_behind_the_command_and_the_later_one_wins(
    bare_chasqui, queue, queue_name, url, tmp_path, words
):
    await queue.add("mail", 1)
    (tmp_path / "url").write_text(url)
    (tmp_path / "url").chmod(0o600)
    names = {
        "URL": url,
        "FILE": "url",
        "QUEUE": queue_name,
        "--redis-url=URL": f"--redis-url={url}",
    }

    said = await bare_chasqui(*(names.get(word, word) for word in words))

    assert (said.code, said.err) == (0, "")
    # Another server, or none, knows of no job.
    assert (said.json["queue"], said.json["stream_depth"]) == (queue_name, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "delayed", "list", "QUEUE"],
        ["delayed", "--json", "list", "QUEUE"],
        ["delayed", "list", "--json", "QUEUE"],
        ["delayed", "list", "QUEUE", "--json"],
    ],
)
async def test_a_command_of_a_group_takes_them_in_every_place(chasqui, queue, queue_name, words):
    await queue.add("mail", 1, delay_ms=60_000, job_id="mine")

    said = await chasqui(*(queue_name if word == "QUEUE" else word for word in words))

    assert [job["job_id"] for job in said.json] == ["mine"]


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (["--json", "add", "q", "n"], ["add", "--json", "q", "n"]),
        (["--log-level", "debug", "worker"], ["worker", "--log-level", "debug"]),
        # What is data is no option.
        (
            ["--redis-url", "a", "add", "q", "n", "--", "--redis-url"],
            ["add", "--redis-url", "a", "q", "n", "--", "--redis-url"],
        ),
        (["--json", "--help"], ["--help"]),
        (["--json"], []),
        ([], []),
    ],
)
def test_options_before_the_name_are_read_as_if_they_stood_behind_it(words, moved):
    assert behind_the_name(words) == moved


def test_the_help_says_so(capsys):
    assert main(["--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "before or after the command's name; the later one wins" in told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["serve"], "error: no such command 'serve'"),
        (["queues", "--redis"], "error: no such option '--redis'"),
        (["dlq", "peek"], "error: missing argument 'QUEUE'"),
        (["dlq", "peek", "q", "--limit", "-1"], "error: invalid value for '--limit'"),
        (["dlq", "purge", "q"], "error: say what to delete"),
        (["add", "q", "n", "{"], "error: the data must be JSON"),
        (["inspect", "a b"], "error: queue name must be"),
        (["demo", "--redis-url", "redis://a"], "error: no such option '--redis-url'"),
        (["--redis-url", "redis://a", "demo"], "error: no such option '--redis-url'"),
    ],
)
def test_every_refusal_begins_alike_and_has_one_line_of_hint_at_most(capsys, words, sentence):
    assert main(words) == 2

    error, *hints = capsys.readouterr().err.splitlines()
    assert error.startswith(sentence)
    assert not error.endswith(".")
    assert len(hints) <= 1
    assert all(one.startswith("hint: chasqui") and "--help" in one for one in hints)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_no_refusal_of_a_command_is_in_another_style(capsys, name):
    assert main([name, "--no-such-option"]) == 2

    told = capsys.readouterr().err
    assert told.startswith("error: no such option '--no-such-option'")
    assert "Usage" not in told
    assert "Error" not in told
