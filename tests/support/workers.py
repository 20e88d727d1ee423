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
