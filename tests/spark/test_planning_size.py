"""Whoever plans a batch holds ranges and numbers, however many rows wait to be read."""

from __future__ import annotations

import tracemalloc

import pytest

from chasquimq.spark.sources.events import EVENTS
from chasquimq.spark.sources.history import HISTORY
from chasquimq.spark.sources.options import parse_options
from chasquimq.spark.sources.planning import Planner, share_out
from chasquimq.store.inspect.ranges import RangeStore

TASKS = 4
# The first and the last entry of a stream come with the question how long it is.
BYTES_MAX = 256 * 1024


def fill_events(feed) -> int:
    for _ in range(60):
        feed.events(1_000)
    return 60_000


def fill_history(feed) -> int:
    for _ in range(4):
        feed.attempts(*[1_000] * 100)
    return 400


@pytest.fixture
def sent_bytes(feed):
    """How much the server has sent since it was asked last."""

    def ask() -> int:
        lines = feed.call("INFO", "stats").decode().split("\r\n")
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        return int(facts["total_net_output_bytes"])

    return ask


@pytest.mark.parametrize(("channel", "fill"), [(EVENTS, fill_events), (HISTORY, fill_history)])
def test_planning_a_backlog_brings_no_rows_to_the_driver(feed, options, sent_bytes, channel, fill):
    entry_count = fill(feed)
    parsed = parse_options(options | {"minPartitions": str(TASKS)})
    store = RangeStore(parsed.connection)
    planner = Planner(parsed, channel, store)
    start = planner.firsts([feed.queue])
    before = sent_bytes()
    tracemalloc.start()

    end = planner.advance(start, [feed.queue], None, None)
    tasks = share_out(planner.ranges(start, end), TASKS)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    came_bytes = sent_bytes() - before
    store.close()

    backlog_bytes = feed.call("MEMORY", "USAGE", channel.key(feed.queue), "SAMPLES", 0)
    print(f"{entry_count} entries, {backlog_bytes} bytes: {came_bytes} came, {peak_bytes} held")
    assert sum(part.found_count for task in tasks for part in task.ranges) == entry_count
    assert sum(len(task.ranges) for task in tasks) <= len(tasks)
    assert backlog_bytes > 6 * BYTES_MAX
    assert came_bytes <= BYTES_MAX
    assert peak_bytes <= BYTES_MAX
