"""One events stream, two packages: each reads every event of the other, and both read the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import pytest

from chasquimq import Queue
from support.package_side import PackageSide
from support.raw import Raw
from support.waiting import eventually

# Runs of handlers, and ends of jobs: one of them cannot be read and never starts.
RUNS, ENDS = 11, 11

# What happens to the jobs that `act.py add` adds, by name; a name may stand for several jobs.
HAPPENS = {
    "plain": ["active", "completed"],
    "": ["active", "completed"],
    "delayed": ["waiting", "active", "completed"],
    "own id": ["waiting", "active", "completed"],
    "retried": ["active", "failed", "retry-scheduled", "waiting", "active", "completed"],
    "bulk": ["active", "completed"] * 2,
    "buried": ["active", "failed", "dlq"],
    "given up": ["active", "failed", "dlq"],
    "repeated": ["active", "completed"],
}
# Every event has these fields, as the original spells them, whatever else its writer adds.
FIELDS = {
    "waiting": {"ts"},
    "active": {"ts", "attempt"},
    "completed": {"ts", "attempt", "duration_us"},
    "failed": {"ts", "attempt", "reason", "duration_us"},
    "retry-scheduled": {"ts", "attempt", "backoff_ms"},
    "dlq": {"ts", "attempt", "reason"},
    "drained": {"ts"},
    "delayed": {"ts", "delay_ms"},
}
NUMBERS = {"ts", "attempt", "duration_us", "backoff_ms", "delay_ms"}
# Numbers that only we write and read as such; to the original they are text.
OUR_NUMBERS = {"enq", "dc", "due"}


class Event(NamedTuple):
    """An event as its reader gave it out."""

    name: str
    job_id: str | None
    job_name: str
    fields: dict[str, Any]

    @property
    def as_text(self) -> tuple[Any, ...]:
        """The same for both readers, which differ in what they turn into numbers."""
        fields = {
            field: str(value) if field in OUR_NUMBERS else value
            for field, value in self.fields.items()
        }
        return (self.name, self.job_id, self.job_name, fields)


def follow(side: PackageSide, count: int) -> list[Event]:
    return [Event(*parts) for parts in side.answer("follow.py", str(count))]


@pytest.fixture
def original(original_python, shared_url, queue_name) -> PackageSide:
    return PackageSide(original_python, shared_url, queue_name)


@pytest.fixture
def ours(shared_url, queue_name) -> PackageSide:
    return PackageSide.ours(shared_url, queue_name)


@pytest.fixture(params=["ours", "original"])
def writer(request, original, ours) -> PackageSide:
    return ours if request.param == "ours" else original


@pytest.fixture
async def shared_raw(shared_url, queue_name):
    raw = await Raw.open(shared_url, queue_name)
    yield raw
    await raw.close()


@pytest.fixture
async def count(writer, ours, shared_raw, shared_url, queue_name) -> int:
    """How many events there are when everything has happened that can."""
    raw = shared_raw
    await raw("XADD", raw.keys.stream, "*", "x", "no payload")
    ours("add")
    writer("work", RUNS, ENDS)
    # Only ours writes it, though both read it.
    before = await raw("XLEN", raw.keys.events)
    async with Queue(queue_name, redis_url=shared_url, events_enabled=True) as queue:
        await queue.add("later", 1, delay_ms=3_600_000)
    await eventually(lambda: _holds(raw, before + 1))
    return before + 1


async def _holds(raw: Raw, event_count: int) -> bool:
    return await raw("XLEN", raw.keys.events) == event_count


def test_both_read_the_same_from_either(original, ours, count):
    by_the_original, by_ours = follow(original, count), follow(ours, count)

    assert [event.as_text for event in by_ours] == [event.as_text for event in by_the_original]


def test_either_reads_everything_that_happened(writer, original, ours, count):
    reader = original if writer is ours else ours

    events = follow(reader, count)

    happened = defaultdict(Counter)
    names = {event.job_id: event.job_name for event in events if event.name == "active"}
    for event in events:
        if event.job_id in names:
            happened[names[event.job_id]][event.name] += 1
    assert happened == {name: Counter(events) for name, events in HAPPENS.items()}
    assert {event.name for event in events} == FIELDS.keys()


def test_every_field_is_there_and_every_number_is_one(writer, original, ours, count):
    reader = original if writer is ours else ours

    events = follow(reader, count)

    lacking = [(e.name, FIELDS[e.name] - e.fields.keys()) for e in events]
    assert [one for one in lacking if one[1]] == []
    values = {(field, type(value)) for e in events for field, value in e.fields.items()}
    assert {kind for field, kind in values if field in NUMBERS} == {int}
    assert {kind for field, kind in values if field == "reason"} == {str}


def test_what_is_about_no_job_has_no_id(writer, original, ours, count):
    reader = original if writer is ours else ours

    nameless = [event for event in follow(reader, count) if event.job_id is None]

    assert {event.name for event in nameless} == {"drained", "dlq"}
    (unreadable,) = [event for event in nameless if event.name == "dlq"]
    assert (unreadable.fields["attempt"], unreadable.fields["reason"]) == (0, "malformed")


def test_attempts_reasons_and_waits_mean_the_same(writer, original, ours, count):
    reader = original if writer is ours else ours

    events = follow(reader, count)

    ids = {event.job_name: event.job_id for event in events if event.name == "active"}
    told = defaultdict(list)
    for event in events:
        if event.job_id in (ids["retried"], ids["given up"]) and event.name != "waiting":
            told[event.job_name].append(
                (event.name, event.fields["attempt"], event.fields.get("reason"))
            )
    assert told == {
        "retried": [
            ("active", 1, None), ("failed", 1, "not now"), ("retry-scheduled", 2, None),
            ("active", 2, None), ("completed", 2, None),
        ],
        "given up": [
            ("active", 1, None), ("failed", 1, "not now"), ("dlq", 1, "retries_exhausted"),
        ],
    }  # fmt: skip
