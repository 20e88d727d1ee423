"""Turns what handlers come to into moves through the door, and counts what came of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from chasquimq.engine.counters import Counters
from chasquimq.engine.door import DoorLoop
from chasquimq.errors import PayloadTooLarge, WireError
from chasquimq.model.fingerprint import fingerprint
from chasquimq.model.outcome import Burying, Completing, Door, Retrying
from chasquimq.model.verdict import (
    Retry,
    RetryPolicy,
    UnknownName,
    describe,
    judge,
    unknown_since_ms,
)

if TYPE_CHECKING:
    from chasquimq.engine.holdings import Holdings
    from chasquimq.model.delivery import Delivery
    from chasquimq.settings import WorkerSettings
    from chasquimq.store.consuming import ConsumerStore

logger = logging.getLogger(__name__)
_MOVES_MAX = 256
Kind = Literal["completed", "failed", "dead"]
# Told after the state change committed, in batches.
Listen = Callable[[Kind, Sequence[Any]], None]


class Outcomes:
    """The acker, the retrier and the burier, and the verdict that chooses between them."""

    def __init__(
        self,
        store: ConsumerStore,
        holdings: Holdings,
        policy: RetryPolicy,
        settings: WorkerSettings,
        *,
        encode: Callable[[Any], bytes],
        listen: Listen | None = None,
    ) -> None:
        self._results = settings.results
        self._encode = encode
        self._listen = listen
        self._holdings = holdings
        self._policy = policy
        self._now_ms: Callable[[], float] = store.clock.now_ms
        self.counters = Counters()
        self.interrupted_counts: list[tuple[bytes, int]] = []
        pass_door = store.complete if settings.results.is_stored else _acking(store)
        self.acker = DoorLoop[Any]("acker", pass_door, self._acked, settings.ack.batch_max)
        self.retrier = DoorLoop[Retrying]("retrier", store.retry, self._retried, _MOVES_MAX)
        self.burier = DoorLoop[Burying]("burier", store.bury, self._buried, _MOVES_MAX)
        self._warned_names: set[str] = set()
        self._put_ack = self.acker.put

    @property
    def doors(self) -> tuple[DoorLoop[Any], ...]:
        return (self.acker, self.retrier, self.burier)

    def completed(self, delivery: Delivery, value: Any) -> None:
        if not self._results.is_stored:
            self._put_ack(delivery)
            return
        try:
            result = None if value is None else self._spell_result(value)
        except WireError as error:
            self.failed(delivery, error)
            return
        self._put_ack(Completing(delivery, result))

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Judge the error and send the job where it belongs."""
        now_ms = self._now_ms()
        verdict = judge(delivery, error, self._policy, random, now_ms)
        failure = describe(error)
        if isinstance(verdict, Retry):
            extras = self._extras_after(delivery, error, now_ms)
            self.retrier.put(
                Retrying(delivery, verdict.after_ms, verdict.spent, extras, failure.text)
            )
            return
        mark = fingerprint(failure.error_type, failure.message)
        self.burier.put(Burying(delivery, verdict.reason, delivery.run_number, failure.text, mark))

    def interrupted(self, delivery: Delivery) -> None:
        """Our own deadline ended it: it was started, so it goes back charged."""
        if delivery.is_unstoppable:
            return
        self.interrupted_counts.append((delivery.entry_id, delivery.earlier + 1))

    def dropped(self, delivery: Delivery) -> None:
        """Somebody else holds it now; it never started here."""
        self._holdings.release([delivery.entry_id])

    def _spell_result(self, value: Any) -> bytes:
        result = self._encode(value)
        if len(result) > self._results.max_bytes:
            raise PayloadTooLarge(len(result), self._results.max_bytes)
        return result

    def _extras_after(
        self, delivery: Delivery, error: BaseException, now_ms: float
    ) -> dict[str, Any] | None:
        if not isinstance(error, UnknownName):
            return delivery.extras
        if delivery.name not in self._warned_names:
            self._warned_names.add(delivery.name)
            logger.warning("no handler has this name", extra={"job_name": delivery.name})
        since_ms = unknown_since_ms(delivery, now_ms)
        return {**(delivery.extras or {}), "unknown_since_ms": since_ms}

    def _acked(self, moves: Sequence[Delivery], doors: Sequence[Door], was_resent: bool) -> None:
        self.counters.completed += self._settle("completed", moves, doors, was_resent)

    def _retried(self, moves: Sequence[Retrying], doors: Sequence[Door], was_resent: bool) -> None:
        done = self._settle("failed", moves, doors, was_resent)
        self.counters.retried += done
        self.counters.failed += done

    def _buried(self, moves: Sequence[Burying], doors: Sequence[Door], was_resent: bool) -> None:
        done = self._settle("dead", moves, doors, was_resent)
        self.counters.buried += done
        self.counters.failed += sum(
            1 for move, door in zip(moves, doors, strict=True)
            if door is Door.DONE and move.error
        )  # fmt: skip

    def _settle(
        self, kind: Kind, moves: Sequence[Any], doors: Sequence[Door], was_resent: bool
    ) -> int:
        self._holdings.release([move.entry_id for move in moves])
        done = doors.count(Door.DONE)
        if self._listen is not None and done:
            self._listen(kind, [m for m, d in zip(moves, doors, strict=True) if d is Door.DONE])
        if done == len(doors):
            return done
        gone = doors.count(Door.GONE)
        if was_resent:
            self.counters.unproven_outcomes += gone
            gone = 0
        self.counters.stale_outcomes += gone + doors.count(Door.NOT_OWNER)
        return done


def _acking(store: ConsumerStore) -> Callable[[Sequence[Delivery]], Awaitable[list[Door]]]:
    return lambda moves: store.ack([move.entry_id for move in moves])
