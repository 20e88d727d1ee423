"""The rules by which a history is judged; each names what breaks it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from chasquimq.wire.history import AttemptOutcome
from support.journal import END_ERR, OPEN_S, Life, Run

if TYPE_CHECKING:
    from support.checker import Case

# What the clocks of a machine and its server may differ by when both are read.
_READING_MS = 2
# Faults after which a job may have to start again.
_UNSETTLING = frozenset({"kill", "stop", "cut", "restart", "term"})
# Faults under which a worker cannot know that its lease ran out, or only afterwards.
_BLINDING = frozenset({"stop"})
_SEVERING = frozenset({"cut", "restart"})
# What a worker counts, and which rows of the history that should be.
_COUNTED = {
    "completed": {AttemptOutcome.COMPLETED},
    "retried": {AttemptOutcome.RETRIED, AttemptOutcome.SNOOZED},
    "buried": {AttemptOutcome.DEAD, AttemptOutcome.REJECTED},
    "stale_outcomes": {AttemptOutcome.STALE},
    "unproven_outcomes": {AttemptOutcome.UNPROVEN},
}


def lost(case: Case) -> Iterator[str]:
    """Every acknowledged add has come to an end, and nothing is left to do."""
    ended = case.done | set(case.places.dead) | case.cancelled
    queued = Counter(case.places.queued)
    for life in case.lives:
        if life not in ended and not queued[life[0]]:
            yield f"{_name(life)} was acknowledged and is nowhere"
    if case.evidence.is_drained:
        yield from (f"{job_id} is still queued after the drain" for job_id in queued)


def multi_terminal(case: Case) -> Iterator[str]:
    """A job ends once in each of its lives: completed, dead or cancelled."""
    dead = Counter(case.places.dead)
    completed = Counter(
        one.job_id for one in case.places.attempts if one.outcome is AttemptOutcome.COMPLETED
    )
    for life in {*dead, *case.done, *case.cancelled, *((job_id, 0) for job_id in completed)}:
        ends = dead[life] + (life in case.cancelled)
        # Rows tell of commits, but not of which life; a clean end in the journal tells of one, too.
        proven = completed[life[0]] if not case.replays[life[0]] else 0
        ends += max(proven, int(ends > 0 and life in case.cleanly_done))
        if ends > 1:
            yield f"{_name(life)} ended {ends} times"


def over_attempts(case: Case) -> Iterator[str]:
    """No life has more starts than attempts, crashes included."""
    limit = case.evidence.attempts_max
    for life, runs in case.runs.items():
        if len(runs) > limit:
            yield f"{_name(life)} was started {len(runs)} times, {limit} are allowed"


def early(case: Case) -> Iterator[str]:
    """Nothing starts before its time, by the server's clock."""
    for life, runs in case.runs.items():
        not_before_s = case.not_before_s.get(life[0], 0.0)
        if life[1] == 0 and runs[0].from_s < not_before_s - _READING_MS / 1000:
            yield f"{_name(life)} started {not_before_s - runs[0].from_s:.3f} s before its delay"
    for run, late_ms in case.late_ms:
        if late_ms < -_READING_MS:
            yield f"{run.job_id} started {-late_ms:.0f} ms before it was due"


def late(case: Case) -> Iterator[str]:
    """What falls due starts soon after."""
    p99_ms = case.late_percentile_ms(0.99)
    if p99_ms > case.evidence.late_p99_ms_max:
        yield f"one in a hundred started {p99_ms:.0f} ms late or more"


def overlap(case: Case) -> Iterator[str]:
    """A job is never run by two at once, unless one of them could not know."""
    for life, runs in case.runs.items():
        for earlier, later in pairwise(runs):
            if later.from_s < earlier.to_s and not _is_blind(case, earlier, later):
                yield f"{_name(life)} ran in {earlier.pid} and {later.pid} at once"


def dup_starts(case: Case) -> Iterator[str]:
    """Only what was in flight when something broke is started again."""
    for life, runs in case.runs.items():
        for earlier, later in pairwise(runs):
            is_again = earlier.delivery == later.delivery
            if is_again and not case.was_unsettled(earlier):
                yield f"{_name(life)} was started again without a reason, in {later.pid}"


def metrics(case: Case) -> Iterator[str]:
    """What a worker counted is what its history says, if it had the time to write it."""
    rows = Counter((one.worker, one.outcome) for one in case.places.attempts)
    for text in case.exits:
        counters = json.loads(text)
        worker = counters["worker"]
        if worker not in case.places.ended_workers:
            continue
        for name, outcomes in _COUNTED.items():
            written = sum(rows[worker, outcome] for outcome in outcomes)
            if written != counters[name]:
                yield f"{worker} counted {counters[name]} {name}, its history has {written}"


def leftovers(case: Case) -> Iterator[str]:
    """Nothing is left behind: no ghosts, no holders, no keys that would stay for ever."""
    places = case.places
    yield from (f"{entry_id} is pending and not in the stream" for entry_id in places.ghosts)
    if case.evidence.is_drained:
        yield from (f"{name} still holds entries" for name in places.holders)
    yield from (f"{key} has no time to live" for key in places.timeless)
    idle = set(places.indexed) - set(places.delayed)
    yield from (f"{job_id} is indexed as delayed and is not" for job_id in idle)


def events(case: Case) -> Iterator[str]:
    """Events tell of ends that were committed, each once."""
    told = Counter(case.places.events)
    done = {job_id for job_id, _ in case.done}
    dead = Counter(job_id for job_id, _ in case.places.dead)
    queued = set(case.places.queued)
    for (kind, job_id), count in told.items():
        if kind not in ("completed", "dlq"):
            continue
        lives = 1 + case.replays[job_id]
        if count > lives:
            yield f"{job_id} was told {kind} {count} times"
        if kind == "completed" and (job_id not in done or job_id in queued):
            yield f"{job_id} was told completed and is not"
        if kind == "completed" and dead[job_id] >= lives:
            yield f"{job_id} was told completed and is dead"
        if kind == "dlq" and not dead[job_id] and not case.replays[job_id]:
            yield f"{job_id} was told dead and is not in the DLQ"


def doubled_adds(case: Case) -> Iterator[str]:
    """An add makes at most one job, whether its caller heard so or not."""
    queued = Counter(case.places.queued)
    for life, runs in case.runs.items():
        entries = len({run.delivery for run in runs})
        # Each failure may move the job to another entry, and each move is one entry.
        moves = sum(run.end == END_ERR for run in runs)
        if entries > 1 + moves:
            yield f"{_name(life)} came in {entries} entries"
    for job_id, count in queued.items():
        if count > 1:
            yield f"{job_id} is queued {count} times"


RULES: dict[str, Callable[[Case], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        lost, multi_terminal, over_attempts, early, late, overlap, dup_starts, metrics, leftovers,
        events, doubled_adds,
    )
}  # fmt: skip


def is_unsettling(kind: str) -> bool:
    return kind in _UNSETTLING


def _is_blind(case: Case, earlier: Run, later: Run) -> bool:
    """Whether the first of two could not know, or knew and was told to stop its effects."""
    until_s = min(earlier.to_s, OPEN_S)
    for fault in case.faults_of(earlier.pid):
        is_during = fault.from_s <= until_s and fault.to_s >= earlier.from_s
        if not is_during or fault.from_s > later.from_s:
            continue
        if fault.kind in _BLINDING:
            return True
        if fault.kind in _SEVERING and (earlier.pid, earlier.job_id) in case.leases_lost:
            return True
    return False


def _name(life: Life) -> str:
    job_id, generation = life
    return job_id if generation == 0 else f"{job_id} (replayed {generation} times)"
