"""The group commit: what was answered is settled once, what was not is sent again."""

import asyncio

import msgspec
import pytest

from chasquimq.engine.settlement import SettleLoop
from chasquimq.errors import ConnectionLost, ServerRefused
from chasquimq.model.delivery import SettleResult
from chasquimq.store.consumer.settle import PartlySettled

DONE, GONE = SettleResult.DONE, SettleResult.GONE


class Move(msgspec.Struct, frozen=True):
    entry_id: bytes


class Loop(SettleLoop[Move]):
    """Sends to whoever watches it."""

    async def send(self, moves):
        return await self._settlement.send(moves)


A, B, C = (Move(name) for name in (b"a", b"b", b"c"))


@pytest.fixture
async def watched():
    """A loop whose server answers what it is told to; `sent` and `settled` tell what happened."""

    class Watched:
        def __init__(self) -> None:
            self.answers = []
            self.sent = []
            self.settled = []
            self.rejected = []
            self.poison = []
            self.loop = Loop(self, None, 10)

        async def send(self, moves):
            self.sent.append(list(moves))
            for move, error in self.poison:
                if move in moves:
                    raise error
            answer = self.answers.pop(0) if self.answers else [DONE] * len(moves)
            if isinstance(answer, Exception):
                raise answer
            return answer

        def confirm(self, moves, results, *, was_resent):
            self.settled.append((list(moves), list(results), was_resent))
            return []

        def reject(self, move, error):
            self.rejected.append((move, error))

    return Watched()


def put_all(watched):
    for move in (A, B, C):
        watched.loop.put(move)


async def test_what_gathers_leaves_together(watched):
    watched.answers = [[DONE, GONE, DONE]]
    put_all(watched)

    await watched.loop.run_once()

    assert watched.settled == [([A, B, C], [DONE, GONE, DONE], False)]
    assert watched.loop.is_empty


async def test_a_batch_without_an_answer_is_sent_again_and_said_to_be(watched):
    watched.answers = [ConnectionLost("gone"), [DONE, DONE, GONE]]
    put_all(watched)

    with pytest.raises(ConnectionLost):
        await watched.loop.run_once()
    await watched.loop.run_once()

    assert watched.sent == [[A, B, C], [A, B, C]]
    assert watched.settled == [([A, B, C], [DONE, DONE, GONE], True)]


async def test_what_was_answered_beside_an_error_is_settled_and_not_sent_again(watched):
    refusal = ServerRefused("ERR no", code="ERR")
    watched.answers = [PartlySettled(refusal, [DONE, None, GONE]), [GONE]]
    put_all(watched)

    with pytest.raises(PartlySettled, match="ERR no"):
        await watched.loop.run_once()
    await watched.loop.run_once()

    assert watched.sent == [[A, B, C], [B]]
    assert watched.settled == [([A, C], [DONE, GONE], False), ([B], [GONE], True)]
    assert watched.loop.is_empty


async def test_a_cancelled_send_may_have_arrived(watched):
    started = asyncio.Event()
    watched.answers = [[GONE] * 3]

    class Hanging(Loop):
        async def send(self, _moves):
            started.set()
            await asyncio.Event().wait()

    loop = Hanging(watched, None, 10)
    loop.put(A)
    task = asyncio.create_task(loop.run_once())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert loop.waiting_count == 1


REFUSAL = ServerRefused("ERR delay_ms must be a time", code="ERR")


@pytest.mark.parametrize("error", [TypeError("no form"), RecursionError(), REFUSAL], ids=repr)
async def test_a_move_that_cannot_pass_is_rejected_and_the_others_pass(watched, error):
    watched.poison = [(B, error)]
    put_all(watched)

    await watched.loop.run_once()

    assert watched.rejected == [(B, error)]
    assert [moves for moves, _, _ in watched.settled] == [[A], [C]]
    assert watched.loop.is_empty


async def test_moves_that_none_can_be_encoded_are_all_rejected(watched):
    error = TypeError("no form")
    watched.poison = [(A, error), (B, error), (C, error)]
    put_all(watched)

    await watched.loop.run_once()

    assert [move for move, _ in watched.rejected] == [A, B, C]
    assert watched.loop.is_empty


async def test_what_the_server_refuses_for_every_move_is_kept_and_lines_up_behind(watched):
    watched.poison = [(A, REFUSAL), (B, REFUSAL)]
    watched.loop.put(A)
    watched.loop.put(B)

    with pytest.raises(ServerRefused):
        await watched.loop.run_once()

    assert (watched.rejected, watched.loop.waiting_count) == ([], 2)
    watched.loop.put(C)
    await watched.loop.run_once()
    # C has passed: so it is a matter of the two others.
    assert [move for move, _ in watched.rejected] == [A, B]
    assert watched.settled == [([C], [DONE], True)]


async def test_many_refusals_in_a_row_hide_no_move_that_can_pass(watched):
    moves = [Move(b"%d" % at) for at in range(10)]
    watched.poison = [(move, REFUSAL) for move in moves[:-1]]
    for move in moves:
        watched.loop.put(move)

    with pytest.raises(ServerRefused):
        await watched.loop.run_once()
    assert len(watched.sent) == 1 + 8
    await watched.loop.run_once()

    assert watched.settled == [([moves[-1]], [DONE], True)]
    assert sorted(move.entry_id for move, _ in watched.rejected) == [b"%d" % at for at in range(9)]


@pytest.mark.parametrize(
    "error", [ConnectionLost("gone"), ServerRefused("WRONGTYPE no", code="WRONGTYPE")], ids=repr
)
async def test_a_server_that_goes_away_amid_single_moves_costs_none_of_them(watched, error):
    watched.poison = [(A, TypeError("no form")), (C, error)]
    put_all(watched)

    with pytest.raises(type(error)):
        await watched.loop.run_once()

    assert (watched.rejected, watched.loop.waiting_count) == ([], 2)
    watched.poison = watched.poison[:1]
    await watched.loop.run_once()
    assert [move for move, _ in watched.rejected] == [A]
    assert [moves for moves, _, _ in watched.settled] == [[B], [C]]
