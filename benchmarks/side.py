"""Measures one side once, in its own process: `python -m benchmarks.side SIDE PLAN`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from importlib.metadata import version as version_of
from typing import Any

import msgspec

from benchmarks import limit, ours
from benchmarks.instruments import Recorder, Stretch, time_calls
from benchmarks.peers.arrivals import say_ready
from benchmarks.peers.measuring import digest
from benchmarks.scenario import Figures, Plan
from chasquimq import version

# As long as an envelope of ours with the same payload.
_ENVELOPE = b"\xc4" * 140


def main(side: str, plan: Plan) -> Figures | dict[str, Any]:
    """Measure and answer the figures; a recording run also saves its tape."""
    if plan.processes > 1:
        say_ready()
        sys.stdin.readline()
    if plan.act == "arrive":
        return run_on(plan, ours.arrivals(plan))
    if plan.act == "start":
        return run_on(plan, ours.starts(plan))
    stretch = run_on(plan, _record(plan) if plan.is_recording else _measure(side, plan))
    return Figures(
        jobs=stretch.jobs,
        seconds=stretch.seconds,
        cpu_seconds=stretch.cpu_seconds,
        version=version_of("redis") if side == "redis-py" else version(),
        loop=plan.loop,
        began_s=stretch.began_s,
        concurrency=plan.concurrency,
        payload_digest=digest(plan.payload),
    )


def run_on(plan: Plan, measuring: Coroutine[None, None, Any]) -> Any:
    if plan.loop == "asyncio":
        return asyncio.run(measuring)
    import uvloop

    return uvloop.run(measuring)


def _measure(side: str, plan: Plan) -> Coroutine[None, None, Stretch]:
    match side, plan.act:
        case "ours", "add":
            return ours.add(plan)
        case "ours", "consume":
            return ours.consume(plan)
        case "limit", "add":
            return limit.add(plan)
        case "limit", "consume":
            return limit.consume(plan)
        case "redis-py", "add":
            return add_with_redis_py(plan)
        case _:
            raise SystemExit(f"{side} cannot {plan.act}")


async def _record(plan: Plan) -> Stretch:
    recorder = Recorder()
    measure = ours.add if plan.act == "add" else ours.consume
    stretch = await measure(plan, recorder)
    recorder.tape.save(plan.tape)
    return stretch


async def add_with_redis_py(plan: Plan) -> Stretch:
    """Add entries of the same size on one client, as code without a queue would do."""
    from redis.asyncio import Redis

    client = Redis.from_url(plan.url)  # pyright: ignore[reportUnknownMemberType]  half typed
    fields: dict[Any, Any] = {"d": _ENVELOPE, "n": plan.job_name}
    stretch = await time_calls(lambda: client.xadd(plan.stream, fields), plan)
    await client.aclose()
    return stretch


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[2], type=Plan)
    # The process that started this may be gone by then.
    signal.alarm(wanted.wait_s)
    figures = main(sys.argv[1], wanted)
    sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
