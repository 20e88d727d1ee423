"""Steps of operators, who cancel and replay, and of accidents that befall a server."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from machine.picture import Picture
from machine.stage import Stage, at_once, picks, when
from machine.stepped_worker import GROUP

MISHAPS = [
    *["lose_a_reply"] * 3, *["forget_scripts"] * 2, "run_out_of_memory", "delete_an_entry",
    "lose_the_group",
]  # fmt: skip


class Operating(Stage):
    @rule(pick=picks)
    @when(lambda self: self.picture.delayed)
    def cancel(self, pick: int) -> None:
        job_id, _ = self.picture.delayed[pick % len(self.picture.delayed)]
        is_cancelled = self.attempt(self.queue.cancel_delayed(job_id), self.queue)
        if is_cancelled is None:
            return
        assert is_cancelled, "what is delayed can be cancelled"
        self.ledger.accounts[job_id].is_cancelled = True

    @rule(pick=picks)
    def cancel_what_is_not_delayed(self, pick: int) -> None:
        waiting = {job_id for job_id, _ in self.picture.delayed}
        others = sorted(self.ledger.accounts.keys() - waiting)
        if others:
            job_id = others[pick % len(others)]
            assert not self.attempt(self.queue.cancel_delayed(job_id), self.queue)

    @rule(limit=st.integers(1, 3))
    @when(lambda self: self.picture.dlq)
    def replay(self, limit: int) -> None:
        before = self.picture.dlq
        if self.attempt(self.queue.replay_dlq(limit), self.queue) is not None:
            after = self.do(Picture.take(self.raw)).dlq
            assert after == before[limit:]
            self.ledger.replayed(before[:limit])

    @rule()
    @when(lambda self: self.picture.dlq and not self.is_out_of_memory)
    def replay_together(self) -> None:
        """Two operators replay the same jobs."""
        before = self.picture.dlq
        self.do(at_once(self.queue.counts(), self.capped.counts()))
        both = at_once(self.queue.replay_dlq(3), self.capped.replay_dlq(3))
        replayed = sum(self.do(both))
        moved = set(before) - set(self.do(Picture.take(self.raw)).dlq)
        assert replayed == len(moved), "each is replayed by one of them"
        self.ledger.replayed(moved)

    @rule(pick=picks, what=st.sampled_from(MISHAPS))
    def mishap(self, pick: int, what: str) -> None:
        getattr(self, what)(pick)

    def lose_a_reply(self, _pick: int) -> None:
        self.loses_next_reply = True

    def forget_scripts(self, _pick: int) -> None:
        self.do(self.raw("SCRIPT", "FLUSH"))

    def delete_an_entry(self, pick: int) -> None:
        entry_ids = sorted(self.picture.stream)
        if not entry_ids:
            return
        entry_id = entry_ids[pick % len(entry_ids)]
        self.ledger.destroyed([self.picture.stream[entry_id]])
        self.ledger.ghosts.add(entry_id)
        self.do(self.raw("XDEL", self.raw.keys.stream, entry_id))

    def lose_the_group(self, pick: int) -> None:
        """Counts and owners are gone with it, and with the stream every job in it."""
        if self.is_out_of_memory:
            return  # a worker waits until it can make the group again
        self.has_lost_group = True
        self.ledger.destroyed(self.picture.stream.values())
        stream = self.raw.keys.stream
        lose = ("DEL", stream) if pick % 2 else ("XGROUP", "DESTROY", stream, GROUP)
        self.do(at_once(self.raw(*lose)))

    def run_out_of_memory(self, _pick: int) -> None:
        self.is_out_of_memory = True
        stream = self.raw.keys.stream
        self.do(at_once(self.raw("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")))
        self.do(self.raw("CONFIG", "SET", "maxmemory", 1))

    @rule()
    def find_memory(self) -> None:
        self.is_out_of_memory = False
        self.do(self.raw("CONFIG", "SET", "maxmemory", 0))
