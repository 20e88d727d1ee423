"""What must be true of every job, whatever happened to its queue: the model and its rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from machine.picture import Picture, kind_of


@dataclass
class Account:
    """One job as its adder knows it."""

    job_id: str
    budget: int
    data: object
    generation: int = 0
    run_numbers: dict[int, list[int]] = field(default_factory=dict)
    # Generations whose completion was sent, whether or not its answer was heard.
    completing: set[int] = field(default_factory=set)
    is_cancelled: bool = False
    # An operator deleted its entry, or the group with its counts: only liveness is promised.
    is_destroyed: bool = False

    @property
    def may_be_gone(self) -> bool:
        return self.is_cancelled or self.is_destroyed or self.generation in self.completing


class Ledger:
    """Every job of a queue, and what was seen to be wrong with them."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.ghosts: set[bytes] = set()
        self.wrongs: list[str] = []
        # Runs whose entry may be somebody else's, because its lease ran out.
        self.doubtful: set[bytes] = set()
        self._last: Picture | None = None

    def open(self, job_id: str, data: object, budget: int) -> None:
        """A job was added; an id that was cancelled may come again."""
        known = self.accounts.get(job_id)
        assert known is None or known.is_cancelled, f"{job_id} was added twice"
        self.accounts[job_id] = Account(job_id, budget, data)

    def started(self, run, open_runs) -> None:
        account = self.accounts[run.job_id]
        number = run.delivery.run_number
        earlier = account.run_numbers.setdefault(run.generation, [])
        self._note(run.data != account.data, f"{run.job_id} came with {run.data!r}")
        self._note(number > account.budget, f"{run.job_id} started as number {number}")
        is_ended = run.delivery.entry_id in run.worker.ending_ids()
        self._note(is_ended, f"{run.job_id} started although its end is on its way")
        if not account.is_destroyed:
            is_new = not earlier or number > max(earlier)
            self._note(not is_new, f"{run.job_id} started as {number} after {earlier}")
            is_alone = all(
                other.delivery.entry_id != run.delivery.entry_id or self._may_overlap(other, run)
                for other in open_runs
            )
            self._note(not is_alone, f"{run.job_id} runs twice at once, and no lease ran out")
        earlier.append(number)

    def completing(self, deliveries) -> None:
        """Completions of these are on their way to the server."""
        for delivery in deliveries:
            generation = (delivery.extras or {}).get("generation", 0)
            self.accounts[delivery.job_id].completing.add(generation)

    def replayed(self, job_ids) -> None:
        """These left the DLQ as their own next generation."""
        for job_id in job_ids:
            self.accounts[job_id].generation += 1

    def destroyed(self, job_ids) -> None:
        for job_id in job_ids:
            self.accounts[job_id].is_destroyed = True

    def compare(self, picture: Picture) -> None:
        """Hold what is on the server against what must be there."""
        last, self._last = self._last, picture
        places = picture.places
        self._note(places.keys() - self.accounts.keys(), f"unknown jobs in {places}")
        for account in self.accounts.values():
            self._compare_one(account, places[account.job_id])
        self._compare_ends(picture, places)
        ghosts = picture.pending.keys() - picture.stream.keys() - self.ghosts
        self._note(ghosts, f"pending without a body: {ghosts}")
        strange = [key for key in picture.keys if kind_of(key) is None]
        self._note(strange, f"keys that nobody knows: {strange}")
        if last is not None:
            early = last.future_ids(picture.now_ms) & set(picture.stream.values())
            self._note(early, f"started to run before their time: {early}")

    def _compare_one(self, account: Account, count: int) -> None:
        self._note(count > 1, f"{account.job_id} is in {count} places")
        self._note(count == 0 and not account.may_be_gone, f"{account.job_id} is lost")
        is_back = count and account.is_cancelled
        self._note(is_back, f"{account.job_id} was cancelled and is there")

    def _compare_ends(self, picture: Picture, places: Counter[str]) -> None:
        results = picture.ids_of("result")
        orphans = {one for one in results if not self.accounts[one].completing}
        self._note(orphans, f"results of jobs that never completed: {orphans}")
        alive = results & places.keys()
        self._note(alive, f"results of jobs that are still there: {alive}")
        ended = picture.ids_of("outcome") & (places.keys() - set(picture.dlq))
        self._note(ended, f"ended, and yet waiting to run: {ended}")

    def _may_overlap(self, other, run) -> bool:
        is_elsewhere = other.worker is not run.worker
        return is_elsewhere and other.delivery.entry_id in self.doubtful

    def _note(self, is_wrong: object, what: str) -> None:
        if is_wrong:
            self.wrongs.append(what)
