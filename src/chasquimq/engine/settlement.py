"""Running totals of a worker, for health and for the curious."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from chasquimq.engine.failure_log import FailureLog, UnknownNameLog
from chasquimq.engine.tracebacks import Redaction, trace_of, traceback_text
from chasquimq.errors import PayloadTooLarge, RetryLater, ScriptFailed, ServerRefused, StoreError
from chasquimq.model.delivery import Delivery, DlqReason, RejectedEntry
from chasquimq.model.log import get_logger
from chasquimq.model.retry import (
    Bury,
    Burying,
    Completing,
    Failure,
    Retry,
    Retrying,
    RetryPolicy,
    SettleResult,
    UnknownName,
    describe,
    handler_found,
    handler_missing,
    is_at_once,
    judge,
)
from chasquimq.store.consumer.settle import PartlySettled

if TYPE_CHECKING:
    from chasquimq.engine.in_flight import InFlight
    from chasquimq.engine.listeners import Listener
    from chasquimq.settings import WorkerSettings
    from chasquimq.store.consumer.store import ConsumerStore


@dataclass(slots=True)
class Counters:
    """Each attempt is counted once, when its outcome is known."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    buried: int = 0
    handed_back: int = 0
    # An outcome of ours that somebody else's outcome preceded.
    stale_outcomes: int = 0
    # The door said "gone" to a second send: the first one may have done it.
    unproven_outcomes: int = 0
    leases_lost: int = 0


class _Move(Protocol):
    @property
    def entry_id(self) -> bytes: ...


Move = TypeVar("Move", bound=_Move)
Send = Callable[[Sequence[Move]], Awaitable[list[SettleResult]]]
Settle = Callable[[Sequence[Move], Sequence[SettleResult], bool], None]
Reject = Callable[[Move, Exception], None]
# So many refusals in a row, and nothing that passed: it is no matter of single moves.
_REFUSALS_MAX = 8


class SettleLoop(Generic[Move]):
    """A group commit: what gathers while one batch is under way leaves with the next."""

    def __init__(
        self,
        name: str,
        send: Send[Move],
        settle: Settle[Move],
        batch_max: int,
        reject: Reject[Move],
    ) -> None:
        """`reject` takes a move that cannot be sent, though others can."""
        self.name = name
        self._send = send
        self._settle = settle
        self._reject = reject
        self._batch_max = batch_max
        self._ready: deque[Move] = deque()
        self._under_way: list[Move] = []
        # A batch that was sent once may have passed although nobody heard the answer.
        self._was_sent = False
        self._is_stopping = False
        self._wake = asyncio.Event()
        self._is_awake = False

    @property
    def is_empty(self) -> bool:
        return not self._ready and not self._under_way

    @property
    def waiting_count(self) -> int:
        return len(self._ready) + len(self._under_way)

    def put(self, move: Move) -> None:
        """Hand over a finished attempt; it leaves at the end of this loop tick or right after."""
        self._ready.append(move)
        if not self._is_awake:
            self._is_awake = True
            self._wake.set()

    def put_first(self, move: Move, _value: object) -> None:
        """The same for callers that also bring a value nobody keeps."""
        self._ready.append(move)
        if not self._is_awake:
            self._is_awake = True
            self._wake.set()

    def stop(self) -> None:
        """End `run` as soon as nothing is left."""
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        while not (self._is_stopping and self.is_empty):
            await self._wake.wait()
            await self.run_once()

    async def run_once(self) -> None:
        """Send what is ready; a batch that failed before goes first."""
        while self._ready or self._under_way:
            if not self._under_way:
                self._under_way = self._take()
            try:
                doors = await self._pass(self._under_way)
            except Exception as error:
                if not _is_about_a_move(error):
                    raise
                await self._pass_singly()
                continue
            moves, self._under_way = self._under_way, []
            was_sent, self._was_sent = self._was_sent, False
            self._settle(moves, doors, was_sent)
        if not self._is_stopping:
            self._is_awake = False
            self._wake.clear()

    def _take(self) -> list[Move]:
        if len(self._ready) <= self._batch_max:
            taken = list(self._ready)
            self._ready.clear()
            return taken
        return [self._ready.popleft() for _ in range(self._batch_max)]

    async def _pass(self, moves: list[Move]) -> list[SettleResult]:
        try:
            return await self._send(moves)
        except PartlySettled as error:
            self._settle_known(moves, error.doors)
            self._was_sent = True
            raise
        except BaseException:
            self._was_sent = True
            raise

    async def _pass_singly(self) -> None:
        """Find out which moves of a batch cannot pass, so that the others do.

        Raises:
            StoreError: the server is away, or refuses every move alike; they are kept.
        """
        has_passed, refused = False, list[tuple[Move, Exception]]()
        for move in list(self._under_way):
            try:
                doors = await self._pass([move])
            except Exception as error:
                if not _is_about_a_move(error):
                    raise
                refused.append((move, error))
                if not has_passed and len(refused) >= _REFUSALS_MAX and is_refusal(error):
                    break
                continue
            has_passed = True
            self._part_with(move)
            self._settle([move], doors, True)
        self._reject_all(refused, keeps_refusals=not has_passed)

    def _reject_all(
        self, refused: Sequence[tuple[Move, Exception]], *, keeps_refusals: bool
    ) -> None:
        """Reject what cannot be encoded; and what the server refused, where it took others."""
        kept: list[tuple[Move, Exception]] = []
        for move, error in refused:
            self._part_with(move)
            if keeps_refusals and is_refusal(error):
                kept.append((move, error))
            else:
                self._reject(move, error)
        # What is kept lines up behind the others, so that it is tried along with them.
        self._ready.extend([*self._under_way, *(move for move, _ in kept)])
        self._under_way, self._was_sent = [], bool(kept)
        if kept:
            raise kept[0][1]

    def _part_with(self, move: Move) -> None:
        self._under_way = [one for one in self._under_way if one is not move]

    def _settle_known(self, moves: list[Move], doors: Sequence[SettleResult | None]) -> None:
        """Let go of what was answered; the rest stays under way."""
        pairs = list(zip(moves, doors, strict=True))
        self._under_way = [move for move, door in pairs if door is None]
        known = [(move, door) for move, door in pairs if door is not None]
        self._settle([move for move, _ in known], [door for _, door in known], self._was_sent)


def _is_about_a_move(error: Exception) -> bool:
    """Whether it may be the fault of one move: the others would pass without it."""
    return not isinstance(error, StoreError) or is_refusal(error)


def is_refusal(error: Exception) -> bool:
    """Whether the server refused what it was asked, and not for the state that it is in."""
    is_plain = isinstance(error, ServerRefused) and error.code == "ERR"
    return is_plain or isinstance(error, ScriptFailed)


logger = get_logger(__name__)
Changes = dict[str, int | None]
_MOVES_MAX = 256


class Settlement:
    """The acker, the retrier and the burier, and the verdict that chooses between them."""

    def __init__(
        self,
        store: ConsumerStore,
        in_flight: InFlight,
        policy: RetryPolicy,
        settings: WorkerSettings,
        *,
        encode: Callable[[Any], bytes],
        listener: Listener | None = None,
    ) -> None:
        self._store = store
        self._results = settings.results
        # Promotion tells of `waiting`, between `retry-scheduled` and `active`; nothing else can.
        self._tells_waiting = settings.events.waiting_max > 0
        self._encode = encode
        self._listener = listener
        self._in_flight = in_flight
        self._policy = policy
        self._now_ms: Callable[[], float] = store.clock.now_ms
        self.counters = Counters()
        self.interrupted_counts: list[tuple[bytes, int]] = []
        pass_door = store.complete if settings.results.is_stored else _acking(store)
        ack_max, reject = settings.ack.batch_max, self._rejected
        self.acker = SettleLoop[Any]("acker", pass_door, self._acked, ack_max, reject)
        self.retrier = SettleLoop[Retrying](
            "retrier", store.retry, self._retried, _MOVES_MAX, reject
        )
        self.burier = SettleLoop[Burying]("burier", self._bury, self._buried, _MOVES_MAX, reject)
        self._unknown_names = UnknownNameLog(policy)
        self._redact = Redaction(settings.redact) if settings.redact is not None else None
        self._keeps_tracebacks = settings.keep_tracebacks
        self.failure_log = FailureLog(store.keys.queue, tells_messages=self._redact is None)

    @property
    def doors(self) -> tuple[SettleLoop[Any], ...]:
        return (self.acker, self.retrier, self.burier)

    @property
    def complete(self) -> Callable[[Delivery, Any], None]:
        """`completed`, or where no value is kept the acker's own entrance: a call less per job."""
        return self.completed if self._results.is_stored else self.acker.put_first

    def started(self, delivery: Delivery) -> None:
        if self._listener is not None:
            self._listener.started(delivery)

    def completed(self, delivery: Delivery, value: Any) -> None:
        """Send the job and its value to the acker."""
        try:
            result = None if value is None else self._spell_result(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's value may raise anything
            self.failed(delivery, error)
            return
        self.acker.put(Completing(delivery, result))

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Judge the error and send the job where it belongs; raises nothing, and loses no job."""
        try:
            self._judge(delivery, error)
        except KeyboardInterrupt:
            raise
        except BaseException as bug:  # noqa: BLE001 - an error object may be anything
            self.unsettled(delivery, bug)

    def unsettled(self, delivery: Delivery, error: BaseException) -> None:
        """Bury a job whose attempt could not be settled; where even that fails, let it go.

        What is not held any more is not renewed: its lease lapses, and it is delivered again.
        """
        try:
            # Not the error's words, which the redact hook has not seen.
            failure = Failure(describe(error).error_type, "its attempt could not be settled")
            logger.error(
                "the end of job %s (%s) could not be settled, burying it: %s",
                delivery.job_id, delivery.name or "no name", failure.text,
                extra={"job_id": delivery.job_id, "job_name": delivery.name},
            )  # fmt: skip
            self.burier.put(
                Burying(delivery, DlqReason.UNRECOVERABLE, delivery.run_number, failure)
            )
        except Exception:  # nothing else is left to try
            logger.exception(
                "job %s could not be buried, its lease is left to lapse", delivery.job_id
            )
            self._in_flight.release([delivery.entry_id])

    def _judge(self, delivery: Delivery, error: BaseException) -> None:
        now_ms = self._now_ms()
        failure = describe(error, self._redact)
        try:
            verdict = judge(delivery, error, self._policy, random, now_ms)
        except Exception:  # an error object may be anything, and must not end the runner
            message = "the error of job %s could not be judged, burying it"
            logger.exception(message, delivery.job_id, exc_info=self._redact is None)
            verdict = Bury(DlqReason.UNRECOVERABLE)
        if isinstance(error, UnknownName):
            delivery.started_ns = delivery.duration_us = 0  # it was looked at, but nothing ran
            if isinstance(verdict, Retry):
                self._unknown_names.note(delivery, error.handlers, failure, now_ms)
        elif not isinstance(error, RetryLater):
            self.failure_log.failed(delivery, error, failure, verdict)
        if isinstance(verdict, Retry):
            changes = self._changes(delivery, error, now_ms)
            self._retry(delivery, verdict, changes, failure)
            return
        runs = delivery.run_number if delivery.started_ns else delivery.run_number - 1
        traceback = self._traceback(error, failure) if delivery.started_ns else ""
        self.burier.put(Burying(delivery, verdict.reason, runs, failure, traceback))

    def _traceback(self, error: BaseException, failure: Failure) -> str:
        """Where the last attempt of a job failed; formed for jobs that are buried, and no others."""
        if not self._keeps_tracebacks:
            return ""
        try:
            return traceback_text(trace_of(error), failure, self._redact)
        except Exception:  # a traceback must not change what becomes of the job
            logger.exception("a traceback cannot be kept", exc_info=self._redact is None)
            return ""

    async def _bury(self, moves: Sequence[Burying]) -> list[SettleResult]:
        """Send burials; one that the server refuses alone goes without its traceback."""
        try:
            return await self._store.bury(moves)
        except StoreError as error:
            if len(moves) > 1 or not moves[0].traceback or not is_refusal(error):
                raise
            refusal = error
        (move,) = moves
        doors = await self._store.bury([msgspec.structs.replace(move, traceback="")])
        job_id = move.entry.job_id if isinstance(move.entry, Delivery) else ""
        logger.warning("the traceback of job %s is left out: %s", job_id, refusal)
        return doors

    def interrupted(self, delivery: Delivery) -> None:
        """Our own deadline ended it: if it was started, it goes back charged."""
        if delivery.is_unstoppable:
            return
        count = delivery.earlier + (delivery.started_ns > 0)
        self.interrupted_counts.append((delivery.entry_id, count))

    def dropped(self, delivery: Delivery) -> None:
        """Somebody else holds it now; it never started here."""
        self._in_flight.release([delivery.entry_id])

    def _spell_result(self, value: Any) -> bytes:
        result = self._encode(value)
        if len(result) > self._results.max_bytes:
            raise PayloadTooLarge(len(result), self._results.max_bytes)
        return result

    def _retry(
        self, delivery: Delivery, verdict: Retry, changes: Changes | None, failure: Failure
    ) -> None:
        skips_wait = is_at_once(verdict, delivery) and not self._tells_waiting
        self.retrier.put(
            Retrying(delivery, verdict.after_ms, verdict.spent, changes, failure, skips_wait)
        )

    def _changes(self, delivery: Delivery, error: BaseException, now_ms: float) -> Changes | None:
        """What a retry sets in the job's extras."""
        if isinstance(error, UnknownName):
            return {**handler_missing(delivery, self._policy, now_ms)}
        return handler_found(delivery)

    def _rejected(self, move: Any, error: Exception) -> None:
        """A move that cannot be encoded, or that the server refuses alone: bury its job instead."""
        logger.error(
            "the outcome of entry %r cannot be sent: %s", move.entry_id, describe(error).error_type,
            exc_info=error if self._redact is None else None,
        )  # fmt: skip
        burial = self._instead_of(move, error)
        if burial is not None:
            self.burier.put(burial)
        else:
            # It is renewed no more: its lease lapses, and it is delivered again.
            self._in_flight.release([move.entry_id])

    def _instead_of(self, move: Any, error: Exception) -> Burying | None:
        """A burial of the same job that is more likely to pass; None where nothing is left out."""
        if not isinstance(move, Burying):
            delivery: Delivery = move if isinstance(move, Delivery) else move.delivery
            words = "the outcome of its run could not be encoded"
            failure = Failure(describe(error).error_type, words)
            return Burying(delivery, DlqReason.UNRECOVERABLE, delivery.run_number, failure)
        is_bare = isinstance(move.entry, RejectedEntry) and not move.entry.name
        return None if is_bare else _bare(move)

    def _acked(self, moves: Sequence[Any], doors: Sequence[SettleResult], was_resent: bool) -> None:
        done = self._settle(moves, doors, was_resent)
        self.counters.completed += len(done)
        if self._listener is not None and done:
            # Where no values are kept, what the acker moves are the deliveries themselves.
            is_plain = not self._results.is_stored
            self._listener.completed(done if is_plain else [move.delivery for move in done])

    def _retried(
        self, moves: Sequence[Retrying], doors: Sequence[SettleResult], was_resent: bool
    ) -> None:
        done = self._settle(moves, doors, was_resent)
        self.counters.retried += len(done)
        self.counters.failed += sum([not move.is_snooze for move in done])
        if self._listener is not None and done:
            self._listener.retried(done)

    def _buried(
        self, moves: Sequence[Burying], doors: Sequence[SettleResult], was_resent: bool
    ) -> None:
        done = self._settle(moves, doors, was_resent)
        self.counters.buried += len(done)
        self.counters.failed += sum([move.was_run for move in done])
        for move in done:
            self.failure_log.buried(move)
        if self._listener is not None and done:
            self._listener.buried(done)

    def _settle(
        self, moves: Sequence[Move], doors: Sequence[SettleResult], was_resent: bool
    ) -> Sequence[Move]:
        """Let go of what went through; the answer is what this worker itself did."""
        self._in_flight.release([move.entry_id for move in moves])
        if doors.count(SettleResult.DONE) == len(doors):
            return moves
        pairs = list(zip(moves, doors, strict=True))
        gone = [move for move, door in pairs if door is SettleResult.GONE]
        shut = [move for move, door in pairs if door is SettleResult.NOT_OWNER]
        self._dispute(gone, is_unproven=was_resent)
        self._dispute(shut, is_unproven=False)
        return [move for move, door in pairs if door is SettleResult.DONE]

    def _dispute(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        if is_unproven:
            self.counters.unproven_outcomes += len(moves)
            if moves and isinstance(moves[0], Burying):
                self.failure_log.unproven(moves)
        else:
            self.counters.stale_outcomes += len(moves)
        if self._listener is not None and moves:
            self._listener.disputed(moves, is_unproven=is_unproven)


def _bare(move: Burying) -> Burying:
    """The same burial with the bytes of the job and without words: some of them have no UTF-8."""
    entry = move.entry
    body = entry.envelope if isinstance(entry, Delivery) else entry.body
    detail = "the name and the error of this job could not be encoded"
    return Burying(
        RejectedEntry(entry.entry_id, move.reason, detail, "", body), move.reason, move.attempt
    )


def _acking(store: ConsumerStore) -> Callable[[Sequence[Delivery]], Awaitable[list[SettleResult]]]:
    return lambda moves: store.ack([move.entry_id for move in moves])
