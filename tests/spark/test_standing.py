"""How far the channels were read, by the last offsets and the server: needs no JVM."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from chasquimq.settings import ConnectionSettings
from chasquimq.spark.pipeline.audit.read_progress import TO_THE_TAIL, ask_standing
from chasquimq.spark.pipeline.sampler import ServerSampler
from chasquimq.store.inspect.ranges import RangeStore

pytestmark = pytest.mark.takes_turns


@pytest.fixture
def read_until(url, queue_name, tmp_path):
    """Until when the history of the queue was read, as an audit is told."""
    settings = ConnectionSettings(url=url)
    sampler, store = ServerSampler(settings), RangeStore(settings)

    def ask() -> datetime | None:
        standing = ask_standing(tmp_path, {queue_name: "history"}, sampler, store)
        return standing.read_until.get(queue_name)

    yield ask
    sampler.close()
    store.close()


@pytest.fixture
def checkpoint(tmp_path, queue_name):
    """Writes what Spark writes when a batch is done."""

    def done(place: str) -> None:
        folder = tmp_path / "_pipeline" / "history" / "checkpoint"
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "offsets" / "3").write_text(f"v1\n{{}}\n{json.dumps({queue_name: place})}")
        (folder / "commits" / "3").write_text("v1\n{}")

    return done


def test_a_channel_that_was_read_to_its_last_entry_was_read_to_the_tail(
    feed, checkpoint, read_until
):
    checkpoint(f"{feed.attempts(1, 1)[-1]}@2")

    assert read_until() == TO_THE_TAIL


def test_a_channel_with_entries_ahead_was_read_until_its_last_offset(feed, checkpoint, read_until):
    checkpoint("1700000000000-0@1")
    feed.attempts(1)

    assert read_until() == datetime.fromtimestamp(1_700_000_000, UTC)


def test_of_a_channel_that_nobody_began_to_read_nothing_is_known(feed, read_until):
    feed.attempts(1)

    assert read_until() is None


def test_a_channel_without_entries_was_read_to_its_tail(read_until):
    assert read_until() == TO_THE_TAIL
