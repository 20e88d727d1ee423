"""Runs the upkeep of a queue beside its jobs: promotion, repeatable jobs, sweeping, the DLQ alarm."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from chasquimq.engine.promoter import Leadership, Promoter
from chasquimq.engine.supervisor import Ticker
from chasquimq.model.log import get_logger
from chasquimq.model.schedule import FIRES_PER_TICK_MAX, MissedFires, Plan, plan_fires

if TYPE_CHECKING:
    from collections.abc import Callable

    from chasquimq.engine.supervisor import Loop
    from chasquimq.settings import UpkeepSettings
    from chasquimq.store.repeatables import Agenda, BadSpec, DueSpec, FiringStore, Slot
    from chasquimq.store.upkeep import JanitorStore, UpkeepStore
    from chasquimq.telemetry.sink import MetricsSink

logger = get_logger(__name__)


class UpkeepLoops:
    """Runs what a worker does on the side, and an Upkeep as its only work."""

    def __init__(
        self,
        upkeep: UpkeepStore,
        firing: FiringStore,
        janitor: JanitorStore,
        holder: str,
        settings: UpkeepSettings,
        sink: MetricsSink | None = None,
    ) -> None:
        self.promoter = Promoter(upkeep, holder, settings, sink)
        self.scheduler = RepeatableScheduler(
            firing, settings, holder=settings.scheduler_holder, specs_max=settings.fire_max,
            sink=sink,
        )  # fmt: skip
        self.janitor = Janitor(janitor, settings.janitor_ms)
        self._store = upkeep
        self.dlq_alarm = DlqAlarm(upkeep, settings.dlq_len_max or 0)
        self._settings = settings

    @property
    def loops(self) -> list[Loop]:
        """Those that are switched on; sweeping belongs to promotion."""
        loops: list[Loop] = []
        if self._settings.delayed_enabled:
            loops += (self.promoter, self.janitor)
        if self._settings.run_scheduler:
            loops.append(self.scheduler)
        if self._settings.dlq_len_max is not None:
            loops.append(self.dlq_alarm)
        return loops

    def stop(self) -> None:
        for loop in (self.promoter, self.janitor, self.scheduler, self.dlq_alarm):
            loop.stop()

    def watch_idleness(self, can_be_woken: Callable[[], bool]) -> None:
        """Try for a lock less often while this process is one that a leaving leader wakes."""
        self.promoter.leadership.can_be_woken = can_be_woken
        self.scheduler.leadership.can_be_woken = can_be_woken

    def nudge(self) -> None:
        """Look now: a process that led has left."""
        self.promoter.nudge()
        self.scheduler.nudge()

    async def release(self) -> None:
        """Let others lead at once."""
        await self.promoter.release()
        await self.scheduler.release()

    async def close(self) -> None:
        """Close what only these loops use."""
        await self.promoter.close()
        await self._store.close()


SPECS_PER_TICK_MAX = 256
PAUSE_MS_MIN = 20


class RepeatableScheduler:
    """Fires repeatable jobs that are due; one leader at a time.

    The lock only spares work: two schedulers at once would still fire each window once.
    """

    name = "scheduler"

    def __init__(
        self,
        store: FiringStore,
        settings: UpkeepSettings,
        *,
        holder: str | None = None,
        specs_max: int = SPECS_PER_TICK_MAX,
        sink: MetricsSink | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._specs_max = specs_max
        self._ticker = Ticker()
        self.holder = holder or f"s-{uuid4()}"
        self.leadership = Leadership("scheduler", store, self.holder, settings.lock_ttl_s, sink)
        # Whether the last pause ended because a window was expected.
        self._is_expected = False
        self.fired_count = 0
        self.missed_count = 0
        self.quarantined_count = 0

    @property
    def is_leader(self) -> bool:
        return self.leadership.is_held

    def stop(self) -> None:
        self._ticker.stop()

    def nudge(self) -> None:
        """Look now."""
        self._ticker.nudge()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            pause_ms = await self.run_once()
            if pause_ms > 0:
                await self._ticker.pause(pause_ms)

    async def run_once(self) -> float:
        """Fire what has come, if we lead; the answer is how long nothing more will, in ms."""
        if not (self._is_expected and self.leadership.renewal_in_ms):
            lead = await self.leadership.hold()
            if not lead.is_ours:
                return self.leadership.retry_in_ms(lead)
            if lead.due_in_ms > 0:
                return self._pause_ms(lead.due_in_ms)
        began_s = time.monotonic()
        agenda = await self._store.agenda(self._specs_max)
        next_ms = await self._fire_due(agenda)
        if len(agenda.due) == self._specs_max:
            return 0
        spent_ms = (time.monotonic() - began_s) * 1000
        return self._pause_ms(next_ms - agenda.now_ms - spent_ms)

    async def release(self) -> None:
        """Let another lead at once."""
        await self.leadership.release()

    def _pause_ms(self, left_ms: float) -> float:
        tick_ms = self._settings.scheduler_tick_ms
        self._is_expected = left_ms <= tick_ms
        return min(tick_ms, max(PAUSE_MS_MIN, left_ms))

    async def _fire_due(self, agenda: Agenda) -> float:
        next_ms = agenda.next_ms
        missed_before = self.missed_count
        bad: list[BadSpec] = []
        for page in agenda.pages():
            if self._ticker.is_stopped:
                break
            soonest_ms, found_bad = await self._fire_page(page, agenda.now_ms)
            next_ms = min(next_ms, soonest_ms)
            bad += found_bad
        if self.missed_count > missed_before:
            logger.warning(
                "%d fires of repeatable jobs of queue %s were missed while no scheduler ran, and are "
                "skipped",
                self.missed_count - missed_before,
                self._store.queue,
                extra={"missed": self.missed_count - missed_before},
            )
        # Last, so that an error with a bad one delays no good one.
        for one in bad:
            await self._quarantine(one, agenda.now_ms)
        return next_ms

    async def _fire_page(self, page: list[Slot], now_ms: int) -> tuple[float, list[BadSpec]]:
        due, bad = await self._store.read(page)
        plans = [(spec, await self._plan(spec, now_ms)) for spec in due]
        self.fired_count += await self._store.fire(plans, now_ms)
        upcoming = [plan.next_ms for _, plan in plans if plan.next_ms is not None]
        return min(upcoming, default=float("inf")), bad

    async def _plan(self, spec: DueSpec, now_ms: int) -> Plan:
        grace_ms = 2 * self._settings.scheduler_tick_ms
        if spec.due_ms >= now_ms - grace_ms:
            return _within_limit(spec, _plan(spec, now_ms, grace_ms, spec.policy))
        # To catch up with ten thousand windows takes a while, which jobs should not feel.
        plan, missed = await asyncio.to_thread(_plan_late, spec, now_ms, grace_ms)
        self.missed_count += missed
        return plan

    async def _quarantine(self, bad: BadSpec, now_ms: int) -> None:
        if not await self._store.quarantine(bad, now_ms):
            return
        self.quarantined_count += 1
        logger.error(
            "the repeatable job %s of queue %s cannot fire and was quarantined: %s",
            bad.shown_key, self._store.queue, bad.reason,
            extra={"spec_key": bad.shown_key, "reason": bad.reason},
        )  # fmt: skip


def _plan_late(spec: DueSpec, now_ms: int, grace_ms: int) -> tuple[Plan, int]:
    """The plan, and how many windows it skips (counted up to a tick's ceiling)."""
    plan = _within_limit(spec, _plan(spec, now_ms, grace_ms, spec.policy))
    all_of_them = MissedFires.fire_all(FIRES_PER_TICK_MAX)
    every = _within_limit(spec, _plan(spec, now_ms, grace_ms, all_of_them))
    return plan, len(every.fires) - len(plan.fires)


def _plan(spec: DueSpec, now_ms: int, grace_ms: int, policy: MissedFires) -> Plan:
    end_ms = spec.end_before_ms
    return plan_fires(spec.pattern, spec.due_ms, now_ms, policy, grace_ms=grace_ms, end_ms=end_ms)


def _within_limit(spec: DueSpec, plan: Plan) -> Plan:
    return Plan(plan.fires[: spec.fires_left], plan.next_ms)


_IDLE_MS_MIN = 3_600_000


class Janitor:
    """Sweeps once a minute, one worker of the fleet at a time; it need not lead promotion."""

    name = "janitor"

    def __init__(self, store: JanitorStore, pause_ms: int) -> None:
        self._store = store
        self._pause_ms = pause_ms
        self._ticker = Ticker()
        self.ghost_count = 0
        self.reaped_count = 0

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self._ticker.pause(self._pause_ms)
            if not self._ticker.is_stopped and await self._store.take_turn(self._pause_ms):
                await self.run_once()

    async def run_once(self) -> None:
        """Forget ghosts and stale index entries, remove consumers idle for an hour."""
        ghosts = await self._store.sweep_ghosts()
        if ghosts:
            self.ghost_count += ghosts
            logger.warning(
                "%d pending jobs of queue %s had been deleted from its stream by another program",
                ghosts,
                self._store.queue,
                extra={"count": ghosts},
            )
        self.reaped_count += await self._store.reap_consumers(_IDLE_MS_MIN)
        await self._store.sweep_index()


_DLQ_PAUSE_MS = 10_000


class DlqAlarm:
    """Warns once of a long DLQ, and again only after it had been short enough in between."""

    name = "dlq-alarm"

    def __init__(self, store: UpkeepStore, len_max: int, pause_ms: int = _DLQ_PAUSE_MS) -> None:
        self._store = store
        self._len_max = len_max
        self._pause_ms = pause_ms
        self._ticker = Ticker()
        self.is_ringing = False

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(self._pause_ms)

    async def run_once(self) -> None:
        """Look, and warn if the DLQ has become too long since the last look."""
        dead = await self._store.dlq_len()
        was_ringing, self.is_ringing = self.is_ringing, dead > self._len_max
        if self.is_ringing and not was_ringing:
            logger.warning(
                "%d jobs are in the DLQ of queue %s, more than dlq_max_stream_len (%d)",
                dead,
                self._store.queue,
                self._len_max,
                extra={"dead": dead, "dlq_max_stream_len": self._len_max},
            )
