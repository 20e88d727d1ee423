"""What bronze says about each queue: that it is there, and which of its entries was the last."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chasquimq.spark.lake.extent import last_ids, queues_in
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS, BRONZE_EVENTS
from support.rows import DAY, attempt, batch, dated

YESTERDAY = DAY - timedelta(days=1)


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


def append(lake: Lake, *rows: dict, table: str = BRONZE_ATTEMPTS.name) -> None:
    lake.commit(Change(table=table, adds=write_table(lake.path, table, batch(table, *rows), "t")))


def test_the_last_entry_is_the_highest_number_not_the_last_text(lake):
    ids = ["9-1", "10-9", "10-10", "10-2"]
    append(lake, *(attempt(queue="mail", stream_id=one) for one in ids))
    append(lake, attempt(queue="o'brien", stream_id="3-0"))

    found = last_ids(lake, BRONZE_ATTEMPTS, ["mail", "o'brien", "nobody"])

    assert found == {"mail": "10-10", "o'brien": "3-0"}


def test_a_queue_that_was_quiet_today_is_found_on_the_day_before(lake):
    append(lake, attempt(queue="mail", stream_id="20-0"))
    append(lake, dated(attempt(queue="mail", stream_id="9-0"), YESTERDAY))
    append(lake, dated(attempt(queue="shop", stream_id="8-0"), YESTERDAY))

    assert last_ids(lake, BRONZE_ATTEMPTS, ["mail", "shop"]) == {"mail": "20-0", "shop": "8-0"}


def test_older_days_are_not_read_once_every_queue_is_found(lake):
    append(lake, attempt(queue="mail", stream_id="20-0"))
    append(lake, dated(attempt(queue="mail", stream_id="9-0"), YESTERDAY))
    (old,) = lake.files(BRONZE_ATTEMPTS.name, YESTERDAY.isoformat())
    old.unlink()

    assert last_ids(lake, BRONZE_ATTEMPTS, ["mail"]) == {"mail": "20-0"}


def test_every_queue_of_any_day_is_there(lake):
    row = {"queue": "mail", "event": "active", "event_date": DAY}
    append(lake, row, row, {**row, "queue": "a b"}, table=BRONZE_EVENTS.name)
    append(lake, {**row, "queue": "shop", "event_date": YESTERDAY}, table=BRONZE_EVENTS.name)

    assert queues_in(lake, BRONZE_EVENTS) == {"mail", "a b", "shop"}
    assert queues_in(lake, BRONZE_ATTEMPTS) == set()


def test_a_folder_without_tables_holds_nothing(tmp_path):
    assert queues_in(Lake(tmp_path), BRONZE_EVENTS) == set()
    assert last_ids(Lake(tmp_path), BRONZE_EVENTS, ["mail"]) == {}
