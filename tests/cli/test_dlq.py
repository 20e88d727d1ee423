"""`chasqui dlq` looks, sends back, deletes and exports, and asks before anything is lost."""

from __future__ import annotations

import base64
import json
import re
import time

import pytest

from chasquimq.cli.app import main
from chasquimq.queue.inspector import open_envelope
from support.command import ESCAPES

pytestmark = pytest.mark.takes_turns


async def test_peek_shows_the_columns_of_the_original_and_groups(chasqui, queue_name, grave):
    await grave(("charge", 1), ("charge", 2), ("mail", "x"))

    said = await chasqui("dlq", "peek", queue_name)

    entries, groups = said.out.split("\n\n")
    assert entries.splitlines()[0].split() == [
        "dlq", "id", "job", "id", "source_id", "name", "reason", "detail", "payload", "bytes", "data",
    ]  # fmt: skip
    assert len(entries.splitlines()) == 4
    assert "UnrecoverableError: card 1 refused" in entries
    assert groups.splitlines()[1].split()[:2] == ["unrecoverable", "2"]
    assert groups.splitlines()[2].split()[:2] == ["retries_exhausted", "1"]


async def test_an_empty_dlq_says_so_in_both_tables(chasqui, queue, queue_name):
    await queue.add("a", 1)

    said = await chasqui("dlq", "peek", queue_name)

    assert said.out.splitlines()[1].split() == ["(empty)", *"-------"]
    assert said.out.splitlines()[-1].split() == ["(no", "entries)", "0"]


async def test_peek_shows_as_many_as_asked_and_groups_all(chasqui, queue_name, grave):
    await grave(*[("mail", at) for at in range(5)])

    peeked = (await chasqui("dlq", "peek", queue_name, "--limit", "2", "--json")).json

    assert [len(peeked["entries"]), peeked["depth"], peeked["grouped"]] == [2, 5, 5]
    assert peeked["groups"][0]["count"] == 5
    assert peeked["groups"][0]["fingerprint"] == peeked["entries"][0]["fingerprint"]
    assert peeked["groups"][0]["error"] == "ValueError: no answer from mail"


async def test_peek_shows_the_ids_that_job_show_takes(chasqui, queue_name, grave):
    await grave(("charge", 1))

    peeked = (await chasqui("dlq", "peek", queue_name)).out
    job_id = peeked.splitlines()[1].split()[1]
    said = await chasqui("job", "show", queue_name, job_id, "--json")

    assert (said.code, said.json["state"]) == (0, "dead")


async def test_peek_heeds_its_filters(chasqui, queue_name, grave):
    await grave(("charge", 1), ("mail", 1))

    peeked = (await chasqui("dlq", "peek", queue_name, "--reason", "unrecoverable", "--json")).json

    assert [entry["name"] for entry in peeked["entries"]] == ["charge"]


async def test_in_a_pipe_errors_are_whole_and_never_show_a_control_byte(chasqui, queue_name, raw):
    words = "é" * 300
    await raw("XADD", raw.keys.dlq, "*", "d", "x", "reason", "\x1b[31m", "detail", words)

    said = await chasqui("dlq", "peek", queue_name)

    assert "\x1b" not in said.out
    assert "\\x1b[31m" in said.out
    assert said.out.count(f" {words}") == 2


async def test_peek_shows_the_data(chasqui, queue_name, grave):
    await grave(("charge", {"to": "\x1b[2J", "raw": b"\xff"}), ("mail", "x" * 5_000))

    said = await chasqui("dlq", "peek", queue_name)
    entries = (await chasqui("dlq", "peek", queue_name, "--json")).json["entries"]

    assert r'{"to": "\u001b[2J", "raw": {"$base64": "/w=="}}' in said.out
    assert max(map(len, said.out.splitlines())) < 1_000
    assert [one["data"] for one in entries] == [
        {"to": "\x1b[2J", "raw": {"$base64": "/w=="}}, "x" * 5_000,
    ]  # fmt: skip
    assert all(one["is_decoded"] for one in entries)


async def test_peek_shows_tracebacks_where_asked_to(chasqui, queue_name, grave):
    await grave(("charge", 1), ("mail", "x"))

    plain = await chasqui("dlq", "peek", queue_name)
    said = await chasqui("dlq", "peek", queue_name, "--traceback")
    entries = (await chasqui("dlq", "peek", queue_name, "--json")).json["entries"]

    assert "Traceback" not in plain.out
    assert said.out.count("Traceback (most recent call last):") == 2
    assert '    raise UnrecoverableError(f"card {job.data} refused")' in said.out
    assert entries[1]["traceback"].splitlines()[-1] == "ValueError: no answer from mail"


async def test_a_traceback_shows_no_control_byte_and_no_password(chasqui, queue_name, raw):
    told = "at\nE: \x1b[2J redis://u:canary@h:1"
    await raw("XADD", raw.keys.dlq, "*", "d", "x", "traceback", told)

    said = [
        await chasqui("dlq", "peek", queue_name, *more) for more in (["--traceback"], ["--json"])
    ]

    assert all("canary" not in one.out and "\x1b" not in one.out for one in said)
    assert "  at\n  E: \\x1b[2J redis://u:***@h:1" in said[0].out


@pytest.mark.parametrize("columns", [80, 120, 240])
async def test_a_terminal_of_any_width_shows_whole_errors_and_the_data(
    terminal, queue_name, grave, columns
):
    await grave(("charge", {"order": 1_000_017, "country": "PE", "currency": "PEN"}))

    said = await terminal("dlq", "peek", queue_name, columns=columns)

    shown = ESCAPES.sub("", said.out)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns
    told = " ".join(re.sub(r"[│┆]", " ", shown).split())
    if columns < 200:
        assert "UnrecoverableError: card {'order': 1000017, 'country': 'PE'" in told
        assert 'data: {"order": 1000017, "country": "PE", "currency": "PEN"}' in told
    else:
        assert "┆ data" in shown
        assert "1000017" in told


async def test_a_condition_may_ask_for_the_traceback(chasqui, queue_name, grave):
    await grave(("charge", 1), ("mail", 1))

    said = await chasqui("dlq", "replay", queue_name, "--dry-run",
                         "--where", "traceback like '%no answer from mail%'")  # fmt: skip

    assert said.out == "would replay 1 of 2 entries\n"


async def test_bytes_that_are_no_utf_8_are_shown_and_not_stumbled_over(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.dlq, "*", "d", b"\xff", "n", b"\xff", "reason", b"\xffx")

    said = await chasqui("dlq", "peek", queue_name)
    as_json = await chasqui("dlq", "peek", queue_name, "--json")

    assert (said.code, as_json.code) == (0, 0)
    assert as_json.json["entries"][0]["job_id"] is None


async def test_a_password_in_an_error_is_masked(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.dlq, "*", "d", "x", "error", "lost redis://u:canary@h:1")

    said = [await chasqui("dlq", "peek", queue_name, *more) for more in ([], ["--json"])]

    assert all("canary" not in one.out for one in said)
    assert all("redis://u:***@h:1" in one.out for one in said)


async def test_on_a_terminal_both_tables_are_framed_and_fit(terminal, queue_name, grave):
    await grave(("charge", 1), ("mail", "x"))

    said = await terminal("dlq", "peek", queue_name)

    lines = ESCAPES.sub("", said.out).splitlines()
    framed = [line for line in lines if line and not line.startswith("server:")]
    assert sum(line.startswith("┌") for line in framed) == 2
    assert "job id" in framed[1]
    assert max(map(len, framed)) <= 80


async def test_replay_asks_and_a_no_moves_nothing(chasqui, queue, queue_name, grave):
    await grave(("charge", 1))

    said = [await chasqui("dlq", "replay", queue_name, stdin=answer) for answer in (b"n\n", b"")]

    assert [one.code for one in said] == [1, 1]
    assert all("send 1 dead job of" in one.err for one in said)
    assert (await queue.counts()).dead == 1


@pytest.mark.parametrize("answer", [b"y\n", b"YES\n"])
async def test_replay_goes_on_after_a_yes(chasqui, queue, queue_name, grave, answer):
    await grave(("charge", 1))

    said = await chasqui("dlq", "replay", queue_name, stdin=answer)

    assert said.out == "replayed 1 of 1 entry\n"
    assert (await queue.counts()).ready == 1


async def test_replay_with_yes_asks_nothing_and_heeds_filter_and_limit(
    chasqui, queue, queue_name, grave
):
    await grave(("charge", 1), ("mail", 1), ("mail", 2), ("mail", 3))

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--name", "mail", "--limit", "2")

    assert (said.code, said.out, said.err) == (0, "replayed 2 of 4 entries\n", "")
    counts = await queue.counts()
    assert (counts.ready, counts.dead) == (2, 2)


async def test_replay_by_id_and_by_fingerprint(chasqui, queue, queue_name, grave):
    await grave(("charge", 1), ("mail", 1), ("mail", 2))
    charge, first, _ = await queue.peek_dlq()

    by_id = await chasqui("dlq", "replay", queue_name, "--yes", "--id", first["dlq_id"])
    by_fingerprint = await chasqui(
        "dlq", "replay", queue_name, "--yes", "--fingerprint", charge["fingerprint"], "--json"
    )

    assert by_id.out == "replayed 1 of 3 entries\n"
    assert by_fingerprint.json["ids"] == [charge["dlq_id"]]
    assert (by_fingerprint.json["depth"], by_fingerprint.json["limit"]) == (2, 100)
    assert (await queue.counts()).dead == 1


async def test_a_dry_run_tells_and_moves_nothing(chasqui, queue, queue_name, grave):
    await grave(("charge", 1), ("mail", 1))

    said = await chasqui("dlq", "replay", queue_name, "--dry-run")

    assert said.out == "would replay 2 of 2 entries\n"
    assert (await queue.counts()).dead == 2


async def test_what_cannot_be_decoded_stays_and_is_told(chasqui, queue, queue_name, raw, grave):
    await raw("XADD", raw.keys.dlq, "*", "d", "junk", "reason", "decode_failed")
    await grave(("charge", 1))

    said = await chasqui("dlq", "replay", queue_name, "--yes")

    assert said.out == "replayed 1 of 2 entries\n"
    assert said.err == "1 entry cannot be decoded and stays\n"
    assert (await queue.counts()).dead == 1


async def test_a_rate_is_kept_across_chunks(chasqui, queue, queue_name, grave):
    await grave(*[("mail", at) for at in range(30)])
    started_s = time.monotonic()

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--max-rate", "20")

    assert said.out == "replayed 30 of 30 entries\n"
    # The first twentieth leaves at once, the last needs no rest after it.
    assert time.monotonic() - started_s > 1.0


async def test_a_bad_dlq_id_is_refused_in_one_line(chasqui, queue, queue_name):
    await queue.add("a", 1)

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--id", "yesterday")

    assert said.code == 2
    assert said.err.startswith("error: ids must be a dlq id")


@pytest.mark.parametrize("more", [[], ["--all", "--name", "x"], ["--all", "--older-than", "1d"]])
def test_purge_needs_to_be_told_what(more, capsys):
    assert main(["dlq", "purge", "q", "--yes", *more]) == 2
    assert "say what to delete" in capsys.readouterr().err


async def test_purge_needs_the_typed_name_of_the_queue(chasqui, queue, queue_name, grave):
    await grave(("charge", 1))

    refused = [
        await chasqui("dlq", "purge", queue_name, "--all", stdin=answer)
        for answer in (b"", b"\xffyes\n")
    ]
    done = await chasqui("dlq", "purge", queue_name, "--all", stdin=f"{queue_name}\n".encode())

    assert [one.code for one in refused] == [1, 1]
    assert done.out == "purged 1 entry\n"
    assert (await queue.counts()).dead == 0


async def test_purge_deletes_what_matches_and_nothing_else(chasqui, queue, queue_name, grave):
    await grave(("charge", 1), ("mail", 1))

    old = await chasqui("dlq", "purge", queue_name, "--yes", "--older-than", "1h", "--json")
    said = await chasqui("dlq", "purge", queue_name, "--yes", "--reason", "unrecoverable", "--json")

    assert (old.json, said.json) == ({"purged": 0}, {"purged": 1})
    assert [letter["name"] for letter in await queue.peek_dlq()] == ["mail"]


async def test_export_writes_a_line_each_with_data_and_envelope(chasqui, queue_name, grave):
    await grave(("mail", {"to": "ñ", "raw": b"\xff"}), ("charge", 2))

    said = await chasqui("dlq", "export", queue_name)

    first, second = map(json.loads, said.out.splitlines())
    assert first["data"] == {"to": "ñ", "raw": {"$base64": "/w=="}}
    assert (second["name"], second["data"], second["is_decoded"]) == ("charge", 2, True)
    assert second["traceback"].endswith("UnrecoverableError: card 2 refused")
    opened = open_envelope(base64.b64decode(second["envelope_base64"]))
    assert (opened.job_id, opened.data) == (second["job_id"], 2)
    assert said.err == "exported 2 entries\n"


async def test_export_keeps_what_it_cannot_read(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.dlq, "*", "d", b"\xc1junk", "reason", "decode_failed")

    (line,) = (await chasqui("dlq", "export", queue_name)).out.splitlines()

    facts = json.loads(line)
    assert (facts["is_decoded"], facts["data"]) == (False, None)
    assert base64.b64decode(facts["envelope_base64"]) == b"\xc1junk"


async def test_export_to_a_file_is_whole_or_not_there(chasqui, queue_name, grave, tmp_path):
    await grave(*[("mail", at) for at in range(250)])

    said = await chasqui("dlq", "export", queue_name, "--output", "dead.jsonl")
    nowhere = await chasqui("dlq", "export", queue_name, "--output", "no/such/dir/dead.jsonl")

    lines = (tmp_path / "dead.jsonl").read_text().splitlines()
    assert [json.loads(line)["data"] for line in lines] == list(range(250))
    assert said.out == ""
    assert nowhere.code == 1
    assert nowhere.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["dead.jsonl"]


async def test_an_unknown_queue_is_code_1(chasqui, queue_name):
    said = await chasqui("dlq", "purge", queue_name, "--all", "--yes")

    assert said.code == 1
    assert said.err.startswith(f"error: no queue named '{queue_name}'")
