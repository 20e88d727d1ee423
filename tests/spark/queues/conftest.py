"""Writes DataFrames to the test's queue, and looks at what is there without Spark."""

from __future__ import annotations

import pytest

from chasquimq.spark.queues.enqueue import enqueue
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.payload import decode_payload
from chasquimq.wire.stream_entry import read_fields, split_member


@pytest.fixture
def at(url, queue_name) -> dict[str, str]:
    """The options that every read and write needs."""
    return {"chasqui.redis.url": url, "queue": queue_name}


@pytest.fixture
def add(url, queue_name):
    """Write a DataFrame and answer the figures; names matter to few tests."""

    def write(frame, **options):
        if not {"name", "name_column"} & set(options):
            options.setdefault("allow_unnamed", True)
        return enqueue(frame, queue_name, redis_url=url, **options)

    return write


@pytest.fixture
def ready(feed):
    """The jobs in the stream, oldest first: (id, name, value)."""

    def look() -> list[tuple]:
        rows = [
            read_fields(fields) for _, fields in feed.call("XRANGE", feed.keys.stream, "-", "+")
        ]
        return [_told(row.payload, row.name) for row in rows]

    return look


@pytest.fixture
def delayed(feed):
    """The delayed jobs: (id, name, value), and when each is due."""

    def look() -> list[tuple]:
        flat = feed.call("ZRANGE", feed.keys.delayed, 0, -1, "WITHSCORES")
        split = [split_member(member) for member in flat[::2]]
        jobs = [_told(envelope, name) for name, envelope in split]
        return list(zip(jobs, map(int, flat[1::2]), strict=True))

    return look


def _told(envelope: bytes, name: str) -> tuple:
    job = decode_envelope(envelope)
    return job.id, name, decode_payload(job.payload)
