"""Carries finished attempts through the one door, in batches, and keeps them until confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from chasquimq.errors import ScriptFailed, ServerRefused, StoreError
from chasquimq.model.outcome import Door
from chasquimq.store.passing import PartlyPassed


class _Move(Protocol):
    @property
    def entry_id(self) -> bytes: ...


Move = TypeVar("Move", bound=_Move)
Send = Callable[[Sequence[Move]], Awaitable[list[Door]]]
Settle = Callable[[Sequence[Move], Sequence[Door], bool], None]
Reject = Callable[[Move, Exception], None]
# So many refusals in a row, and nothing that passed: it is no matter of single moves.
_REFUSALS_MAX = 8


class DoorLoop(Generic[Move]):
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

    async def _pass(self, moves: list[Move]) -> list[Door]:
        try:
            return await self._send(moves)
        except PartlyPassed as error:
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

    def _settle_known(self, moves: list[Move], doors: Sequence[Door | None]) -> None:
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
