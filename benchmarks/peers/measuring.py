"""What the programs of all peers share: the clock, the count of runs, the one line of answer.

Only the standard library, because every peer has an environment of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

Plan = dict[str, Any]
Answer = dict[str, Any]

RESULTS_WAIT_S = 5.0
POLL_S = 0.01
STDOUT, STDERR = 1, 2


class Once(Exception):
    """What a job fails with, where every job has to fail once."""


class Runs:
    """Counts the runs of a worker's handler, from the first one's start to the last one's end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.fails_once: bool = plan["work"]["fails_once"]
        self._result: str | None = plan["work"]["result"]
        self._wanted: int = plan["jobs"]
        # Counts without a lock, whichever thread runs the handler.
        self._numbers = itertools.count(1)
        self._began: Answer | None = None
        self._answer: Answer = {}
        self._ended = threading.Event()

    def ran(self, payload: dict[str, str], *, is_retry: bool = False) -> str | None:
        """What every handler does: look at its payload, fail once where asked to, count."""
        if self._began is None:
            self._began = mark()
        if self.fails_once and not is_retry:
            raise Once
        _ = payload["k0"]
        if next(self._numbers) == self._wanted:
            self._answer = spent(self._began) | {"payload_digest": digest(payload)}
            self._ended.set()
        return self._result

    def answer_when_done(self, count_keys: Callable[[], int], **facts: Any) -> None:
        """Answer from a thread of its own and end the process: workers run until they are ended."""

        def wait_and_answer() -> None:
            self._ended.wait()
            if self._result is not None:
                until_kept(count_keys, self._wanted)
            reply(self._plan, self._answer | {"jobs": self._wanted} | facts)

        threading.Thread(target=wait_and_answer, name="answer", daemon=True).start()


async def time_adds(plan: Plan, call: Callable[[], Awaitable[Any]]) -> Answer:
    """Callers side by side, each waiting for its own answer; one call each to warm up."""

    async def repeat(count: int) -> None:
        for _ in range(count):
            await call()

    callers = plan["in_flight"]
    each = calls_each(plan)
    await asyncio.gather(*(repeat(1) for _ in range(callers)))
    began = mark()
    await asyncio.gather(*(repeat(each) for _ in range(callers)))
    return added(plan, spent(began), each)


def time_blocking_adds(plan: Plan, call: Callable[[], Any]) -> Answer:
    """The same for a client that blocks: every caller has a thread."""

    def repeat(count: int) -> None:
        for _ in range(count):
            call()

    def all_of(count: int) -> None:
        callers = [threading.Thread(target=repeat, args=(count,)) for _ in range(plan["in_flight"])]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    run = repeat if plan["in_flight"] == 1 else all_of
    run(1)
    began = mark()
    run(calls_each(plan))
    return added(plan, spent(began), calls_each(plan))


def calls_each(plan: Plan) -> int:
    return max(1, plan["jobs"] // (plan["batch"] * plan["in_flight"]))


def added(plan: Plan, took: Answer, each: int) -> Answer:
    jobs = each * plan["in_flight"] * plan["batch"]
    return took | {"jobs": jobs, "payload_digest": digest(plan["payload"])}


def mark() -> Answer:
    return {"began_s": time.perf_counter(), "began_cpu_s": time.process_time()}


def spent(began: Answer) -> Answer:
    """Time and processor time since the mark, threads included."""
    return {
        "began_s": began["began_s"],
        "seconds": time.perf_counter() - began["began_s"],
        "cpu_seconds": time.process_time() - began["began_cpu_s"],
    }


def digest(payload: dict[str, str]) -> str:
    """A short name of a payload; equal payloads have equal names in every program."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def until_kept(count_keys: Callable[[], int], wanted: int) -> None:
    """Results are written after the handler; a side that keeps too few must not count."""
    until_s = time.monotonic() + RESULTS_WAIT_S
    while count_keys() < wanted:
        if time.monotonic() > until_s:
            os.write(STDERR, f"{wanted} results must be kept, found {count_keys()} keys\n".encode())
            os._exit(1)
        time.sleep(POLL_S)


def reply(plan: Plan, answer: Answer) -> NoReturn:
    """Print the one line that counts, and end: nothing after it is measured."""
    known = {"concurrency": plan["concurrency"], "loop": plan["loop"]}
    # Past sys.stdout, which some workers turn into a log.
    os.write(STDOUT, f"{json.dumps(known | answer)}\n".encode())
    os._exit(0)
