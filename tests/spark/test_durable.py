"""What counts is on disk before it counts: files before their manifest, logs before it is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chasquimq.spark.lake.checkpoints import Checkpoint
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.manifest import Manifest
from support.rows import attempt, batch

TABLE = "bronze_attempts"


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


@pytest.fixture
def synced(monkeypatch) -> list[Path]:
    """Files and folders that were put on disk, in turn."""
    seen: list[Path] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return seen


def test_a_file_and_its_name_are_on_disk_before_anybody_hears_of_it(lake, synced):
    (facts,) = write_table(lake.path, TABLE, batch(TABLE, attempt()), "test")

    path = lake.path / TABLE / facts.path
    assert synced == [path, path.parent, path.parent.parent]


def test_a_manifest_and_its_name_are_on_disk_when_it_counts(lake, synced):
    pending = Checkpoint(lake.path, "history").pending

    pending.write(Manifest(once=Once("a", 0), changes=[]))

    folder = lake.path / "_pipeline" / "history"
    assert [path.name for path in synced[:-1]] == ["pending.draft"]
    assert synced[-1] == folder


def test_what_a_manifest_did_is_on_disk_before_the_manifest_is_gone(lake, synced):
    pending = Checkpoint(lake.path, "history").pending
    files = write_table(lake.path, TABLE, batch(TABLE, attempt()), "test")
    pending.write(Manifest(once=Once("a", 0), changes=[Change(table=TABLE, adds=files)]))
    synced.clear()

    pending.settle(lake)

    log = lake.path / TABLE / "_delta_log"
    assert synced == [log / f"{1:020}.json", log]


def test_the_name_of_whoever_counts_batches_is_on_disk(lake, synced):
    made = Checkpoint(lake.path, "history").app_id

    folder = lake.path / "_pipeline" / "history"
    assert (folder / "app_id").read_text() == made
    assert folder in synced
