"""The paths of a job, traced on a real server, lead through few files."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from chasquimq import Queue, RetrySettings, UnrecoverableError, Worker
from chasquimq.cli.app import main
from support.called import CallLog, Step, files_to_open, hops
from support.ceilings import check
from support.waiting import eventually

pytestmark = pytest.mark.takes_turns

JOBS = 18
# The first jobs meet what is read, made or remembered once.
WARM_UP = 3
LEASE_MS = 600
# What a job needs; events and history are told of it afterwards, by paths of their own.
PLAIN = {"events": "off", "history": False}
NEVER = RetrySettings(initial_backoff_ms=3_600_000, max_backoff_ms=3_600_000)
JOB_NAME = "job-that-is-traced"


async def completes(job) -> None:
    pass


async def fails(job) -> None:
    raise ValueError("no route")


async def dies(job) -> None:
    raise UnrecoverableError("no such card")


@pytest.fixture
async def traced_jobs(queue, running_worker, raw):
    """Traces jobs one at a time: the files that each leads through, without loops of the clock."""

    async def trace(handler) -> set[str]:
        starts: list[int] = []

        async def noted(job) -> None:
            starts.append(len(log.steps))
            await handler(job)

        async def run_one() -> set[str]:
            begun, nth = len(log.steps), len(starts)
            entry_id = await raw("XADD", raw.keys.stream, "*", *fields)
            await eventually(lambda: len(starts) > nth, what="the job started")
            await eventually(lambda: not_pending(raw), what="the job settled")
            return files_to_open(from_entry_to_ack(log, begun, starts[nth], entry_id))

        fields = await fields_of_a_job(queue, raw)
        with CallLog() as log:
            running = await running_worker(noted, retry=NEVER, **PLAIN)
            paths = [await run_one() for _ in range(JOBS)]
            await running.stop()
        return set.intersection(*paths[WARM_UP:])

    return trace


async def fields_of_a_job(queue, raw) -> list[bytes]:
    await queue.add(JOB_NAME, {"to": 1})
    ((_, fields),) = await raw("XRANGE", raw.keys.stream, "-", "+")
    await raw("DEL", raw.keys.stream)
    return fields


async def not_pending(raw) -> bool:
    return not await raw.pending()


def from_entry_to_ack(log: CallLog, begun: int, started: int, entry_id: bytes) -> list[Step]:
    """From the bytes that brought the entry to the first after the handler that name it."""
    here = threading.get_ident()
    before = [step for step in log.steps[begun:started] if step.thread_id == here]
    after = log.of_thread(here, since=started)
    came = max(at for at, step in enumerate(before) if JOB_NAME.encode() in step.data)
    acked = next(at for at, one in enumerate(after) if one.is_write and entry_id in one.data)
    return before[came:] + after[:acked]


async def lease_steps(queue, running_worker, raw) -> list[Step]:
    """What the thread of leases does from one renewal of a job to the next."""
    is_released = asyncio.Event()

    async def waits(job) -> None:
        await is_released.wait()

    await queue.add(JOB_NAME, {"to": 1})
    with CallLog() as log:
        running = await running_worker(waits, claim_min_idle_ms=LEASE_MS, **PLAIN)
        await renewed(raw)
        begun = len(log.steps)
        await renewed(raw)
        (lease_id,) = [one.ident for one in threading.enumerate() if one.name == "chasqui-lease"]
        is_released.set()
        await running.stop()
    return log.of_thread(lease_id, since=begun)


async def renewed(raw) -> None:
    """Wait until what is pending is younger than it was."""
    idle_ms: list[int] = []

    async def is_younger() -> bool:
        idle_ms.extend(pending[2] for pending in await raw.pending())
        return any(later < earlier for earlier, later in pairwise(idle_ms))

    await eventually(is_younger, what="a lease renewed")


async def test_an_add_reaches_the_wire_through_few_files(queue):
    await queue.add("mail", {"to": 1})

    with CallLog() as log:
        await queue.add("mail", {"to": 1})

    written = next(at for at, step in enumerate(log.steps) if step.is_write)
    check("files of the path add", files_to_open(log.steps[:written]))
    check("hops of the path add", hops(log.steps[written]))


async def test_a_job_leads_through_few_files(traced_jobs):
    check("files of the path run", await traced_jobs(completes))


async def test_failures_and_leases_lead_through_few_files(
    traced_jobs, queue, running_worker, raw, capsys
):
    files = [await traced_jobs(handler) for handler in (completes, fails, dies)]
    files.append(files_to_open(await lease_steps(queue, running_worker, raw)))

    capsys.readouterr()  # the log of the failures
    check("files of the path run, fail and renew", set().union(*files))


def test_a_replay_leads_through_few_files(url, queue_name, capsys):
    async def bury() -> None:
        async with Queue(queue_name, redis_url=url) as queue:
            await queue.add("mail", {"to": 1})
        await Worker(queue_name, dies, redis_url=url).run_until_idle()

    asyncio.run(bury())

    with CallLog() as log:
        exit_code = main(["dlq", "replay", queue_name, "--yes", "--redis-url", url])

    said = capsys.readouterr()
    assert exit_code == 0, said.err
    assert log.dials > 0, "connections must be opened by tasks named chasqui-dial-*"
    check("files of the path dlq replay", files_to_open(log.steps))
