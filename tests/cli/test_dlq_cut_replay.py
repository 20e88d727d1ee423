"""A replay that ends before its time: what it meant and what it sent is known all the same."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq.cli.dlq.outcome import replays
from chasquimq.wire.envelope import decode_envelope
from support.made_lake import append
from support.waiting import eventually

DEAD = 100
SENT_BEFORE_THE_KILL = 4
# Two at a time, so that the kill comes long before the end.
RATE = "4"
CHUNK = 2
pytestmark = pytest.mark.takes_turns


@pytest.fixture
def lake(tmp_path):
    append(tmp_path / "lake", "silver_attempts", {"queue": "other"})
    return tmp_path / "lake"


@pytest.fixture
async def replaying(grave, running, queue_name, lake, raw):
    """A replay in the middle."""
    await grave(*[("mail", at) for at in range(DEAD)])
    command = running("dlq", "replay", queue_name, "--yes", "--lake", str(lake), "--max-rate", RATE)

    async def is_half_way() -> bool:
        return await raw("XLEN", raw.keys.stream) >= SENT_BEFORE_THE_KILL

    await eventually(is_half_way, within_s=30, what="some jobs sent")
    return command


async def test_a_replay_that_goes_on_is_told_of(chasqui, replaying, queue_name):
    # Stopped, it is there as long as the question takes.
    replaying.process.send_signal(signal.SIGSTOP)

    (told,) = await told_of(chasqui, queue_name)

    assert (told["state"], told["meant"]) == ("running", DEAD)
    assert 0 < told["jobs"] < DEAD


async def test_a_replay_that_was_killed_is_told_of(chasqui, replaying, queue_name, lake, raw):
    await replaying.ended(signal.SIGKILL)
    sent = set(await sent_jobs(raw))

    shown = await chasqui("dlq", "outcome", queue_name, "--lake", "lake")
    (told,) = await told_of(chasqui, queue_name)

    assert (told["state"], told["meant"]) == ("cut", DEAD)
    assert len(sent) - CHUNK <= told["jobs"] == told["unseen"] <= len(sent)
    assert f"of {DEAD} jobs for sure and was cut" in shown.err
    assert replays(lake)[0].sent <= sent


async def test_what_ran_was_sent_also_where_the_kill_came_before_the_note(
    chasqui, replaying, queue_name, lake, raw
):
    await replaying.ended(signal.SIGKILL)
    sent = await sent_jobs(raw)
    (log,) = (lake / "_replays").glob("*.sent")
    log.write_bytes(log.read_bytes()[:-5])
    soon = datetime.now(UTC) + timedelta(minutes=1)
    rows = [{"queue": queue_name, "job_id": one, "outcome": "completed", "ended_at": soon}
            for one in sent]  # fmt: skip
    append(lake, "silver_attempts", *rows)

    (told,) = await told_of(chasqui, queue_name)

    assert (told["jobs"], told["completed"], told["unseen"]) == (len(sent), len(sent), 0)


async def test_a_second_replay_after_a_kill_sends_the_rest_and_ends(
    chasqui, replaying, queue_name, raw
):
    await replaying.ended(signal.SIGKILL)
    sent = await raw("XLEN", raw.keys.stream)

    await chasqui("dlq", "replay", queue_name, "--yes", "--lake", "lake")

    second, first = await told_of(chasqui, queue_name)
    assert (second["state"], second["jobs"]) == ("ended", DEAD - sent)
    assert first["state"] == "cut"


async def told_of(chasqui, queue: str) -> list[dict]:
    said = await chasqui("dlq", "outcome", queue, "--lake", "lake", "--last", "2", "--json")
    return said.json["replays"]


async def sent_jobs(raw) -> list[str]:
    entries = await raw("XRANGE", raw.keys.stream, "-", "+")
    return [decode_envelope(fields[1]).id for _, fields in entries]
