"""A plan of fires as calls of the fire script, none of them too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from chasquimq.wire.job_id import stable_job_id

if TYPE_CHECKING:
    from chasquimq.model.schedule import Plan
    from chasquimq.store.connection import Part
    from chasquimq.store.due_spec import DueSpec
    from chasquimq.wire.keys import QueueKeys

Call = tuple[list[str], list["Part"]]

# A call of this many keeps the server from everyone else for about three milliseconds.
FIRES_PER_CALL_MAX = 500
CALLS_PER_WRITE_MAX = 256
BYTES_PER_WRITE_MAX = 1024 * 1024
# Markers guard against a score or a clock that is put back: for an hour, but with no more
# than about a thousand of them for each spec, so that fast specs do not fill the memory.
MARKER_MS_MIN, MARKER_MS_MAX = 60_000, 3_600_000
MARKERS_MAX = 1_000
# What an envelope holds besides its payload: id, times and a retry of its own.
_ENVELOPE_BYTES = 128


class FireSpeller:
    """Spells the fires of one queue."""

    def __init__(self, keys: QueueKeys) -> None:
        self._keys = keys
        # Two queues may hold the same spec, and job ids end up in idempotency keys.
        self._seed = keys.queue.encode() + b"\0"

    def writes(self, plans: Sequence[tuple[DueSpec, Plan]], now_ms: int) -> Iterator[list[Call]]:
        """The calls of many plans, in order, as many at a time as may leave together."""
        calls: list[Call] = []
        size = 0
        for spec, plan in plans:
            for call in self.calls(spec, plan, now_ms):
                calls.append(call)
                size += sum(len(arg) for arg in call[1] if isinstance(arg, bytes))
                if size >= BYTES_PER_WRITE_MAX or len(calls) == CALLS_PER_WRITE_MAX:
                    yield calls
                    calls, size = [], 0
        if calls:
            yield calls

    def calls(self, spec: DueSpec, plan: Plan, now_ms: int) -> Iterator[Call]:
        """One plan; each call expects the window that the one before it armed."""
        step = _fires_per_call(spec)
        marker_ms = _marker_ms(plan)
        expected: Part = spec.score
        for at in range(0, max(1, len(plan.fires)), step):
            is_last = at + step >= len(plan.fires)
            next_ms = (plan.next_ms or 0) if is_last else plan.fires[at + step]
            keys, jobs = self._jobs(spec, plan.fires[at : at + step], now_ms)
            limits = (spec.stored.spec.limit or 0, spec.end_before_ms or 0)
            name = spec.stored.spec.job_name
            yield keys, [spec.key, expected, next_ms, *limits, marker_ms, name, *jobs]
            expected = next_ms

    def _jobs(
        self, spec: DueSpec, windows: Sequence[int], now_ms: int
    ) -> tuple[list[str], list[Part]]:
        seed = self._seed + spec.key.encode()
        keys = [self._keys.stream, self._keys.repeat, self._keys.repeat_spec(spec.key)]
        args: list[Part] = []
        for due_ms in windows:
            job_id = stable_job_id(seed, due_ms)
            keys.append(self._keys.uniq(job_id))
            args += (due_ms, spec.stored.envelope(job_id, now_ms))
        return keys, args


def _fires_per_call(spec: DueSpec) -> int:
    size = len(spec.stored.spec.payload) + _ENVELOPE_BYTES
    return max(1, min(FIRES_PER_CALL_MAX, BYTES_PER_WRITE_MAX // size))


def _marker_ms(plan: Plan) -> int:
    if plan.next_ms is None or not plan.fires:
        return MARKER_MS_MAX
    pace_ms = plan.next_ms - plan.fires[-1]
    return max(MARKER_MS_MIN, min(MARKER_MS_MAX, pace_ms * MARKERS_MAX))
