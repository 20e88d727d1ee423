"""The group commit: what was answered is settled once, what was not is sent again."""

import asyncio

import msgspec
import pytest

from chasquimq.engine.door import DoorLoop
from chasquimq.errors import ConnectionLost, ServerRefused
from chasquimq.model.outcome import Door
from chasquimq.store.passing import PartlyPassed

DONE, GONE = Door.DONE, Door.GONE


class Move(msgspec.Struct, frozen=True):
    entry_id: bytes


A, B, C = (Move(name) for name in (b"a", b"b", b"c"))


@pytest.fixture
async def door():
    """A door whose server answers what it is told to; `sent` and `settled` tell what happened."""

    class Watched:
        def __init__(self) -> None:
            self.answers = []
            self.sent = []
            self.settled = []
            self.loop = DoorLoop("door", self.send, self.settle, 10)

        async def send(self, moves):
            self.sent.append(list(moves))
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        def settle(self, moves, doors, was_resent):
            self.settled.append((list(moves), list(doors), was_resent))

    return Watched()


def put_all(door):
    for move in (A, B, C):
        door.loop.put(move)


async def test_what_gathers_leaves_together(door):
    door.answers = [[DONE, GONE, DONE]]
    put_all(door)

    await door.loop.run_once()

    assert door.settled == [([A, B, C], [DONE, GONE, DONE], False)]
    assert door.loop.is_empty


async def test_a_batch_without_an_answer_is_sent_again_and_said_to_be(door):
    door.answers = [ConnectionLost("gone"), [DONE, DONE, GONE]]
    put_all(door)

    with pytest.raises(ConnectionLost):
        await door.loop.run_once()
    await door.loop.run_once()

    assert door.sent == [[A, B, C], [A, B, C]]
    assert door.settled == [([A, B, C], [DONE, DONE, GONE], True)]


async def test_what_was_answered_beside_an_error_is_settled_and_not_sent_again(door):
    refusal = ServerRefused("ERR no", code="ERR")
    door.answers = [PartlyPassed(refusal, [DONE, None, GONE]), [GONE]]
    put_all(door)

    with pytest.raises(PartlyPassed, match="ERR no"):
        await door.loop.run_once()
    await door.loop.run_once()

    assert door.sent == [[A, B, C], [B]]
    assert door.settled == [([A, C], [DONE, GONE], False), ([B], [GONE], True)]
    assert door.loop.is_empty


async def test_a_cancelled_send_may_have_arrived(door):
    started = asyncio.Event()
    door.answers = [[GONE] * 3]

    async def hang(_moves):
        started.set()
        await asyncio.Event().wait()

    loop = DoorLoop("door", hang, door.settle, 10)
    loop.put(A)
    task = asyncio.create_task(loop.run_once())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert loop.waiting_count == 1
