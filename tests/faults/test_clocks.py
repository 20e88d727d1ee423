"""Clocks that are wrong by a day: only the server's decides when a job is due."""

from __future__ import annotations

import pytest

from support.clock_skew import DAY_S, skewed_environment
from support.failing_worker import FailingFleet
from support.journal import read_journals
from support.trial import clock_offset_ms
from support.waiting import patience

JOBS = 2_000
RETRY_SHARE = 0.25
LATE_P99_MS = 200
# The server's clock has milliseconds, and asking it takes a fraction of one.
READING_MS = 2


@pytest.fixture
def fleet(url, queue_name, tmp_path):
    fleet = FailingFleet(url, queue_name, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def skewed(request):
    """The environment of a process whose clock is off by so many seconds."""
    folder = request.config.cache.mkdir("clock_skew")
    return lambda skew_s: skewed_environment(folder, skew_s)


async def test_no_job_runs_early_or_late_when_every_clock_but_the_servers_is_wrong(
    fleet, trial, raw, skewed, tmp_path, kind
):
    for skew_s in (DAY_S, -DAY_S):
        await fleet.start("fails_once", environment=skewed(skew_s))
    before_ms = await clock_offset_ms(raw)

    producer = fleet.launch(
        "produce", environment=skewed(-DAY_S), seed=7, count=JOBS, bulk=100,
        delay_ms=[500, 4_000], retry_share=RETRY_SHARE, pause_s=0.05,
    )  # fmt: skip
    await producer.until_exit()
    await trial.drain(within_s=15)
    await fleet.stop_all()

    after_ms = await clock_offset_ms(raw)
    seen = Sightings(read_journals(tmp_path), (before_ms + after_ms) / 2)
    verdict = await trial.verdict(attempts_max=2)
    print(f"{kind.label}: {seen}; {verdict.line}")
    verdict.demand()
    assert abs(after_ms - before_ms) < READING_MS
    assert seen.skews_d == {"produced": {-1}, "ran": {-1, 1}}
    assert (seen.added, seen.runs) == (JOBS, JOBS + seen.retries)
    assert abs(seen.retries - JOBS * RETRY_SHARE) < 100
    assert seen.early == 0
    assert seen.late_ms(0.99) <= LATE_P99_MS * patience()
    assert await raw.dlq() == []


class Sightings:
    """When each job should have started, and when it did, by the server's clock."""

    def __init__(self, lines, offset_ms):
        self.added = self.runs = self.retries = self.early = 0
        # How far each process's own clock was off, in days, by what the process did.
        self.skews_d = {"produced": set(), "ran": set()}
        self._offset_ms = offset_ms
        self._late_ms = []
        self._adding_s = 0.0
        self._not_before_s = {}
        for line in lines:
            getattr(self, f"_{line.event}", lambda _: None)(line)
        self._late_ms.sort()

    def late_ms(self, share):
        return self._late_ms[int(share * (len(self._late_ms) - 1))]

    def _adding(self, line):
        self._adding_s = line.t_s

    def _added(self, line):
        self.added += 1
        self._not_before_s[line.job_id] = self._adding_s + line.attempt / 1000

    def _produced(self, line):
        self.skews_d["produced"].add(self._skew_d(line))

    def _start(self, line):
        self.runs += 1
        # Whatever starts before its add returned is early too: no delay here is that short.
        self.early += line.t_s < self._not_before_s.get(line.job_id, float("inf"))

    def _due(self, line):
        late_ms = self._server_ms(line) - line.attempt
        self.early += late_ms < -READING_MS
        self._late_ms.append(late_ms)

    def _ran(self, line):
        self.skews_d["ran"].add(self._skew_d(line))

    def _end_err(self, line):
        self.retries += 1

    def _server_ms(self, line):
        return line.t_s * 1000 + self._offset_ms

    def _skew_d(self, line):
        return round((line.attempt - self._server_ms(line)) / DAY_S / 1000, 3)

    def __str__(self):
        return (
            f"{self.added} jobs, {self.retries} retries, early {self.early}, late p50 "
            f"{self.late_ms(0.5):.0f} ms, p99 {self.late_ms(0.99):.0f} ms, "
            f"max {self.late_ms(1):.0f} ms"
        )
