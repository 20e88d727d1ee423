"""What is written down about a replay: asked at any moment, and gone where it cannot be kept true."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chasquimq.cli.dlq.outcome import FOLDER, ReplayRecorder, replays


@pytest.fixture
def lake(tmp_path) -> Path:
    (tmp_path / "silver_attempts" / "_delta_log").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def recorder(lake) -> Iterator[ReplayRecorder]:
    recorder = ReplayRecorder(lake, "q", datetime.now(UTC))
    yield recorder
    recorder._close()


@pytest.fixture
def just_then(monkeypatch):
    """Does something once, right before or after a call of the standard library."""

    def arrange(place, name: str, act, *, is_after: bool = False) -> None:
        real = getattr(place, name)

        def called(*args):
            monkeypatch.setattr(place, name, real)
            if not is_after:
                act()
            answer = real(*args)
            if is_after:
                act()
            return answer

        monkeypatch.setattr(place, name, called)

    return arrange


def fail(*_args) -> None:
    raise OSError("no space left")


def test_jobs_are_written_down_before_the_first_of_them_moves(lake, recorder):
    recorder.begin(["a", "b"])
    ((record, state, sent),) = replays(lake)

    assert (record.job_ids, record.is_ended) == (["a", "b"], False)
    assert (state, sent) == ("running", set())
    recorder.note(["a"])
    assert replays(lake)[0].sent == {"a"}
    assert recorder.end(["a"]) == record.replay
    assert replays(lake)[0].state == "ended"


def test_replays_of_the_same_second_are_told_newest_first(lake):
    began_at = datetime(2026, 11, 20, 12, tzinfo=UTC)
    moments = [began_at + timedelta(milliseconds=at) for at in range(8)]
    for moment in moments:
        recorder = ReplayRecorder(lake, "q", moment)
        recorder.begin(["a"])
        recorder.end(["a"])

    assert [one.record.replayed_at for one in replays(lake)] == moments[::-1]


def test_a_replay_that_sent_nothing_leaves_nothing(lake, recorder):
    recorder.begin(["a", "b"])

    assert recorder.end([]) is None
    assert list((lake / FOLDER).iterdir()) == []


@pytest.mark.parametrize("failing", ["lock", "record", "note", "end"])
def test_a_replay_that_cannot_be_written_down_is_never_told_as_cut(
    lake, recorder, monkeypatch, capsys, failing
):
    if failing in ("lock", "record"):
        monkeypatch.setattr(*{"lock": (fcntl, "flock"), "record": (os, "fsync")}[failing], fail)
    recorder.begin(["a", "b"])
    if failing == "note":
        with Path(os.devnull).open("rb") as unwritable:
            os.dup2(unwritable.fileno(), recorder._log.fileno())
    recorder.note(["a"])
    if failing == "end":
        monkeypatch.setattr(os, "fsync", fail)

    assert recorder.end(["a", "b"]) is None
    assert list((lake / FOLDER).iterdir()) == []
    assert capsys.readouterr().err.count("the replay is not written down") == 1


def test_whoever_sees_a_record_sees_that_its_replay_runs(lake, recorder, just_then):
    seen = []
    just_then(Path, "replace", lambda: seen.extend(replays(lake)), is_after=True)

    recorder.begin(["a"])
    recorder.end(["a"])

    assert [one.state for one in seen] == ["running"]


@pytest.mark.parametrize("sent", [["a", "b"], []])
@pytest.mark.parametrize("moment", ["after the record is read", "before the lock is tried"])
def test_a_replay_that_ends_while_it_is_looked_at_is_not_told_as_cut(
    lake, recorder, just_then, moment, sent
):
    recorder.begin(["a", "b"])
    if moment == "after the record is read":
        just_then(Path, "read_bytes", lambda: recorder.end(sent), is_after=True)
    else:
        just_then(fcntl, "flock", lambda: recorder.end(sent))

    told = [(one.state, one.sent) for one in replays(lake)]

    assert told == ([("ended", {"a", "b"})] if sent else [])


def test_a_record_that_goes_before_it_is_read_is_none(lake):
    (lake / FOLDER).mkdir()
    # Its name is there, and nothing behind it.
    (lake / FOLDER / "gone.json").symlink_to("nowhere")

    assert replays(lake) == []
