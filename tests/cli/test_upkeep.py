"""`chasqui upkeep` promotes and fires where no worker runs, and stops as it is asked to."""

from __future__ import annotations

import json
import signal

import pytest

from chasquimq import Queue, RepeatPattern
from support.waiting import eventually

pytestmark = pytest.mark.takes_turns


async def test_delayed_and_repeatable_jobs_of_all_its_queues_become_ready(
    running, queue, queue_name, url
):
    await queue.add("later", 1, delay_ms=50)
    async with Queue(f"{queue_name}-b", redis_url=url) as other:
        await other.upsert_repeatable_job("tick", 1, repeat=RepeatPattern.every(50), limit=2)

        running("upkeep", queue_name, f"{queue_name}-b")

        await eventually(lambda: _ready(queue, 1), within_s=20)
        await eventually(lambda: _ready(other, 2), within_s=20)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_ends_it_with_its_code(running, queue_name, number, code):
    upkeep = running("upkeep", queue_name, queue_name)
    await upkeep.until_said(f"keeping up queues {queue_name} of ")

    assert await upkeep.ended(number) == code


async def test_the_log_is_json_where_it_is_asked_for(running, queue_name):
    upkeep = running("upkeep", queue_name, "--json")
    await upkeep.until_said("keeping up")
    await upkeep.ended(signal.SIGTERM)

    first = json.loads(upkeep.err.splitlines()[0])
    assert first["message"].startswith(f"keeping up queues {queue_name} of ")
    assert first["queues"] == queue_name


async def _ready(queue: Queue, count: int) -> bool:
    return (await queue.counts()).ready == count
