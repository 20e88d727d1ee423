"""Names what is measured: scenarios, the plan of a measuring process, and the figures it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import msgspec

# 101 bytes of MessagePack.
PAYLOAD = {f"k{i}": f"v{i}" for i in range(15)}
SMALL_BYTES = 100
KIB = 1024
# What MessagePack adds to a text longer than 31 bytes, and to one longer than 255.
_SHORT_HEAD_BYTES, _LONG_HEAD_BYTES = 2, 3
_SHORT_TEXT_MAX = 255
Act = Literal["add", "consume", "arrive", "start"]
LoopKind = Literal["asyncio", "uvloop", "threads", "node"]
EventLevel = Literal["off", "terminal", "full"]

QUEUE = "bench"
JOB_NAME = "bench"
# Peers that only look at the stream know no queue, so the key is written here.
STREAM = "{chasqui:bench}:stream"
DELAYED = "{chasqui:bench}:delayed"
DLQ = "{chasqui:bench}:dlq"
EVENTS = "{chasqui:bench}:events"
HISTORY = "{chasqui:bench}:history"
CONCURRENCY = 100
# No side may take longer than this, however slow the machine is.
_WAIT_S_MIN = 60
_JOBS_PER_S_MIN = 500
# Of one core: a process that is this busy has nothing left to give.
BUSY_SHARE_MIN = 0.85
SERVER, CLIENT, NEITHER = "server", "client", "neither"


def payload_of(wanted_bytes: int) -> dict[str, str]:
    """The usual fields, with texts so long that MessagePack takes just so many bytes.

    Up to the usual size it is the usual payload; small texts have other heads.
    """
    if wanted_bytes <= SMALL_BYTES:
        return PAYLOAD
    names = list(PAYLOAD)
    head = _LONG_HEAD_BYTES if wanted_bytes > len(names) * _SHORT_TEXT_MAX else _SHORT_HEAD_BYTES
    fixed = 1 + sum(1 + len(name) + head for name in names)
    each, rest = divmod(wanted_bytes - fixed, len(names))
    return {name: "v" * (each + (at < rest)) for at, name in enumerate(names)}


# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does beyond running each job once."""

    delay_ms: int = 0
    fails_once: bool = False
    # What the handler returns, and the worker keeps.
    result: str | None = None
    events: EventLevel = "off"
    # A record of every attempt, which only we keep.
    has_history: bool = False

    @property
    def needs_promotion(self) -> bool:
        return self.delay_ms > 0 or self.fails_once

    @property
    def runs_per_job(self) -> int:
        return 2 if self.fails_once else 1


RUN_ONCE = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`in_flight` callers add side by side, `batch` jobs a call; or a worker empties the queue."""

    name: str
    # What it measures, in words for screens and pages.
    what: str
    act: Act
    jobs: int
    quick_jobs: int
    batch: int = 1
    in_flight: int = 1
    payload_bytes: int = SMALL_BYTES
    work: Work = RUN_ONCE
    has_redis_py: bool = False
    # Whether packages other than ChasquiMQ (Rust) are measured, too.
    has_peers: bool = False
    # Part of a run that has to be quick, unless scenarios are named.
    is_quick: bool = False


def _add(name: str, what: str, jobs: int, quick_jobs: int, **rest: int | bool) -> Scenario:
    return Scenario(name=name, what=what, act="add", jobs=jobs, quick_jobs=quick_jobs, **rest)  # pyright: ignore[reportArgumentType]


def _consume(
    name: str,
    what: str,
    jobs: int,
    quick_jobs: int,
    work: Work = RUN_ONCE,
    payload_bytes: int = SMALL_BYTES,
    **rest: bool,
) -> Scenario:
    return Scenario(
        name=name, what=what, act="consume", jobs=jobs, quick_jobs=quick_jobs, work=work,
        payload_bytes=payload_bytes, **rest,
    )  # fmt: skip


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _add("add", "one caller, one job a call",
             10_000, 2_000, has_peers=True),
        _add("add-concurrent", "100 callers side by side, one job a call",
             40_000, 10_000, in_flight=100, has_redis_py=True, has_peers=True, is_quick=True),
        _add("add-bulk-50", "one caller, 50 jobs a call",
             100_000, 30_000, batch=50, has_peers=True, is_quick=True),
        _add("add-bulk-50x8", "8 callers side by side, 50 jobs a call",
             100_000, 40_000, batch=50, in_flight=8),
        _add("add-bulk-1000", "one caller, 1,000 jobs a call",
             200_000, 40_000, batch=1_000),
        _consume("consume-100", "a handler that only looks at its payload, 100 jobs at once",
                 100_000, 20_000, has_peers=True, is_quick=True),
        _consume("consume-100-terminal", "consume-100 with events of ends only",
                 50_000, 10_000, Work(events="terminal")),
        _consume("consume-100-events", "consume-100 with all events",
                 30_000, 6_000, Work(events="full"), is_quick=True),
        _consume("consume-100-history", "consume-100 with a record of every attempt",
                 100_000, 20_000, Work(has_history=True)),
        _consume("consume-100-all", "consume-100 with all events and a record of every attempt",
                 30_000, 6_000, Work(events="full", has_history=True)),
        _consume("consume-results", "consume-100 with a short text returned, which is kept",
                 30_000, 6_000, Work(result="done"), has_peers=True),
        _consume("consume-1KiB", "consume-100 with a payload of 1 KiB",
                 50_000, 10_000, payload_bytes=KIB, has_peers=True),
        _consume("delayed-end-to-end", "jobs delayed by 1 ms: promoted, then run",
                 50_000, 10_000, Work(delay_ms=1), has_peers=True, is_quick=True),
        _consume("retry-throughput", "jobs that fail once and then succeed, with no wait between",
                 20_000, 3_000, Work(fails_once=True), has_peers=True, is_quick=True),
    )
}  # fmt: skip
# What is measured beyond the rate of a scenario.
_BEYOND = {
    "latency": "the wait from add to start, at 10 %, 50 % and 90 % of what a side can do",
    "growth-backlog": "rate and memory while the queue holds 10,000 to a million jobs",
    "growth-delayed": "due jobs beside as many that are not due",
    "growth-payload": "payloads of 100 B, 1 KiB and 64 KiB",
    "growth-processes": "1, 2 and 4 worker processes on one queue",
    "growth-leases": "what it costs to renew leases",
}
WHATS = {name: one.what for name, one in SCENARIOS.items()} | _BEYOND


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that one measuring process needs to know; peers read it as JSON."""

    act: Act
    jobs: int
    url: str
    loop: LoopKind
    wait_s: int
    batch: int = 1
    in_flight: int = 1
    # Where the recorded commands are, or go when `is_recording`.
    tape: str = ""
    work: Work = RUN_ONCE
    is_recording: bool = False
    concurrency: int = CONCURRENCY
    # How many processes share the work; each waits for the word to begin when there are more.
    processes: int = 1
    # Jobs that stay in the stream when the wanted ones have run.
    left: int = 0
    # None: as the package has it; 0: no lease is renewed. Only ours has the second.
    lease_ms: int | None = None
    # Open-loop arrivals: how many a second, for how long; 0 a second: as fast as answers come.
    arrivals_per_s: float = 0.0
    arrivals_s: float = 0.0
    queue: str = QUEUE
    stream: str = STREAM
    job_name: str = JOB_NAME
    payload: dict[str, str] = msgspec.field(default_factory=lambda: PAYLOAD)

    @property
    def calls_per_caller(self) -> int:
        return max(1, self.jobs // (self.batch * self.in_flight))


def wait_s(jobs: int) -> int:
    """When a measurement of so many jobs counts as stuck."""
    return _WAIT_S_MIN + jobs // _JOBS_PER_S_MIN


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured, and with what."""

    jobs: int
    seconds: float
    cpu_seconds: float
    version: str
    loop: LoopKind
    # On the clock that all processes of a machine share.
    began_s: float
    concurrency: int
    payload_digest: str
    # What the server's main thread did meanwhile, of one core; None where it could not be seen.
    server_cpu_share: float | None = None

    @property
    def jobs_per_s(self) -> float:
        return self.jobs / self.seconds

    @property
    def cpu_us_per_job(self) -> float:
        return self.cpu_seconds / self.jobs * 1e6


# ── medians ───────────────────────────────────────────────────────────────────────────────────────


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def bound_by(figures: Sequence[Figures], processes: int = 1) -> str | None:
    """Who had no processor time left: the server's thread, the measured process, or neither.

    Both at once counts as the server: no client could have been faster.
    """
    shares = [one.server_cpu_share for one in figures if one.server_cpu_share is not None]
    if not shares:
        return None
    if median(shares) >= BUSY_SHARE_MIN:
        return SERVER
    own = median(one.cpu_seconds / one.seconds / processes for one in figures)
    return CLIENT if own >= BUSY_SHARE_MIN else NEITHER
