"""What a write that Spark ends says: which run adds the rest, and whether anything was added."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from chasquimq.errors import WriteFailed

pytestmark = pytest.mark.takes_turns
OURS = "Traceback:\nchasquimq.errors.SettingsError: idColumn must be a column, got 'ID'\n"


class FailingFrame:
    """A DataFrame that no query can read; it knows with which options that was tried."""

    sparkSession = SimpleNamespace()  # noqa: N815  Spark's name

    def __init__(self, said: str) -> None:
        self.tried: list[dict[str, str]] = []
        self._said = said

    @property
    def write(self) -> FailingFrame:
        return self

    def format(self, _name: str) -> FailingFrame:
        return self

    def options(self, **options: str) -> FailingFrame:
        self.tried.append(options)
        return self

    def mode(self, _mode: str) -> FailingFrame:
        return self

    def save(self) -> None:
        raise PySparkException(self._said)


@pytest.mark.parametrize("said", ["disk gone", OURS], ids=["of Spark", "of ours"])
def test_a_look_that_fails_names_the_run_of_the_caller(add, said):
    frame = FailingFrame(said)

    with pytest.raises(WriteFailed) as failed:
        add(frame, check_first=True, run_id="nightly")

    (look,) = frame.tried
    assert look["dryRun"] == "true"
    # The figures of the look must not be taken for those of the write.
    assert look["runId"] != "nightly"
    assert failed.value.run == "nightly"
    assert look["runId"] not in str(failed.value)


def test_a_look_that_fails_says_that_none_was_added(add):
    with pytest.raises(WriteFailed) as failed:
        add(FailingFrame("disk gone"), check_first=True)

    assert str(failed.value).endswith("disk gone; put that right and try again: none was added")
    assert failed.value.run


def test_a_write_that_fails_names_the_run_that_adds_the_rest(add):
    with pytest.raises(WriteFailed) as failed:
        add(FailingFrame("disk gone"), run_id="nightly")

    assert failed.value.run == "nightly"
    assert str(failed.value).endswith("where runId=nightly adds only rows that are missing")
