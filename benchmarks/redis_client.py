"""Measures redis-py by itself: concurrent XADDs on one client, as code without a queue would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.timing import Stretch, time_calls

if TYPE_CHECKING:
    from benchmarks.scenario import Plan

# As long as an envelope of ours with the same payload.
_ENVELOPE = b"\xc4" * 140


async def add(plan: Plan) -> Stretch:
    """Add entries of the same size, nothing encoded, each in a command of its own."""
    from redis.asyncio import Redis

    client = Redis.from_url(plan.url)  # pyright: ignore[reportUnknownMemberType]  half typed
    fields: dict[Any, Any] = {"d": _ENVELOPE, "n": plan.job_name}
    stretch = await time_calls(lambda: client.xadd(plan.stream, fields), plan)
    await client.aclose()
    return stretch
