"""One run of a worker: handlers opened, jobs let in, and everything given back at the end."""

from __future__ import annotations

import time
from dataclasses import replace

from chasquimq.assembly import Assembly
from chasquimq.engine.pipeline import Pipeline
from chasquimq.errors import StoreError
from chasquimq.handlers import HandlerSet
from chasquimq.health import Health, health_of
from chasquimq.store.inspecting import InspectorStore
from chasquimq.worker.stopping import Stopping

# What hooks of the last jobs have when the deadline has passed.
_HOOKS_S_MIN = 0.1


class Shift:
    """From the first connection to the last goodbye."""

    def __init__(self, assembly: Assembly, handlers: HandlerSet, stopping: Stopping) -> None:
        self._assembly = assembly
        self._hooks = assembly.hooks
        self._handlers = handlers
        self._stopping = stopping
        self._last_health = Health()
        self.pipeline: Pipeline | None = None

    async def run(self, worker: object) -> None:
        """Run until asked to stop; hooks are handed the worker."""
        pipeline = self.pipeline = await self._begin()
        try:
            await self._hooks.startup(worker)
            pipeline.read()
            await self._stopping.wait()
        finally:
            await self._end(pipeline, worker)
            self._last_health = replace(self.health(), is_running=False, is_consuming=False)
            self.pipeline = None
            if pipeline.reporter is not None:
                pipeline.reporter.run_once()

    def health(self) -> Health:
        """How it goes now, or how it went when it ended."""
        if self.pipeline is None:
            return self._last_health
        return health_of(self.pipeline, is_stopping=self._stopping.is_asked)

    async def is_idle(self, delayed_within_ms: int) -> bool:
        """Whether nothing is ready or running, and nothing delayed falls due that soon."""
        pipeline = self.pipeline
        if pipeline is None or pipeline.holdings.held_count:
            return False
        inspector = InspectorStore(
            self._assembly.queue, pipeline.store.writes, self._assembly.group
        )
        try:
            return await _is_idle(inspector, delayed_within_ms)
        except StoreError:
            return False  # who cannot look cannot tell

    async def _begin(self) -> Pipeline:
        try:
            execute = await self._handlers.open()
            handlers = self._handlers
            pipeline = self._assembly.pipeline(execute, handlers.running_max, handlers.policy)
            await pipeline.start()
        except BaseException:
            await self._handlers.close(0)
            raise
        return pipeline

    async def _end(self, pipeline: Pipeline, worker: object) -> None:
        # A cancelled run has no time to wait for handlers, but still gives back what it holds.
        deadline_s = self._stopping.deadline()
        self._handlers.hurry()
        try:
            await pipeline.stop(deadline_s)
            hooks_s = time.monotonic() + _HOOKS_S_MIN
            await self._hooks.calls.settle(lambda: max(deadline_s(), hooks_s))
            # Only what has begun to read was started up, and needs to be shut down.
            if pipeline.is_reading:
                await self._hooks.shutdown(worker)
        finally:
            if self._assembly.spans is not None:
                self._assembly.spans.close()
            await self._handlers.close(0)


async def _is_idle(inspector: InspectorStore, delayed_within_ms: int) -> bool:
    # Asked before and after: a retry or a promotion may move a job between two looks.
    if await inspector.delayed_due_within(delayed_within_ms):
        return False
    counts = await inspector.counts()
    is_empty = not counts.ready and not counts.running
    return is_empty and not await inspector.delayed_due_within(delayed_within_ms)
