"""What follows an envelope is carried as it came; what cannot be carried costs nobody else."""

from __future__ import annotations

import pytest

from chasquimq.wire.envelope import (
    EXTRAS_BYTES_MAX,
    EXTRAS_DEPTH_MAX,
    decode_envelope,
    encode_envelope,
    value_end,
)
from chasquimq.wire.stream_entry import split_member
from support.waiting import eventually

JOB = encode_envelope("job", b"\x01", 1_700_000_000_000)
# Spelled as no encoder of ours would: a long head, an extension, a number of its own kind, NaN.
STRANGE = (
    b"\xde\x00\x05" b"\xd9\x01a\xcd\x00\x07" b"\xa1b\xc7\x03\x05xyz" b"\xa1c\xca\x7f\xc0\x00\x01"
    b"\xaatimeout_ms\xa4soon" b"\xa1d\x91\x81\x01\xc0"
)  # fmt: skip
FOLLOWERS = 20


def nested(depth: int) -> bytes:
    """A map in which an array lies in an array; the map is the first level."""
    return b"\x81\xa1k" + b"\x91" * (depth - 1) + b"\x01"


def extras_of(body: bytes) -> bytes:
    return body[value_end(body) :]


async def fails(job):
    raise ValueError("no")


async def put(raw, body, name="n"):
    return await raw("XADD", raw.keys.stream, "*", "d", body, "n", name)


async def delayed(raw) -> list[bytes]:
    async def members():
        return await raw("ZRANGE", raw.keys.delayed, 0, -1)

    return [split_member(one)[1] for one in await eventually(members)]


@pytest.mark.parametrize(
    ("extras", "detail"),
    [
        pytest.param(nested(EXTRAS_DEPTH_MAX + 1), b"at most 32 levels", id="one level too deep"),
        pytest.param(nested(981), b"at most 32 levels", id="as deep as can be decoded"),
        pytest.param(nested(3000), b"at most 32 levels", id="deeper than can be decoded"),
        pytest.param(
            b"\x81\xa1k\xc5\x40\x00" + bytes(EXTRAS_BYTES_MAX), b"at most 16384 bytes", id="large"
        ),
    ],
)
async def test_extras_over_the_cap_are_rejected_with_their_bytes_and_others_go_on(
    queue, raw, running_worker, extras, detail
):
    running = await running_worker(fails, max_attempts=2, delayed_enabled=False)
    await put(raw, JOB + extras)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(FOLLOWERS)])

    await eventually(lambda: running.worker.health().retried == FOLLOWERS, what="their retries")
    (entry,) = await eventually(raw.dlq)
    assert (entry[b"reason"], entry[b"d"]) == (b"decode_failed", JOB + extras)
    assert detail in entry[b"detail"]
    assert running.worker.health().is_ok


@pytest.mark.parametrize(
    "extras",
    [
        pytest.param(STRANGE, id="strange"),
        pytest.param(nested(EXTRAS_DEPTH_MAX), id="deep"),
        pytest.param(b"\x81\xa1k\xc5\x3f\xf0" + bytes(0x3FF0), id="large"),
    ],
)
async def test_extras_that_a_retry_does_not_change_keep_every_byte(raw, running_worker, extras):
    await running_worker(fails, delayed_enabled=False)
    await put(raw, JOB + extras)

    (body,) = await delayed(raw)
    assert decode_envelope(body).attempt == 1
    assert extras_of(body) == extras


@pytest.mark.parametrize(
    "extras",
    [
        pytest.param(b"\xc1", id="no MessagePack"),
        pytest.param(b"\x93\x01\x02\x03", id="no map"),
        pytest.param(b"\x81\x01\x02", id="no text as a key"),
        pytest.param(b"\x81\xa1k\x01\x01", id="two values"),
    ],
)
async def test_what_follows_and_is_no_map_of_extras_is_left_behind(raw, running_worker, extras):
    await running_worker(fails, delayed_enabled=False)
    await put(raw, JOB + extras)

    (body,) = await delayed(raw)
    assert extras_of(body) == b""


async def test_a_job_that_nobody_has_a_handler_for_gains_two_keys_and_keeps_the_other_bytes(
    raw, running_worker
):
    await running_worker({"other": fails}, delayed_enabled=False)
    await put(raw, JOB + STRANGE)

    (body,) = await delayed(raw)
    # The head counts two more; all that follows is as it was, and then the new keys.
    head, kept = b"\x87", STRANGE[3:]
    assert extras_of(body).startswith(head + kept + b"\xb0unknown_since_ms")
    assert b"\xb0unknown_until_ms" in extras_of(body)


async def test_the_time_a_job_was_first_unknown_stays_where_it_was(raw, running_worker):
    since = b"\xb0unknown_since_ms\xcf\x00\x00\x01\x8b\xcf\xe5\x68\x00"
    await running_worker({"other": fails}, delayed_enabled=False, retry=None)
    await put(raw, JOB + b"\x83\xa1a\x01" + since + b"\xa1b\x02")

    (entry,) = await eventually(raw.dlq)  # that was years ago
    assert entry[b"reason"] == b"unknown_name"
    assert entry[b"d"] == JOB + b"\x83\xa1a\x01" + since + b"\xa1b\x02"


async def test_a_replay_changes_the_generation_and_no_other_byte(queue, raw, running_worker):
    before, after = b"\xa1a\xcd\x00\x07", b"\xa1b\xc7\x03\x05xyz"
    gone = b"\xb0unknown_since_ms\x07"
    extras = b"\xde\x00\x04" + before + b"\xaageneration\x01" + gone + after
    running = await running_worker(fails, max_attempts=1)
    await put(raw, JOB + extras)
    await eventually(raw.dlq)
    await running.stop()

    assert await queue.replay_dlq() == 1

    ((_, fields),) = await raw.entries(raw.keys.stream)
    assert extras_of(fields[b"d"]) == b"\x83" + before + b"\xaageneration\x02" + after


class NoRule:
    """What no encoder knows."""

    max_attempts = 5
    backoff = None


async def test_a_retry_that_cannot_be_encoded_is_buried_and_the_others_are_retried(
    queue, raw, running_worker
):
    async def handler(job):
        if job.name == "culprit":
            job.delivery.retry = NoRule()
        raise ValueError("no")

    running = await running_worker(handler, max_attempts=2, delayed_enabled=False)
    await put(raw, JOB, name="culprit")
    await queue.add_bulk([{"name": "n", "data": at} for at in range(FOLLOWERS)])

    await eventually(lambda: running.worker.health().retried == FOLLOWERS, what="their retries")
    (entry,) = await eventually(raw.dlq)
    assert (entry[b"n"], entry[b"d"], entry[b"reason"]) == (b"culprit", JOB, b"unrecoverable")
    assert b"could not be encoded" in entry[b"error"]
    await eventually(lambda: running.worker.health().unconfirmed == 0)
    assert running.worker.health().is_ok


@pytest.mark.parametrize("store_results", [False, True])
async def test_a_burial_that_cannot_be_encoded_is_tried_without_its_words(
    queue, raw, running_worker, store_results
):
    async def handler(job):
        if job.data == "culprit":
            job.delivery.name = b"no text"
        raise ValueError("no")

    quiet = {"events": "off", "history": False, "store_results": store_results}
    running = await running_worker(handler, max_attempts=1, **quiet)
    culprit = await queue.add("n", "culprit")
    await queue.add_bulk([{"name": "n", "data": at} for at in range(FOLLOWERS)])

    async def all_are_buried():
        return len(await raw.dlq()) == FOLLOWERS + 1

    await eventually(all_are_buried)
    (nameless,) = [entry for entry in await raw.dlq() if not entry.get(b"n")]
    assert decode_envelope(nameless[b"d"]).id == culprit.id
    assert nameless[b"reason"] == b"retries_exhausted"
    await eventually(lambda: running.worker.health().unconfirmed == 0)


async def test_what_cannot_even_be_buried_is_let_go_and_delivered_again(queue, raw, running_worker):
    async def handler(job):
        if job.data == "culprit":
            job.delivery.envelope = None
        raise ValueError("no")

    running = await running_worker(handler, max_attempts=1, claim_min_idle_ms=300)
    culprit = await queue.add("n", "culprit")
    await queue.add_bulk([{"name": "n", "data": at} for at in range(FOLLOWERS)])

    async def all_are_buried():
        return len(await raw.dlq()) == FOLLOWERS + 1

    await eventually(all_are_buried)
    (again,) = [entry for entry in await raw.dlq() if entry[b"reason"] == b"crash_loop"]
    assert decode_envelope(again[b"d"]).id == culprit.id
    assert running.worker.health().is_ok
