"""Settles jobs whose run has ended: judges, gathers a batch, calls the script, informs the listeners.

A job whose handler returned goes to the acker. One whose handler raised is judged and goes to the
retrier or to the burier. Each of these loops sends what has gathered while its last batch was under
way. Only what the server confirms is counted, and passed to the listeners.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from chasquimq.engine.failure_log import FailureLog, UnknownNameLog
from chasquimq.engine.tracebacks import Redaction, trace_of, traceback_text
from chasquimq.errors import PayloadTooLarge, RetryLater, ScriptFailed, ServerRefused, StoreError
from chasquimq.model.delivery import (
    Burying,
    Completing,
    Delivery,
    DlqReason,
    Failure,
    RejectedEntry,
    Retrying,
    SettleResult,
    describe,
)
from chasquimq.model.retry import (
    Bury,
    Retry,
    RetryPolicy,
    UnknownName,
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

# The retrier and the burier send so many moves at once.
_MOVES_MAX = 256
# So many refusals in a row, and nothing that passed: it is no matter of single moves.
_REFUSALS_MAX = 8


@dataclass(slots=True)
class Counters:
    """Counts each attempt of a worker once, when its outcome is known."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    buried: int = 0
    handed_back: int = 0
    # An outcome of ours that another worker's outcome preceded.
    stale_outcomes: int = 0
    # The server said "gone" to a second send: the first one may have done it.
    unproven_outcomes: int = 0
    leases_lost: int = 0


class _Move(Protocol):
    @property
    def entry_id(self) -> bytes: ...

    @property
    def key(self) -> bytes: ...


Move = TypeVar("Move", bound=_Move)
Changes = dict[str, int | None]


class Settlement:
    """Decides what becomes of a job at the end of its run, and sees it through."""

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
        self.in_flight = in_flight
        self.listener = listener
        self.counters = Counters()
        # Runs that our own deadline ended: their keys, and the deliveries they are charged with.
        self.interrupted_counts: list[tuple[bytes, int]] = []
        self._policy = policy
        self._encode = encode
        self._now_ms: Callable[[], float] = store.clock.now_ms
        self._keeps_results = settings.results.is_stored
        self._result_bytes_max = settings.results.max_bytes
        self._keeps_tracebacks = settings.keep_tracebacks
        # Promotion writes `waiting`, between `retry-scheduled` and `active`; nothing else can.
        self._has_waiting_events = settings.events.waiting_max > 0
        self._redact = Redaction(settings.redact) if settings.redact is not None else None
        self.failure_log = FailureLog(store.keys.queue, shows_messages=self._redact is None)
        self._unknown_names = UnknownNameLog(policy, store.keys.queue)
        ack_max = settings.ack.batch_max
        self._acker = Acker(self, store, ack_max)
        self._completer = Completer(self, store, ack_max)
        self.retrier = Retrier(self, store, _MOVES_MAX)
        self.burier = Burier(self, store, _MOVES_MAX)

    @property
    def loops(self) -> tuple[SettleLoop[Any], ...]:
        """All that send; of the two that end jobs well, the one that is in use."""
        return (self._completer if self._keeps_results else self._acker, self.retrier, self.burier)

    # ── how a run ends ───────────────────────────────────────────────────────────────────────

    def started(self, delivery: Delivery) -> None:
        """Pass a handler that began to wait on to the listeners."""
        if self.listener is not None:
            self.listener.started(delivery)

    def complete(self, delivery: Delivery, value: Any) -> None:
        """Complete a job whose handler returned, and keep the value if results are kept."""
        if self._keeps_results:
            self._complete_with(delivery, value)
            return
        # What `SettleLoop.put` does, without a call for each job; the two change together.
        acker = self._acker
        acker.ready.append(delivery)
        if not acker.is_awake:
            acker.wake()

    def fail(self, delivery: Delivery, error: BaseException) -> None:
        """Judge the error and retry or bury the job; raises nothing, and loses no job."""
        try:
            self._judge(delivery, error)
        except KeyboardInterrupt:
            raise
        except BaseException as bug:  # noqa: BLE001 - an error object may be anything
            self.bury_unsettled(delivery, bug)

    def bury_unsettled(self, delivery: Delivery, error: BaseException) -> None:
        """Bury a job whose attempt could not be settled; where even that fails, let it go.

        What is not held any more is not renewed: its lease lapses, and it is delivered again.
        """
        try:
            # Not the error's words, which the redact hook has not seen.
            failure = Failure(describe(error).error_type, "its attempt could not be settled")
            self.failure_log.unsettled(delivery, failure)
            self.burier.put(
                Burying(delivery, DlqReason.UNRECOVERABLE, delivery.run_number, failure)
            )
        except Exception as bug:  # noqa: BLE001 - nothing else is left to try
            self.failure_log.given_up(delivery, bug)
            self.in_flight.release([delivery.key])

    def interrupted(self, delivery: Delivery) -> None:
        """Our own deadline ended it: if it was started, it goes back charged."""
        if not delivery.is_unstoppable:
            count = delivery.earlier + (delivery.started_ns > 0)
            self.interrupted_counts.append((delivery.key, count))

    def dropped(self, delivery: Delivery) -> None:
        """Another worker holds it now; it never started here."""
        self.in_flight.release([delivery.key])

    # ── the verdict ──────────────────────────────────────────────────────────────────────────

    def _complete_with(self, delivery: Delivery, value: Any) -> None:
        try:
            result = None if value is None else self._encode_result(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's value may raise anything
            self.fail(delivery, error)
            return
        self._completer.put(Completing(delivery, result))

    def _encode_result(self, value: Any) -> bytes:
        result = self._encode(value)
        if len(result) > self._result_bytes_max:
            raise PayloadTooLarge(len(result), self._result_bytes_max)
        return result

    def _judge(self, delivery: Delivery, error: BaseException) -> None:
        now_ms = self._now_ms()
        failure = describe(error, self._redact)
        verdict = self._verdict(delivery, error, now_ms)
        if isinstance(error, UnknownName):
            delivery.started_ns = delivery.duration_us = 0  # it was looked at, but nothing ran
            if isinstance(verdict, Retry):
                self._unknown_names.note(delivery, error.handlers, failure, now_ms)
        elif not isinstance(error, RetryLater):
            self.failure_log.failed(delivery, error, failure, verdict)
        if isinstance(verdict, Bury):
            self._bury(delivery, error, failure, verdict)
        else:
            changes = self._changes(delivery, error, now_ms)
            self._retry(delivery, verdict, changes, failure)

    def _verdict(self, delivery: Delivery, error: BaseException, now_ms: float) -> Retry | Bury:
        try:
            return judge(delivery, error, self._policy, random, now_ms)
        except Exception:  # noqa: BLE001 - an error object may be anything
            self.failure_log.unjudged(delivery)
            return Bury(DlqReason.UNRECOVERABLE)

    def _changes(self, delivery: Delivery, error: BaseException, now_ms: float) -> Changes | None:
        """What a retry sets in the job's extras."""
        if isinstance(error, UnknownName):
            return {**handler_missing(delivery, self._policy, now_ms)}
        return handler_found(delivery)

    def _retry(
        self, delivery: Delivery, verdict: Retry, changes: Changes | None, failure: Failure
    ) -> None:
        skips_wait = is_at_once(verdict, delivery) and not self._has_waiting_events
        self.retrier.put(
            Retrying(delivery, verdict.after_ms, verdict.spent, changes, failure, skips_wait)
        )

    def _bury(
        self, delivery: Delivery, error: BaseException, failure: Failure, verdict: Bury
    ) -> None:
        has_run = delivery.started_ns > 0
        runs = delivery.run_number if has_run else delivery.run_number - 1
        traceback = self._traceback(error, failure) if has_run and self._keeps_tracebacks else ""
        self.burier.put(Burying(delivery, verdict.reason, runs, failure, traceback))

    def _traceback(self, error: BaseException, failure: Failure) -> str:
        """Where the last attempt of a job failed; formed for jobs that are buried, and no others."""
        try:
            return traceback_text(trace_of(error), failure, self._redact)
        except Exception:  # noqa: BLE001 - it must not change what becomes of the job
            self.failure_log.no_traceback()
            return ""

    # ── what the server answered ─────────────────────────────────────────────────────────────

    def confirm(
        self, moves: Sequence[Move], results: Sequence[SettleResult], *, was_resent: bool
    ) -> Sequence[Move]:
        """Release what the server answered; returns what this worker itself did."""
        self.in_flight.release(self.in_flight.keys_of(moves))
        if results.count(SettleResult.DONE) == len(results):
            return moves
        pairs = list(zip(moves, results, strict=True))
        gone = [move for move, result in pairs if result is SettleResult.GONE]
        refused = [move for move, result in pairs if result is SettleResult.NOT_OWNER]
        self._dispute(gone, is_unproven=was_resent)
        self._dispute(refused, is_unproven=False)
        return [move for move, result in pairs if result is SettleResult.DONE]

    def _dispute(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        if is_unproven:
            self.counters.unproven_outcomes += len(moves)
            if moves and isinstance(moves[0], Burying):
                self.failure_log.unproven(moves)
        else:
            self.counters.stale_outcomes += len(moves)
        if self.listener is not None and moves:
            self.listener.disputed(moves, is_unproven=is_unproven)

    def reject(self, move: Any, error: Exception) -> None:
        """Bury a job whose move cannot be encoded, or is refused by the server alone."""
        self.failure_log.unsendable(move.entry_id, error)
        burial = _burial_instead_of(move, error)
        if burial is not None:
            self.burier.put(burial)
        else:
            # It is renewed no more: its lease lapses, and it is delivered again.
            self.in_flight.release([move.key])


class SettleLoop(Generic[Move]):
    """A group commit: what gathers while one batch is under way leaves with the next."""

    name: str

    def __init__(self, settlement: Settlement, store: ConsumerStore, batch_max: int) -> None:
        self._settlement = settlement
        self._store = store
        self._batch_max = batch_max
        self.ready: deque[Move] = deque()
        self._under_way: list[Move] = []
        # A batch that was sent once may have passed although no answer came.
        self._was_sent = False
        self._is_stopping = False
        self._wake = asyncio.Event()
        self.is_awake = False

    async def send(self, moves: Sequence[Move]) -> list[SettleResult]:
        """Ask the server for all of them at once."""
        raise NotImplementedError

    def done(self, moves: Sequence[Move], counters: Counters, listener: Listener | None) -> None:
        """Count what this worker did itself, and inform the listeners."""
        raise NotImplementedError

    @property
    def is_empty(self) -> bool:
        return not self.ready and not self._under_way

    @property
    def waiting_count(self) -> int:
        return len(self.ready) + len(self._under_way)

    def put(self, move: Move) -> None:
        """Hand over a finished attempt; it leaves at the end of this loop tick or right after."""
        self.ready.append(move)
        if not self.is_awake:
            self.wake()

    def wake(self) -> None:
        """Send what is ready."""
        self.is_awake = True
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
        while self.ready or self._under_way:
            if not self._under_way:
                self._under_way = self._take()
            try:
                results = await self._pass(self._under_way)
            except Exception as error:
                if not _is_about_a_move(error):
                    raise
                await self._pass_singly()
                continue
            moves, self._under_way = self._under_way, []
            was_sent, self._was_sent = self._was_sent, False
            self._confirm(moves, results, was_resent=was_sent)
        if not self._is_stopping:
            self.is_awake = False
            self._wake.clear()

    def _take(self) -> list[Move]:
        if len(self.ready) <= self._batch_max:
            taken = list(self.ready)
            self.ready.clear()
            return taken
        return [self.ready.popleft() for _ in range(self._batch_max)]

    def _confirm(
        self, moves: Sequence[Move], results: Sequence[SettleResult], *, was_resent: bool
    ) -> None:
        done = self._settlement.confirm(moves, results, was_resent=was_resent)
        if done:
            self.done(done, self._settlement.counters, self._settlement.listener)

    async def _pass(self, moves: list[Move]) -> list[SettleResult]:
        try:
            return await self.send(moves)
        except PartlySettled as error:
            self._confirm_known(moves, error.results)
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
                results = await self._pass([move])
            except Exception as error:
                if not _is_about_a_move(error):
                    raise
                refused.append((move, error))
                if not has_passed and len(refused) >= _REFUSALS_MAX and is_refusal(error):
                    break
                continue
            has_passed = True
            self._part_with(move)
            self._confirm([move], results, was_resent=True)
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
                self._settlement.reject(move, error)
        # What is kept lines up behind the others, so that it is tried along with them.
        self.ready.extend([*self._under_way, *(move for move, _ in kept)])
        self._under_way, self._was_sent = [], bool(kept)
        if kept:
            raise kept[0][1]

    def _part_with(self, move: Move) -> None:
        self._under_way = [one for one in self._under_way if one is not move]

    def _confirm_known(self, moves: list[Move], results: Sequence[SettleResult | None]) -> None:
        """Release what was answered; the rest stays under way."""
        pairs = list(zip(moves, results, strict=True))
        self._under_way = [move for move, result in pairs if result is None]
        known = [(move, result) for move, result in pairs if result is not None]
        self._confirm(
            [move for move, _ in known], [result for _, result in known],
            was_resent=self._was_sent,
        )  # fmt: skip


class Acker(SettleLoop[Delivery]):
    """Completes jobs whose results are not kept."""

    name = "acker"

    async def send(self, moves: Sequence[Delivery]) -> list[SettleResult]:
        return await self._store.ack(self._settlement.in_flight.keys_of(moves))

    def done(
        self, moves: Sequence[Delivery], counters: Counters, listener: Listener | None
    ) -> None:
        counters.completed += len(moves)
        if listener is not None:
            listener.completed(moves)


class Completer(SettleLoop[Completing]):
    """Completes jobs and keeps their results, in one step."""

    name = "acker"

    async def send(self, moves: Sequence[Completing]) -> list[SettleResult]:
        return await self._store.complete(moves)

    def done(
        self, moves: Sequence[Completing], counters: Counters, listener: Listener | None
    ) -> None:
        counters.completed += len(moves)
        if listener is not None:
            listener.completed([move.delivery for move in moves])


class Retrier(SettleLoop[Retrying]):
    """Moves failed jobs to where they wait for their next run."""

    name = "retrier"

    async def send(self, moves: Sequence[Retrying]) -> list[SettleResult]:
        return await self._store.retry(moves)

    def done(
        self, moves: Sequence[Retrying], counters: Counters, listener: Listener | None
    ) -> None:
        counters.retried += len(moves)
        counters.failed += sum([not move.is_snooze for move in moves])
        if listener is not None:
            listener.retried(moves)


class Burier(SettleLoop[Burying]):
    """Moves jobs to the DLQ."""

    name = "burier"

    async def send(self, moves: Sequence[Burying]) -> list[SettleResult]:
        """Send burials; one that the server refuses alone goes without its traceback."""
        try:
            return await self._store.bury(moves)
        except StoreError as error:
            if len(moves) > 1 or not moves[0].traceback or not is_refusal(error):
                raise
            refusal = error
        (move,) = moves
        results = await self._store.bury([msgspec.structs.replace(move, traceback="")])
        self._settlement.failure_log.traceback_left_out(move, refusal)
        return results

    def done(self, moves: Sequence[Burying], counters: Counters, listener: Listener | None) -> None:
        counters.buried += len(moves)
        counters.failed += sum([move.was_run for move in moves])
        for move in moves:
            self._settlement.failure_log.buried(move)
        if listener is not None:
            listener.buried(moves)


def is_refusal(error: Exception) -> bool:
    """Whether the server refused what it was asked, and not for the state that it is in."""
    is_plain = isinstance(error, ServerRefused) and error.code == "ERR"
    return is_plain or isinstance(error, ScriptFailed)


def _is_about_a_move(error: Exception) -> bool:
    """Whether it may be the fault of one move: the others would pass without it."""
    return not isinstance(error, StoreError) or is_refusal(error)


def _burial_instead_of(move: Any, error: Exception) -> Burying | None:
    """A burial of the same job that is more likely to pass; None where nothing is left out."""
    if not isinstance(move, Burying):
        delivery: Delivery = move if isinstance(move, Delivery) else move.delivery
        words = "the outcome of its run could not be encoded"
        failure = Failure(describe(error).error_type, words)
        return Burying(delivery, DlqReason.UNRECOVERABLE, delivery.run_number, failure)
    is_bare = isinstance(move.entry, RejectedEntry) and not move.entry.name
    return None if is_bare else _bare(move)


def _bare(move: Burying) -> Burying:
    """The same burial with the bytes of the job and without words: some of them have no UTF-8."""
    entry = move.entry
    body = entry.envelope if isinstance(entry, Delivery) else entry.body
    detail = "the name and the error of this job could not be encoded"
    return Burying(
        RejectedEntry(entry.entry_id, move.reason, detail, "", body, entry.lane),
        move.reason,
        move.attempt,
    )
