"""One replay on its way: dead jobs become their own next generation, in chunks, at a pace."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from chasquimq.errors import DecodeError, EditRefused
from chasquimq.model.backoff import U32_MAX
from chasquimq.model.json_value import ToDict
from chasquimq.model.verdict import UNKNOWN_SINCE, UNKNOWN_UNTIL
from chasquimq.store.producing import ProducerStore
from chasquimq.wire.codec import changed_extras, encode_envelope, raw_extras, split_envelope
from chasquimq.wire.stream_entry import DlqEntry

# What a payload becomes before its job is sent back.
Edit = Callable[[bytes], bytes]

# How long a request's answer is remembered for a resend.
REQUEST_TTL_S = 60
_ENTRIES_PER_CALL_MAX = 100
_BYTES_PER_CALL_MAX = 1024 * 1024
# A paced replay leaves in bursts of at most this much of its rate.
_BURST_S = 0.1


class Replayed(int, ToDict):
    """How many jobs were replayed, and what else a replay met on its way.

    `matched` entries met the filters; `skipped` of them stay in the DLQ: they cannot be decoded,
    or are among the `refused`, which the edit did not take. `ids` are the DLQ ids that were replayed, or would have been in a
    dry run, and `job_ids` those of the jobs.
    """

    skipped: int
    refused: int
    matched: int
    ids: list[str]
    job_ids: list[str]

    def __new__(
        cls,
        replayed: int = 0,
        *,
        skipped: int = 0,
        refused: int = 0,
        matched: int = 0,
        ids: Sequence[str] = (),
        job_ids: Sequence[str] = (),
    ) -> Self:
        self = super().__new__(cls, replayed)
        self.skipped = skipped
        self.refused = refused
        self.matched = matched
        self.ids = list(ids)
        self.job_ids = list(job_ids)
        return self

    @property
    def replayed(self) -> int:
        return int(self)

    def to_dict(self) -> dict[str, Any]:
        """The figures and the ids; as a number it is only how many were replayed."""
        return {"replayed": int(self), **vars(self)}


class Replay:
    """Gathers what is to be replayed and sends it in chunks, each under a token of its own."""

    def __init__(
        self,
        producer: ProducerStore,
        limit: int,
        max_rate: float | None,
        *,
        is_dry: bool,
        edit: Edit | None = None,
    ) -> None:
        self._producer = producer
        self._limit = limit
        self._edit = edit
        self._pace = Pace(max_rate)
        self._is_dry = is_dry
        self._moves: list[Move] = []
        self._moves_bytes = 0
        self._ids: list[str] = []
        self._job_ids: list[str] = []
        self._matched = self._skipped = self._refused = 0

    @property
    def is_full(self) -> bool:
        return len(self._ids) >= self._limit

    async def take(self, entries: Sequence[DlqEntry]) -> None:
        """Replay entries until the limit is reached; the last chunk waits for more or a flush."""
        for entry in entries:
            if self.is_full:
                return
            self._matched += 1
            move = self._move(entry)
            if move is None:
                self._skipped += 1
            else:
                await self._add(move)

    def _move(self, entry: DlqEntry) -> Move | None:
        try:
            return next_generation(entry, self._edit)
        except DecodeError:
            return None
        except EditRefused:
            self._refused += 1
            return None

    async def flush(self) -> None:
        """Send what has been gathered."""
        moves, self._moves, self._moves_bytes = self._moves, [], 0
        if moves and not self._is_dry:
            await self._pace.wait(len(moves))
            marks = await self._send(moves)
            moves = [move for move, mark in zip(moves, marks, strict=True) if mark == 1]
        self._ids += [move.dlq_id for move in moves]
        self._job_ids += [move.job_id for move in moves]

    def result(self) -> Replayed:
        count = 0 if self._is_dry else len(self._ids)
        return Replayed(
            count, skipped=self._skipped, refused=self._refused, matched=self._matched, ids=self._ids,
            job_ids=self._job_ids,
        )  # fmt: skip

    async def _add(self, move: Move) -> None:
        size = len(move.envelope)
        if self._moves and self._moves_bytes + size > _BYTES_PER_CALL_MAX:
            await self.flush()
        self._moves.append(move)
        self._moves_bytes += size
        if len(self._moves) >= min(self._pace.burst_max, self._limit - len(self._ids)):
            await self.flush()

    async def _send(self, moves: Sequence[Move]) -> list[int]:
        keys = self._producer.keys
        outcomes = [keys.outcome(move.job_id) for move in moves]
        token = keys.token(secrets.token_hex(12))
        args = [part for move in moves for part in (move.dlq_id, move.envelope, move.name)]
        return await self._producer.request(
            "replay", [keys.dlq, keys.stream, token, *outcomes], REQUEST_TTL_S, *args
        )


class Pace:
    """Spreads jobs over time; None does not hold anything back."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._next_s = 0.0

    @property
    def burst_max(self) -> int:
        if self._per_second is None:
            return _ENTRIES_PER_CALL_MAX
        return min(_ENTRIES_PER_CALL_MAX, max(1, int(self._per_second * _BURST_S)))

    async def wait(self, count: int) -> None:
        """Return when that many may leave; time that was not used is not made up for."""
        if self._per_second is None:
            return
        now_s = asyncio.get_running_loop().time()
        starts_s = max(now_s, self._next_s)
        self._next_s = starts_s + count / self._per_second
        await asyncio.sleep(starts_s - now_s)


class Move(msgspec.Struct, frozen=True):
    """What is written for a dead job that goes back to the stream."""

    dlq_id: str
    job_id: str
    envelope: bytes
    name: str


def next_generation(entry: DlqEntry, edit: Edit | None = None) -> Move:
    """A dead job as it is sent back.

    Raises:
        DecodeError: its envelope cannot be read.
    """
    dead, extras = split_envelope(entry.payload)
    payload = dead.payload if edit is None else edit(dead.payload)
    envelope = encode_envelope(dead.id, payload, dead.created_at_ms, 0, dead.retry)
    carried = raw_extras(entry.payload) if extras else b""
    envelope += changed_extras(carried, _changes(extras or {}))
    return Move(entry.entry_id, dead.id, envelope, entry.name)


def _changes(extras: dict[str, Any]) -> dict[str, int | None]:
    generation = max(0, extras.get("generation", 0)) + 1
    # A new generation has all its time to meet a worker that knows its name.
    return {
        UNKNOWN_SINCE: None,
        UNKNOWN_UNTIL: None,
        "generation": min(generation, U32_MAX),
    }
