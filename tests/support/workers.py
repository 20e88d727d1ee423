"""Workers that run beside a test and are gone after it."""

from __future__ import annotations

import asyncio

from chasquimq import Worker


class RunningWorker:
    """A worker in a task of its own."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.task = asyncio.create_task(worker.run())

    async def stop(self) -> None:
        await self.worker.close()
        await self.task

    async def until_consuming(self) -> None:
        from support.waiting import eventually

        await eventually(
            lambda: self.task.done() or self.worker.health().is_consuming, what="consuming"
        )
        if self.task.done():
            self.task.result()

    async def cut_short(self) -> None:
        """Stop, and give back what runs."""
        self.worker.request_stop()
        self.worker.request_stop()
        await self.task


class Workers:
    """Starts workers of one queue, and remembers them for the end of the test."""

    def __init__(self, queue_name: str, url: str) -> None:
        self._queue_name = queue_name
        self._url = url
        self.started: list[RunningWorker] = []

    async def start(self, handler, **options) -> RunningWorker:
        """A worker that reads already."""
        worker = Worker(self._queue_name, handler, redis_url=self._url, **options)
        self.started.append(RunningWorker(worker))
        await self.started[-1].until_consuming()
        return self.started[-1]
