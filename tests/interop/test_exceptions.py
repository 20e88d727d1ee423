"""Every refusal of the original can be caught in ours by the same built-in error."""

from __future__ import annotations

import pytest

from chasquimq import Producer
from interop.programs.refusal_cases import CASES


@pytest.fixture
async def producer(url, queue_name):
    producer = Producer(url, queue_name)
    yield producer
    await producer.shutdown()


@pytest.mark.parametrize("label", CASES)
async def test_a_refusal_is_caught_by_the_error_that_callers_know(label, queue, producer):
    expected, call = CASES[label]

    with pytest.raises(expected):
        await call(queue, producer)


async def test_a_refused_call_writes_nothing(queue, producer, raw):
    for expected, call in CASES.values():
        with pytest.raises(expected):
            await call(queue, producer)

    keys = (raw.keys.delayed, raw.keys.repeat, raw.keys.dlq)
    assert await raw("EXISTS", *keys) == 0
    assert await raw.entries(raw.keys.stream) == []
