"""Labels around sinks: stacked, merged, refused."""

import pytest

from chasquimq.errors import SettingsError
from chasquimq.telemetry.memory import InMemorySink
from chasquimq.telemetry.sink import (
    RECORD_METHODS,
    RESERVED_LABELS,
    JobOutcome,
    Labeled,
    MetricsSink,
    QueueLabeled,
)

OK = JobOutcome("ok", 1, 5, "mail")


class Plain(MetricsSink):
    """Knows no labels."""

    def __init__(self):
        self.heard = []

    def job_outcome(self, outcome):
        self.heard.append(outcome)


def test_stacked_labels_add_up_whatever_their_order():
    sink = InMemorySink()

    Labeled(QueueLabeled(sink, "emails"), tenant="a", region="b").job_outcome(OK)
    QueueLabeled(Labeled(sink, tenant="a", region="b"), "emails").job_outcome(OK)

    assert sink.jobs_completed(queue="emails", tenant="a", region="b") == 2


def test_each_record_is_counted_once_however_many_wrappers_it_passes():
    sink = InMemorySink()

    Labeled(Labeled(QueueLabeled(sink, "emails"), tenant="a"), region="b").job_outcomes([OK])

    assert sink.jobs_completed() == 1


def test_the_outer_of_two_equal_labels_holds():
    sink = InMemorySink()

    QueueLabeled(QueueLabeled(sink, "inner"), "outer").job_outcome(OK)

    assert (sink.jobs_completed(queue="outer"), sink.jobs_completed(queue="inner")) == (1, 0)


def test_a_sink_without_labels_gets_the_records_as_they_are():
    sink = Plain()

    Labeled(QueueLabeled(sink, "emails"), tenant="a").job_outcomes([OK])

    assert sink.heard == [OK]


@pytest.mark.parametrize("happening", RECORD_METHODS)
def test_a_wrapper_is_no_detour(happening):
    sink = MetricsSink()

    assert getattr(QueueLabeled(sink, "q"), happening) == getattr(sink, happening)


@pytest.mark.parametrize("name", ["a-b", "1a", "", "é", "__own", *sorted(RESERVED_LABELS)])
def test_a_name_that_no_metric_can_carry_is_refused(name):
    with pytest.raises(SettingsError, match="a label's name"):
        Labeled(InMemorySink(), **{name: "x"})


def test_a_value_that_is_no_text_is_refused():
    with pytest.raises(SettingsError, match="the label shard must be text, got 3"):
        Labeled(InMemorySink(), shard=3)
