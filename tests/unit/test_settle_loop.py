"""The group commit: what was answered is settled once, what was not is sent again."""

import asyncio

import msgspec
import pytest

from chasquimq.engine.settlement import SettleLoop
from chasquimq.errors import ConnectionLost, ServerRefused
from chasquimq.model.retry import SettleResult
from chasquimq.store.consumer.settle import PartlySettled

DONE, GONE = SettleResult.DONE, SettleResult.GONE


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
            self.rejected = []
            self.poison = []
            self.loop = SettleLoop("door", self.send, self.settle, 10, self.reject)

        async def send(self, moves):
            self.sent.append(list(moves))
            for move, error in self.poison:
                if move in moves:
                    raise error
            answer = self.answers.pop(0) if self.answers else [DONE] * len(moves)
            if isinstance(answer, Exception):
                raise answer
            return answer

        def settle(self, moves, doors, was_resent):
            self.settled.append((list(moves), list(doors), was_resent))

        def reject(self, move, error):
            self.rejected.append((move, error))

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
    door.answers = [PartlySettled(refusal, [DONE, None, GONE]), [GONE]]
    put_all(door)

    with pytest.raises(PartlySettled, match="ERR no"):
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

    loop = SettleLoop("door", hang, door.settle, 10, door.reject)
    loop.put(A)
    task = asyncio.create_task(loop.run_once())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert loop.waiting_count == 1


REFUSAL = ServerRefused("ERR delay_ms must be a time", code="ERR")


@pytest.mark.parametrize("error", [TypeError("no form"), RecursionError(), REFUSAL], ids=repr)
async def test_a_move_that_cannot_pass_is_rejected_and_the_others_pass(door, error):
    door.poison = [(B, error)]
    put_all(door)

    await door.loop.run_once()

    assert door.rejected == [(B, error)]
    assert [moves for moves, _, _ in door.settled] == [[A], [C]]
    assert door.loop.is_empty


async def test_moves_that_none_can_be_encoded_are_all_rejected(door):
    error = TypeError("no form")
    door.poison = [(A, error), (B, error), (C, error)]
    put_all(door)

    await door.loop.run_once()

    assert [move for move, _ in door.rejected] == [A, B, C]
    assert door.loop.is_empty


async def test_what_the_server_refuses_for_every_move_is_kept_and_lines_up_behind(door):
    door.poison = [(A, REFUSAL), (B, REFUSAL)]
    door.loop.put(A)
    door.loop.put(B)

    with pytest.raises(ServerRefused):
        await door.loop.run_once()

    assert (door.rejected, door.loop.waiting_count) == ([], 2)
    door.loop.put(C)
    await door.loop.run_once()
    # C has passed: so it is a matter of the two others.
    assert [move for move, _ in door.rejected] == [A, B]
    assert door.settled == [([C], [DONE], True)]


async def test_many_refusals_in_a_row_hide_no_move_that_can_pass(door):
    moves = [Move(b"%d" % at) for at in range(10)]
    door.poison = [(move, REFUSAL) for move in moves[:-1]]
    for move in moves:
        door.loop.put(move)

    with pytest.raises(ServerRefused):
        await door.loop.run_once()
    assert len(door.sent) == 1 + 8
    await door.loop.run_once()

    assert door.settled == [([moves[-1]], [DONE], True)]
    assert sorted(move.entry_id for move, _ in door.rejected) == [b"%d" % at for at in range(9)]


@pytest.mark.parametrize(
    "error", [ConnectionLost("gone"), ServerRefused("WRONGTYPE no", code="WRONGTYPE")], ids=repr
)
async def test_a_server_that_goes_away_amid_single_moves_costs_none_of_them(door, error):
    door.poison = [(A, TypeError("no form")), (C, error)]
    put_all(door)

    with pytest.raises(type(error)):
        await door.loop.run_once()

    assert (door.rejected, door.loop.waiting_count) == ([], 2)
    door.poison = door.poison[:1]
    await door.loop.run_once()
    assert [move for move, _ in door.rejected] == [A]
    assert [moves for moves, _, _ in door.settled] == [[B], [C]]
