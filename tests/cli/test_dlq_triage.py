"""Dead jobs as a working set: by what went wrong, chosen by SQL, changed, sent back, followed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq.errors import SettingsError
from support.command import ESCAPES
from support.made_lake import append
from support.waiting import eventually

pytestmark = pytest.mark.takes_turns


async def data_of_waiting(queue, raw):
    entries = await raw("XRANGE", raw.keys.stream, "-", "+")
    from chasquimq.queue.inspector import open_envelope

    return [open_envelope(fields[1]).data for _, fields in entries]


async def test_triage_groups_all_dead_jobs_by_what_went_wrong(chasqui, queue_name, grave):
    await grave(("charge", 1), ("charge", 2), ("mail", "x"))

    kinds = (await chasqui("dlq", "triage", queue_name, "--json")).json["kinds"]

    assert [(kind["jobs"], kind["names"]) for kind in kinds] == [
        (2, {"charge": 2}), (1, {"mail": 1}),
    ]  # fmt: skip
    assert kinds[0]["reasons"] == {"unrecoverable": 2}
    assert kinds[0]["error"].startswith("UnrecoverableError")
    assert kinds[0]["first_seen"] <= kinds[0]["last_seen"]
    assert kinds[0]["burnt_s"] is None


async def test_a_narrow_terminal_shows_whole_errors_below_the_kinds(terminal, queue_name, grave):
    await grave(("charge", {"card": "4242", "order": 1_000_017}), ("mail", "x"))

    said = await terminal("dlq", "triage", queue_name, columns=80)

    lines = [line.rstrip() for line in ESCAPES.sub("", said.out).splitlines()]
    told = " ".join(line.strip() for line in lines[lines.index("an error of each:") :])
    error = "UnrecoverableError: card {'card': '4242', 'order': 1000017} refused"
    assert error in told
    assert ": ValueError: no answer from mail" in told
    # A command to be copied stays in one piece.
    assert max(len(line) for line in lines if "dlq replay" not in line) <= 80
    for title in ("fingerprint", "jobs", "burnt", "first seen", "last seen", "names"):
        assert title in said.out


async def test_a_wide_terminal_shows_errors_beside_the_kinds(terminal, queue_name, grave):
    await grave(("mail", "x"))

    said = await terminal("dlq", "triage", queue_name, columns=180)

    assert "an error of it" in said.out
    assert "an error of each" not in said.out


async def test_triage_takes_what_attempts_burnt_from_the_tables(
    chasqui, queue_name, grave, tmp_path
):
    await grave(("charge", 1))
    (kind,) = (await chasqui("dlq", "triage", queue_name, "--json")).json["kinds"]
    row = {"queue": queue_name, "name": "charge", "fingerprint": kind["fingerprint"],
           "window_start": datetime.now(UTC), "failed": 1, "run_us": 2_500_000}  # fmt: skip
    append(tmp_path / "lake", "gold_failures", row)

    said = await chasqui("dlq", "triage", queue_name, "--lake", "lake")

    assert "2.5 s" in said.out
    assert f"chasqui dlq replay {queue_name} --fingerprint {kind['fingerprint']}" in said.out


async def test_entries_of_the_original_are_grouped_by_what_they_say(chasqui, queue_name, raw):
    for detail in ("job 17 failed", "job 18 failed", "other"):
        await raw("XADD", raw.keys.dlq, "*", "d", "x", "reason", "retries_exhausted",
                  "detail", detail)  # fmt: skip

    said = await chasqui("dlq", "triage", queue_name)
    kinds = (await chasqui("dlq", "triage", queue_name, "--json")).json["kinds"]

    assert [(kind["jobs"], kind["fingerprint"]) for kind in kinds] == [(2, None), (1, None)]
    assert "--fingerprint" not in said.out


async def test_an_empty_dlq_has_no_kinds(chasqui, queue, queue_name):
    await queue.add("a", 1)

    assert "(no dead jobs)" in (await chasqui("dlq", "triage", queue_name)).out


async def test_a_condition_says_which_jobs_go_and_a_change_what_they_become(
    chasqui, queue, queue_name, grave, raw
):
    await grave(*[("mail", {"to": f"u{at}", "country": "PE" if at % 2 else "DE"})
                  for at in range(10)])  # fmt: skip

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--json", "--set", "$.retry=true",
                         "--where", "data->>'$.country' = 'PE' and attempt >= 0")  # fmt: skip

    assert (said.json["replayed"], said.json["depth"]) == (5, 10)
    assert await data_of_waiting(queue, raw) == [
        {"to": f"u{at}", "country": "PE", "retry": True} for at in (1, 3, 5, 7, 9)
    ]
    left = (await chasqui("dlq", "export", queue_name)).out
    assert left.count('"country": "DE"') == 5
    assert left.count('"country": "PE"') == 0


async def test_a_condition_finds_any_text_in_the_data(chasqui, queue_name, grave, raw):
    await grave(("mail", {"city": "Zürich"}), ("mail", {"city": "Cusco"}))

    await chasqui("dlq", "replay", queue_name, "--yes", "--where", "data like '%Zürich%'")

    assert await raw("XLEN", raw.keys.stream) == 1


async def test_a_dry_run_shows_changes_and_makes_none(chasqui, queue_name, grave, raw):
    await grave(("mail", {"to": "ana"}))

    said = await chasqui("dlq", "replay", queue_name, "--dry-run", "--set", "to=bob")

    assert said.out.splitlines() == [
        '- {"to": "ana"}', '+ {"to": "bob"}', "would replay 1 of 1 entry",
    ]  # fmt: skip
    assert await raw("XLEN", raw.keys.dlq) == 1
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_a_change_that_does_not_fit_each_job_moves_none(chasqui, queue_name, grave, raw):
    await grave(("mail", {"to": {"name": "ana"}}), ("mail", {"to": "bob"}), ("mail", 3))

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--set", "$.to.name=eva")

    assert said.code == 2
    assert "2 jobs that it does not fit" in said.err
    assert "nothing was replayed" in said.err
    assert await raw("XLEN", raw.keys.dlq) == 3


async def test_a_change_must_fit_those_that_would_go_and_no_others(chasqui, queue_name, grave):
    await grave(("mail", 1), ("mail", 2), ("mail", 3), ("mail", {"to": "ana"}))
    change = ("--set", "$.to=eva", "--dry-run")

    oldest = await chasqui("dlq", "replay", queue_name, "--limit", "2", *change)
    fitting = await chasqui("dlq", "replay", queue_name, "--limit", "2", *change,
                            "--on-error", "skip")  # fmt: skip

    assert oldest.code == 2
    assert "with 2 jobs that it does not fit" in oldest.err
    assert "would replay 1 of 4 entries" in fitting.out


async def test_on_request_jobs_that_a_change_does_not_fit_stay(chasqui, queue_name, grave, raw):
    await grave(("mail", {"to": {"name": "ana"}}), ("mail", {"to": "bob"}))

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--set", "$.to.name=eva",
                         "--on-error", "skip")  # fmt: skip

    assert said.out.splitlines() == ["replayed 1 of 2 entries"]
    assert "1 entry does not take the change and stays" in said.err
    assert await raw("XLEN", raw.keys.dlq) == 1


@pytest.mark.parametrize(
    "where",
    ["nonsense =", "1 = 1) or (1 = 1); drop table dlq; --", "nobody = 1",
     "dlq_id in (select * from read_csv('/etc/passwd'))", ""],
)  # fmt: skip
async def test_a_condition_that_is_none_is_refused_before_anything_moves(
    chasqui, queue_name, grave, raw, where
):
    await grave(("mail", 1))

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--where", where)

    assert said.code == 2
    assert "an SQL condition on a dead job" in said.err
    assert "Traceback" not in said.err
    assert await raw("XLEN", raw.keys.dlq) == 1


async def test_what_becomes_of_a_replay_is_told_from_the_tables(
    chasqui, queue_name, grave, tmp_path, raw
):
    await grave(*[("mail", at) for at in range(4)])
    append(tmp_path / "lake", "silver_attempts", {"queue": "other"})
    dead = (await chasqui("dlq", "peek", queue_name, "--json")).json["entries"]
    soon = datetime.now(UTC) + timedelta(minutes=1)

    said = await chasqui("dlq", "replay", queue_name, "--yes", "--lake", "lake")
    ends = [("completed", -90), ("completed", 0), ("retried", 0), ("dead", 0)]
    for entry, (outcome, minutes) in zip(dead, ends, strict=True):
        append(tmp_path / "lake", "silver_attempts",
               {"queue": queue_name, "job_id": entry["job_id"], "outcome": outcome,
                "ended_at": soon + timedelta(minutes=minutes)})  # fmt: skip
    told = (await chasqui("dlq", "outcome", queue_name, "--lake", "lake", "--json")).json

    assert f"chasqui dlq outcome {queue_name}" in said.err
    (replay,) = told["replays"]
    assert {name: replay[name] for name in ("jobs", "completed", "dead", "under_way", "unseen")} == {
        "jobs": 4, "completed": 1, "dead": 1, "under_way": 1, "unseen": 1,
    }  # fmt: skip
    table = await chasqui("dlq", "outcome", queue_name, "--lake", "lake")
    assert table.out.splitlines()[1].split()[-5:] == ["4", "1", "1", "1", "1"]


async def test_a_queue_without_a_replay_in_the_lake_is_told_what_to_do(chasqui, tmp_path):
    append(tmp_path / "lake", "silver_attempts", {"queue": "q"})

    said = await chasqui("dlq", "outcome", "q", "--lake", "lake")

    assert said.code == 1
    assert "replay with the same --lake" in said.err


async def test_an_edit_in_a_program_changes_jobs_and_leaves_what_it_refuses(queue, grave, raw):
    from chasquimq.errors import EditRefused

    await grave(*[("mail", at) for at in range(4)])

    def edit(data):
        if data == 2:
            raise EditRefused("two stays")
        return data * 10

    replayed = await queue.replay_dlq(10, edit=edit)

    assert (replayed.replayed, replayed.skipped, len(replayed.job_ids)) == (3, 1, 3)
    assert await data_of_waiting(queue, raw) == [0, 10, 30]
    await eventually(lambda: raw("XLEN", raw.keys.dlq))


async def test_an_edit_that_returns_nothing_is_refused_and_its_job_keeps_its_data(
    queue, grave, raw
):
    await grave(("mail", {"price": 10}))

    with pytest.raises(SettingsError, match="returns the new data, got None; return it"):
        await queue.replay_dlq(1, edit=lambda data: data.update(price=20))

    assert await raw("XLEN", raw.keys.dlq) == 1
    assert await queue.replay_dlq(1) == 1
    assert await data_of_waiting(queue, raw) == [{"price": 10}]


async def test_a_job_without_data_may_be_edited_to_have_none(queue, grave, raw):
    await grave(("mail", None))

    assert await queue.replay_dlq(1, edit=lambda data: data) == 1


async def test_what_a_change_makes_too_large_stays(queue, queue_name, grave, raw, chasqui):
    await grave(("mail", {"to": "ana"}))

    replayed = await queue.replay_dlq(10, edit=lambda _: "x" * (2 << 20))
    said = await queue.replay_dlq(10, edit=lambda _: {1, 2})

    assert [(one.replayed, one.refused, one.skipped) for one in (replayed, said)] == [(0, 1, 1)] * 2
    assert await raw("XLEN", raw.keys.dlq) == 1


async def test_a_job_that_is_replayed_again_counts_for_the_last_replay_alone(
    chasqui, queue_name, grave, tmp_path
):
    await grave(("mail", 1))
    append(tmp_path / "lake", "silver_attempts", {"queue": "other"})
    (dead,) = (await chasqui("dlq", "peek", queue_name, "--json")).json["entries"]
    await chasqui("dlq", "replay", queue_name, "--yes", "--lake", "lake")
    (first,) = (tmp_path / "lake" / "_replays").iterdir()
    old = json.loads(first.read_text())
    began = datetime.fromisoformat(old["replayed_at"])
    later = {**old, "replay": "99991231-235959-0000",
             "replayed_at": (began + timedelta(hours=1)).isoformat()}  # fmt: skip
    first.with_name("99991231-235959-0000.json").write_text(json.dumps(later))
    for outcome, minutes in (("dead", 1), ("completed", 90)):
        append(tmp_path / "lake", "silver_attempts",
               {"queue": queue_name, "job_id": dead["job_id"], "outcome": outcome,
                "ended_at": began + timedelta(minutes=minutes)})  # fmt: skip

    told = await chasqui("dlq", "outcome", queue_name, "--lake", "lake", "--last", "2", "--json")

    ends = [(one["completed"], one["dead"]) for one in told.json["replays"]]
    assert ends == [(1, 0), (0, 1)]


@pytest.mark.parametrize("command", [("triage",), ("replay", "--yes")], ids=["triage", "replay"])
async def test_a_lake_that_was_named_and_is_none_is_refused_before_anything_moves(
    chasqui, queue_name, grave, raw, command
):
    await grave(("mail", 1))
    word, *more = command

    said = await chasqui("dlq", word, queue_name, "--lake", "nowhere", *more)

    assert said.code == 1
    assert "lake must be a folder with tables, got 'nowhere'" in said.err
    assert await raw("XLEN", raw.keys.dlq) == 1


async def test_the_replay_of_a_large_kind_is_suggested_with_its_size(chasqui, queue_name, grave):
    await grave(*[("mail", number) for number in range(101)])

    said = await chasqui("dlq", "triage", queue_name)

    assert said.out.rstrip().endswith("--limit 101")


async def test_no_kinds_at_all_are_not_asked_for(chasqui, queue_name, grave):
    await grave(("mail", 1))

    said = await chasqui("dlq", "triage", queue_name, "--limit", "0")

    assert said.code == 2
    assert "(no dead jobs)" not in said.out


@pytest.mark.parametrize("command", ["replay", "triage"])
async def test_a_reason_that_nothing_has_is_refused_with_those_there_are(
    chasqui, queue_name, grave, command
):
    await grave(("mail", 1))

    said = await chasqui("dlq", command, queue_name, "--reason", "nope")
    known = await chasqui("dlq", command, queue_name, "--reason", "expired")

    assert said.code == 2
    assert "retries_exhausted" in said.err
    assert "unrecoverable" in said.err
    assert known.code == 0


async def test_a_reason_of_another_program_is_taken_where_an_entry_has_it(chasqui, queue_name, raw):
    await raw("XADD", raw.keys.dlq, "*", "d", "x", "reason", "homemade", "detail", "d")

    said = await chasqui("dlq", "replay", queue_name, "--reason", "homemade", "--dry-run")

    assert said.code == 0


async def test_an_empty_condition_is_refused_in_a_sentence(chasqui, queue_name, grave):
    await grave(("mail", 1))

    said = await chasqui("dlq", "replay", queue_name, "--where", " ")

    assert said.code == 2
    assert "where must be an SQL condition on a dead job, got ' '; it is empty" in said.err
