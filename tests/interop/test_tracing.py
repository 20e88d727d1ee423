"""Traced jobs and the original: it runs them, and what it adds is run and traced here."""

from __future__ import annotations

import asyncio
import subprocess
import uuid

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from chasquimq import Queue, Worker
from support.spans import traced_to
from support.waiting import eventually

ADD = """
import asyncio, sys
from chasquimq import Queue

async def main(url, name):
    queue = Queue(name, redis_url=url)
    await queue.add("mail", {"to": "ada"})
    print("added", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
RUN = """
import asyncio, sys
from chasquimq import Worker

async def main(url, name, count):
    seen = []

    async def handler(job):
        seen.append(job.id)
        print(job.name, job.data, flush=True)
        if len(seen) == int(count):
            await worker.close()

    worker = Worker(name, handler, redis_url=url, read_block_ms=100)
    await worker.run()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans):
    return traced_to(spans)


@pytest.fixture
def queue_name():
    return f"q-{uuid.uuid4().hex[:12]}"


async def theirs(python, program, *args) -> str:
    """What a program of the original prints; how it ends is no matter, for it may crash then."""

    def run():
        command = [python, "-c", program, *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=40)

    return (await asyncio.to_thread(run)).stdout


async def test_the_original_runs_a_traced_job(original_python, shared_url, queue_name, tracing):
    async with Queue(queue_name, redis_url=shared_url, tracing=tracing) as queue:
        await queue.add("mail", 1)
        await queue.add("mail", 2, delay_ms=50, timeout_ms=5_000)

    said = await theirs(original_python, RUN, shared_url, queue_name, "2")

    assert said.splitlines() == ["mail 1", "mail 2"]


async def test_a_job_of_the_original_starts_a_trace_here(
    original_python, shared_url, queue_name, tracing, spans
):
    assert await theirs(original_python, ADD, shared_url, queue_name) == "added\n"
    done = []

    async def handler(job):
        done.append(job.data)

    async with Worker(queue_name, handler, redis_url=shared_url, tracing=tracing) as worker:
        running = asyncio.create_task(worker.run())
        await eventually(spans.get_finished_spans)
        await worker.close()
        await running

    (run,) = spans.get_finished_spans()
    assert (run.kind, run.parent, done) == (SpanKind.CONSUMER, None, [{"to": "ada"}])
