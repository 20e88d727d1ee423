"""Dead jobs that were taken out come back byte for byte, each once."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Queue, UnrecoverableError, Worker
from chasquimq.errors import SettingsError

DATA = {"raw": b"\x00\xff", "n": 2**63, "nested": [1.5, None, "ñ"]}


@pytest.fixture
async def letters(queue, url, queue_name):
    """Three dead jobs, taken out of their DLQ."""

    async def refuse(job) -> None:
        raise UnrecoverableError(f"card {job.data['n']} refused")

    await queue.add_bulk(
        [{"name": "charge", "data": DATA | {"at": at}, "job_id": f"dead-{at}", "attempts": 7,
          "timeout_ms": 60_000} for at in range(3)]
    )  # fmt: skip
    await Worker(queue_name, refuse, redis_url=url).run_until_idle()
    found = await queue.peek_dlq()
    await queue.purge_dlq(all=True)
    return found


def without_ids(letters) -> list[dict]:
    return [{key: value for key, value in one.items() if key != "dlq_id"} for one in letters]


async def test_dead_jobs_come_back_as_they_were(queue, letters):
    imported = await queue.import_dlq(letters)

    assert (imported, imported.known) == (3, 0)
    assert without_ids(await queue.peek_dlq()) == without_ids(letters)


async def test_a_second_import_of_the_same_adds_nothing(queue, letters):
    await queue.import_dlq(letters)
    again = await queue.import_dlq(letters)
    await queue.replay_dlq()
    after_replay = await queue.import_dlq(letters)

    assert [(one, one.known) for one in (again, after_replay)] == [(0, 3), (0, 3)]
    assert len(await queue.peek_dlq()) == 0


async def test_a_dry_run_adds_nothing_and_counts_what_is_known(queue, letters):
    before = await queue.import_dlq(letters, dry_run=True)
    await queue.import_dlq(letters[:2])
    still_there = await queue.import_dlq(await queue.peek_dlq(), dry_run=True)
    after = await queue.import_dlq(letters, dry_run=True)

    found = [(one, one.known) for one in (before, still_there, after)]
    assert found == [(0, 0), (0, 2), (0, 2)]
    assert len(await queue.peek_dlq()) == 2


async def test_what_is_still_in_the_dlq_is_not_added_beside_itself(queue, letters):
    await queue.import_dlq(letters)

    still_there = await queue.import_dlq(await queue.peek_dlq())

    assert (still_there, still_there.known) == (0, 3)


async def test_two_imports_at_once_add_each_once(queue, url, queue_name, letters):
    async with Queue(queue_name, redis_url=url) as other:
        one, two = await asyncio.gather(queue.import_dlq(letters), other.import_dlq(letters))

    assert one + two == 3
    assert len(await queue.peek_dlq()) == 3


async def test_as_jobs_they_run_again_with_all_their_attempts_and_the_same_bytes(
    queue, url, queue_name, letters, raw
):
    imported = await queue.import_dlq(letters, as_jobs=True)
    again = await queue.import_dlq(letters, as_jobs=True)
    entries = [fields[b"d"] for _, fields in await raw.entries(raw.keys.stream)]

    ran = []

    async def take(job) -> None:
        ran.append((job.id, job.name, job.attempt, job.data))

    await Worker(queue_name, take, redis_url=url).run_until_idle()

    assert (imported, again, again.known) == (3, 0, 3)
    assert sorted(ran) == [(f"dead-{at}", "charge", 0, DATA | {"at": at}) for at in range(3)]
    # The same id, payload, time and options; only the generation behind them is another.
    assert all(
        new.split(b"generation")[0][:60] == old["payload"][:60]
        for new, old in zip(entries, letters, strict=True)
    )


async def test_bytes_that_nobody_can_read_come_back_too_but_not_as_jobs(queue, raw):
    letter = {
        "dlq_id": "5-1", "source_id": "4-1", "reason": "decode_failed", "name": "n",
        "payload": b"\xff\x00",
    }  # fmt: skip
    with pytest.raises(SettingsError, match=r"letters\[0\] must be a job that can be decoded"):
        await queue.import_dlq([letter], as_jobs=True)

    assert await queue.import_dlq([letter]) == 1
    assert [one["payload"] for one in await queue.peek_dlq()] == [b"\xff\x00"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"payload": "text"}, "'payload'"),
        ({"dlq_id": "x"}, "'dlq_id'"),
        ({"dlq_id": None}, "'dlq_id'"),
        ({"name": None}, "'name'"),
        ({"reason": 5}, "'reason'"),
        ({"attempt": True}, "'attempt'"),
        ({"attempt": -1}, "'attempt'"),
        ({"failed_at_ms": 2**64}, "'failed_at_ms'"),
        ({"name": "x" * 257}, "job name"),
    ],
)
async def test_one_that_is_no_dead_job_is_refused_before_any_is_added(
    queue, letters, change, complaint
):
    with pytest.raises(SettingsError, match=complaint):
        await queue.import_dlq([letters[0], letters[1] | change])

    assert await queue.peek_dlq() == []


async def test_many_and_heavy_ones_go_in_several_calls(queue, letters):
    many = [letters[0] | {"dlq_id": f"7-{at}"} for at in range(1, 351)]
    heavy = [letters[0] | {"dlq_id": f"8-{at}", "payload": b"\xff" * 700_000} for at in range(1, 6)]

    assert await queue.import_dlq(many + heavy) == 355
    assert await queue.import_dlq(iter(many)) == 0
    assert await queue.import_dlq([]) == 0


async def test_what_is_dead_here_does_not_run_beside_that(queue, letters):
    await queue.import_dlq(letters)
    here = await queue.peek_dlq()

    from_before = await queue.import_dlq(letters, as_jobs=True)
    from_here = await queue.import_dlq(here, as_jobs=True)

    assert (from_before, from_here) == (0, 0)
    assert (await queue.counts()).ready == 0
