"""Scripts that delay a job ring for a promoter that sleeps longer; whoever may not, adds anyway."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from chasquimq.settings import ConnectionSettings
from chasquimq.store.net import script
from chasquimq.store.net.connect import open_connection
from chasquimq.store.producer.rows import bucket_keys
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.new_job import row_digests

GROUP = "default"
HOUR_MS = 3_600_000


async def schedule(call, raw, deliver, wait_ms):
    keys = raw.keys
    job_id = f"job-{wait_ms}"
    job = (encode_envelope(job_id, b"\x01", 1), "n", "", job_id, wait_ms, "in")
    named = [keys.delayed, keys.dix, keys.stream, keys.token(f"t{wait_ms}")]
    assert await call("schedule", named, 120, 60_000, *job, 0, keys.bell) == [1]


async def retry(call, raw, deliver, wait_ms):
    keys = raw.keys
    (entry_id,) = await deliver("me")
    entry = (entry_id, wait_ms, "job", f"member {wait_ms}")
    named = [keys.stream, keys.delayed, keys.dix]
    assert await call("retry", named, GROUP, "me", *entry, keys.bell) == [1]


async def add_run_rows(call, raw, deliver, wait_ms):
    keys, text = raw.keys, f"{wait_ms}".encode()
    (digest,) = row_digests("r", ["n"], [text])
    row = (encode_envelope(digest.hex(), text, 5), "n", digest, wait_ms)
    named = [keys.stream, keys.token(f"t{wait_ms}"), keys.delayed, keys.dix]
    named += bucket_keys(keys, "r")
    assert await call("add_run_rows", named, 0, 120, 60_000, "i", 0, 0, keys.bell, *row) == b"1"


delays = pytest.mark.parametrize("delay", [schedule, retry, add_run_rows], ids=lambda f: f.__name__)


@delays
async def test_a_job_that_is_due_before_all_others_rings(run, raw, deliver, delay):
    await delay(run, raw, deliver, HOUR_MS)
    first = await raw("LPOP", raw.keys.bell)
    await delay(run, raw, deliver, HOUR_MS // 2)

    assert first == b"1"
    assert await raw("LRANGE", raw.keys.bell, 0, -1) == [b"1"]
    assert 0 < await raw("PTTL", raw.keys.bell) <= 10_000


@delays
async def test_a_job_that_is_due_after_others_does_not_ring(run, raw, deliver, delay):
    await delay(run, raw, deliver, HOUR_MS)
    await raw("DEL", raw.keys.bell)

    await delay(run, raw, deliver, 2 * HOUR_MS)

    assert await raw("EXISTS", raw.keys.bell) == 0


@delays
async def test_rings_that_nobody_hears_take_the_room_of_one(run, raw, deliver, delay):
    for wait_ms in range(10_000, 9_980, -1):
        await delay(run, raw, deliver, wait_ms)

    assert await raw("LLEN", raw.keys.bell) == 1
    assert await raw("ZCARD", raw.keys.delayed) == 20


@delays
async def test_a_bell_of_the_wrong_type_costs_no_job(run, raw, deliver, delay):
    await raw("SET", raw.keys.bell, "no list")

    await delay(run, raw, deliver, HOUR_MS)

    assert await raw("ZCARD", raw.keys.delayed) == 1


@delays
async def test_a_user_who_may_not_ring_delays_all_the_same(raw, url, deliver, delay):
    prefix = raw.keys.stream.removesuffix("stream")
    name = raw.keys.queue
    await raw("ACL", "SETUSER", name, "on", ">pw", f"~{prefix}[^p]*", "+@all")
    parts = urlsplit(url)
    fenced = parts._replace(netloc=f"{name}:pw@{parts.netloc}").geturl()
    connection = await open_connection(ConnectionSettings(url=fenced))

    async def call(script_name, keys, *args):
        return await script.run(connection, script_name, keys, *args)

    await delay(call, raw, deliver, HOUR_MS)
    await connection.close()
    await raw("ACL", "DELUSER", name)

    assert await raw("ZCARD", raw.keys.delayed) == 1
    assert await raw("EXISTS", raw.keys.bell) == 0
