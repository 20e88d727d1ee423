"""Many dead jobs: triage in a fresh process, and a replay that is killed half-way and run again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter

import pytest

from chasquimq.queue.inspector import open_envelope
from chasquimq.store.net.connection import pack
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.payload import encode_payload
from support.waiting import eventually

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
DEAD = 100_000 if IS_BIG else 2_000
COUNTRIES = 10
TRIAGE_S_MAX = 30.0
FILL_AT_ONCE = 1_000
WHERE = "data->>'$.country' = 'C3' and attempt = 3"
REPLAYED = DEAD // COUNTRIES
RUN_S_MAX = 120.0
pytestmark = [pytest.mark.timeout(RUN_S_MAX * 4), pytest.mark.takes_turns]


@pytest.fixture
async def graves(raw):
    """Fill the DLQ with entries as a worker buries them, of four kinds of errors."""
    for start in range(0, DEAD, FILL_AT_ONCE):
        adds = [("XADD", raw.keys.dlq, "*", *buried(start + at)) for at in range(FILL_AT_ONCE)]
        await raw.connection.send(b"".join(map(pack, adds)), FILL_AT_ONCE)


def buried(at: int) -> list[str | bytes]:
    data = encode_payload(
        {"order": at, "country": f"C{at % COUNTRIES}", "to": f"u{at}@example.org"}
    )
    kind = at % 4
    return [
        "d", encode_envelope(f"job-{at}", data, 1_794_000_000_000 + at, 3, None, {}),
        "n", f"mail-{kind}", "source_id", f"{at + 1}-0", "reason", "retries_exhausted",
        "attempt", "3", "error", f"TimeoutError: order {at} waited too long", "fp", f"kind{kind}",
        "failed_at", str(1_794_000_100_000 + at),
    ]  # fmt: skip


async def waiting(raw) -> list[dict]:
    entries = await raw("XRANGE", raw.keys.stream, "-", "+")
    return [open_envelope(fields[1]).data for _, fields in entries]


async def test_triage_counts_all_dead_jobs_in_a_fresh_process(chasqui, queue_name, graves):
    began_s = time.monotonic()
    said = await chasqui("dlq", "triage", queue_name, "--json")
    seconds = time.monotonic() - began_s

    print(f"triage of {DEAD:,} dead jobs: {seconds:.1f} s")
    kinds = {kind["fingerprint"]: kind["jobs"] for kind in said.json["kinds"]}
    assert kinds == {f"kind{kind}": DEAD // 4 for kind in range(4)}
    assert seconds < TRIAGE_S_MAX


async def test_a_replay_that_is_killed_and_run_again_sends_each_chosen_job_once(
    running, queue_name, graves, raw
):
    chosen = ("dlq", "replay", queue_name, "--yes", "--where", WHERE, "--set", "$.sender=post")
    # Paced, so that there is a middle.
    first = running(*chosen, "--max-rate", str(REPLAYED))
    await eventually(
        lambda: raw("XLEN", raw.keys.stream), within_s=RUN_S_MAX, what="a replayed job"
    )
    first.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(first.process.wait, 30)
    before = await raw("XLEN", raw.keys.stream)

    began_s = time.monotonic()
    second = running(*chosen, "--json")
    assert await asyncio.to_thread(second.process.wait, RUN_S_MAX) == 0, second.err
    seconds = time.monotonic() - began_s

    replayed = json.loads(second.out)["replayed"]
    print(f"{before:,} of {REPLAYED:,} before the kill, {replayed:,} in {seconds:.1f} s")
    assert 0 < before < REPLAYED
    assert replayed == REPLAYED - before
    found = await waiting(raw)
    assert Counter(data["order"] for data in found) == dict.fromkeys(range(3, DEAD, COUNTRIES), 1)
    assert {(data["country"], data["sender"]) for data in found} == {("C3", "post")}
    assert await raw("XLEN", raw.keys.dlq) == DEAD - REPLAYED
