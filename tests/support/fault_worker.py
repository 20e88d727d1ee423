"""A worker in a process of its own, to be signalled, stopped and killed by tests.

`python fault_worker.py '{"url": …, "queue": …, "journal": …, "handler": …, "options": {…}}'`
prints `ready` when it consumes, stops at SIGTERM or SIGINT, and leaves by `os._exit`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from chasquimq import Job, UnrecoverableError, Worker, current_job
from chasquimq.errors import StoreError
from chasquimq.settings import AbilitySettings
from support.journal import ALIVE, EXIT, STALL, Journal
from support.noting import note_lost_lease, noting
from support.waiting import eventually

journal: Journal
_LOOK_S, _ALIVE_S, _STALL_S = 0.05, 0.2, 0.3
_PARENT_DEATH_SIGNAL = 1


def noted(handler: Callable[[Job], Any]) -> Callable[[Job], Any]:
    """The handler with its starts and ends in the journal."""
    return noting(handler, lambda: journal)


async def noop(job: Job) -> None:
    return


async def soaks(job: Job) -> None:
    """Ends as its job says, with nothing in the journal: there are millions of it."""
    if job.data == "fails once" and job.attempt == 0:
        raise ValueError("not yet")


@noted
async def brief(job: Job) -> None:
    await asyncio.sleep(random.uniform(0.005, 0.020))


@noted
async def fated(job: Job) -> None:
    """Ends as its job says."""
    await asyncio.sleep(0.5 if job.data == "lingers" else random.uniform(0.001, 0.010))
    if job.data == "fails once" and job.attempt == 0:
        raise ValueError("not yet")
    if job.data == "gives up":
        raise UnrecoverableError("never")


@noted
async def wait(job: Job) -> None:
    await asyncio.sleep(job.data)


@noted
async def stubborn(job: Job) -> None:
    """Works on for as long as it wants, whoever cancels it."""
    until_s = time.monotonic() + job.data
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left_s)
        except asyncio.CancelledError:
            journal.note("ignored_cancel", job.id, job.attempt)


@noted
def wait_in_thread(job: Job) -> None:
    time.sleep(job.data)


@noted
async def spin(job: Job) -> None:
    """Keeps the event loop from doing anything else."""
    spin_for(job.data)


@noted
def spin_in_thread(job: Job) -> None:
    spin_for(job.data)


@noted
async def crash(job: Job) -> None:
    os._exit(9)


@noted
async def crash_if_told(job: Job) -> None:
    if job.data == "crash":
        os._exit(9)


@noted
async def dies_if_told(job: Job) -> None:
    """Works for a while, as jobs do, and then may take its whole process along."""
    await asyncio.sleep(random.uniform(0.010, 0.060))
    if job.data == "dies":
        os.kill(os.getpid(), signal.SIGKILL)


def facts(job: Job) -> list[Any]:
    """What a handler in a child sees of its job, and where it runs."""
    this = current_job()
    return [os.getpid(), job.data, job.attempt, job.run_number, this is not None and this.id]


def fail(job: Job) -> None:
    raise ValueError(job.data)


def sleep(job: Job) -> None:
    time.sleep(job.data)


def read(job: Job) -> Any:
    return job.data


def spin_for(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def main() -> None:
    global journal  # noqa: PLW0603  one journal a process
    settings = json.loads(sys.argv[1])
    journal = Journal(settings["journal"])
    die_with_parent()
    watch_stalls()
    worker_run(settings)


def worker_run(settings: dict[str, Any]) -> None:
    async def run() -> None:
        worker = Worker(
            settings["queue"], globals()[settings["handler"]], redis_url=settings["url"],
            on_lease_lost=note_lost_lease(lambda: journal), **options_of(settings),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.request_stop)
        told = asyncio.ensure_future(tell_when_ready(worker))
        try:
            await worker.run()
        except StoreError as error:
            # The first dial is tried once; whoever started us sees that we left.
            print(f"no worker: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        told.cancel()
        journal.note(EXIT, extra=counters_of(worker))
        os._exit(0)

    asyncio.run(run())


def options_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Options as they come in JSON; abilities by name."""
    options = dict(settings["options"])
    if "abilities" in options:
        options["abilities"] = AbilitySettings(**options["abilities"])
    return options


def counters_of(worker: Worker) -> str:
    """What the worker counted, for the checker to compare with its history."""
    return json.dumps({"worker": worker.consumer_id, **asdict(worker.health())})


def die_with_parent() -> None:
    """A test that is ended in the middle leaves nobody behind, where the system can see to it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def watch_stalls() -> None:
    """Note when this process was let run and when not: no lease and no promise outlasts that."""
    threading.Thread(target=_note_stalls, daemon=True).start()


def _note_stalls() -> None:
    seen_s = noted_s = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        now_s = time.monotonic()
        if now_s - seen_s > _STALL_S:
            journal.note(STALL, extra=int((now_s - seen_s) * 1000))
        if now_s - noted_s > _ALIVE_S:
            journal.note(ALIVE)
            noted_s = now_s
        seen_s = now_s


async def tell_when_ready(worker: Worker) -> None:
    await eventually(lambda: worker.health().is_consuming, within_s=30)
    print("ready", flush=True)


if __name__ == "__main__":
    main()
