"""One trace from the add to the run, with a tracer provider of your own."""

import asyncio
import os

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chasquimq import Job, Queue, Tracing, Worker
from chasquimq.server import SessionServer

QUEUE = "example-tracing"


async def greet(job: Job) -> None: ...


async def main(url: str) -> None:
    # region provider
    exporter = InMemorySpanExporter()  # yours would send spans to a collector
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)
    # endregion

    # region nouns
    async with Queue(QUEUE, redis_url=url, tracing=tracing) as queue:
        await queue.add("greet", {"name": "Ada"})
    await Worker(QUEUE, greet, redis_url=url, tracing=tracing).run_until_idle()
    # endregion

    added, executed = exporter.get_finished_spans()
    print(added.name)
    print(f"{executed.name}: {executed.attributes['chasquimq.job.outcome']}")
    print(f"one trace: {added.context.trace_id == executed.context.trace_id}")


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
