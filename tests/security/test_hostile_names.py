"""Names that mean something to a server, a shell or a page reach none of them."""

from __future__ import annotations

import pytest

from chasquimq import Queue, QueueEvents, Worker
from chasquimq.blocking import Queue as BlockingQueue
from chasquimq.errors import SettingsError
from chasquimq.queue.inspector import Inspector
from chasquimq.worker.upkeep import Upkeep

HOSTILE = {
    "closes the tag": "a}b",
    "opens a tag": "a{b}",
    "another queue's stream": "a}:stream",
    "everything": "*",
    "anything": "?",
    "a class": "[ab]",
    "an escape": "a\\b",
    "a command": "a\r\nFLUSHALL\r\n",
    "an end": "a\x00b",
    "a terminal": "a\x1b[2Jb",
    "blank": " ",
    "empty": "",
    "too long": "x" * 129,
    "half a character": "caf\udce9",
    "bytes": b"queue",
    "a number": 7,
    "nothing": None,
}
NOUNS = {
    "Queue": lambda name, url: Queue(name, redis_url=url),
    "blocking Queue": lambda name, url: BlockingQueue(name, redis_url=url),
    "Worker": lambda name, url: Worker(name, print, redis_url=url),
    "Worker's group": lambda name, url: Worker("q", print, redis_url=url, group=name),
    "QueueEvents": lambda name, url: QueueEvents(name, redis_url=url),
    "Upkeep": lambda name, url: Upkeep(name, redis_url=url),
}
# Names that look odd and are only names: each has keys of its own and nobody else's.
HARMLESS = [
    "a:stream",
    "a:b",
    "../../etc",
    "$(id)",
    "<b>",
    "';--",
    "%s",
    "ключ",
    "a.b-c_d",
    "q|x",
    "a\u202eb",
]
JOB_IDS = ["}:stream", "{chasqui:x}:stream", "*", "a\r\nFLUSHALL", "../x", "<b>", "\x1b[2J", "a b"]


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("noun", NOUNS.values(), ids=NOUNS)
def test_a_hostile_name_is_refused_before_anyone_dials(noun, name):
    with pytest.raises(SettingsError):
        noun(name, "redis://127.0.0.1:1")


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
async def test_an_inspector_does_not_look_at_a_hostile_name(url, name):
    async with Inspector(redis_url=url) as inspector:
        with pytest.raises(SettingsError):
            await inspector.snapshot(name)


@pytest.fixture
async def bystander(raw):
    """A key of somebody else, and every key that appears beside it."""
    await raw("SET", f"bystander-{raw.keys.queue}", "1")
    before = set(await raw("KEYS", "*"))

    async def appeared() -> set[bytes]:
        assert await raw("GET", f"bystander-{raw.keys.queue}") == b"1"
        return set(await raw("KEYS", "*")) - before

    return appeared


@pytest.mark.parametrize("name", HARMLESS)
async def test_an_odd_name_has_keys_of_its_own(url, queue_name, bystander, name):
    queue_of_odd_name = f"{queue_name}{name}"
    async with Queue(queue_of_odd_name, redis_url=url) as queue:
        await queue.add("n", 1, job_id="own")
        await queue.add("n", 2, delay_ms=60_000)

    prefix = b"{chasqui:" + queue_of_odd_name.encode() + b"}:"
    found = await bystander()

    assert found
    assert [key for key in found if not key.startswith(prefix)] == []


@pytest.mark.parametrize("job_id", JOB_IDS)
async def test_a_hostile_job_id_stays_inside_its_queue(queue, raw, bystander, job_id):
    job = await queue.add("n", 1, job_id=job_id)
    await queue.add("n", 1, job_id=f"{job_id}2", delay_ms=60_000)
    again = await queue.add("n", 1, job_id=job_id)

    assert (job.is_duplicate, again.is_duplicate) == (False, True)
    assert await queue.cancel_delayed(f"{job_id}2")
    prefix = raw.keys.stream.removesuffix("stream").encode()
    assert [key for key in await bystander() if not key.startswith(prefix)] == []
    assert await raw("XLEN", raw.keys.stream) == 1
