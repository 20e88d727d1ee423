"""Events as fields: round trips, strangers, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError
from chasquimq.wire.events import (
    REASON_CHARS_MAX,
    Event,
    EventKind,
    decode_event,
    encode_event,
    ended_job_id,
)

NUMBERS = st.none() | st.integers(0, 2**63)
TEXTS = st.none() | st.text(max_size=40)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(EventKind).map(str),
    job_id=st.text(max_size=40),
    ts_ms=st.integers(0, 2**48),
    name=st.text(max_size=40),
    attempt=NUMBERS,
    reason=TEXTS,
    backoff_ms=NUMBERS,
    delay_ms=NUMBERS,
    duration_us=NUMBERS,
    enqueued_at_ms=NUMBERS,
    worker=TEXTS,
    delivery_count=NUMBERS,
    error_type=TEXTS,
    fingerprint=TEXTS,
    due_ms=NUMBERS,
    rest=st.just({}) | st.just({"later": "x"}),
)


def to_bytes(fields):
    return [field.encode() for field in fields]


@given(EVENTS)
def test_an_event_survives_the_wire(event):
    assert decode_event(to_bytes(encode_event(event))) == event


def test_fields_of_the_original_come_first_and_ours_behind():
    event = Event(
        kind=EventKind.FAILED,
        job_id="job",
        ts_ms=5,
        name="mail",
        attempt=1,
        reason="boom",
        duration_us=7,
        enqueued_at_ms=4,
        worker="w1",
        delivery_count=2,
        error_type="ValueError",
        fingerprint="ff",
        due_ms=3,
    )

    names = encode_event(event)[::2]

    assert " ".join(names) == "e id ts n attempt reason duration_us enq w dc ec fp due"


def test_an_empty_name_is_left_out_and_an_empty_id_is_not():
    drained = Event(kind=EventKind.DRAINED, job_id="", ts_ms=5)

    assert encode_event(drained) == ["e", "drained", "id", "", "ts", "5"]


def test_an_empty_reason_is_written():
    failed = Event(kind=EventKind.FAILED, job_id="job", ts_ms=5, reason="")

    assert encode_event(failed)[-2:] == ["reason", ""]


def test_a_reason_is_cut_and_always_encodable():
    failed = Event(kind=EventKind.FAILED, job_id="job", ts_ms=5, reason="\udcff" + "x" * 900)

    reason = encode_event(failed)[-1]

    assert reason.encode().startswith(b"\\udcffx")
    assert len(reason) == REASON_CHARS_MAX + len("\\udcff") - 1


def test_fields_and_kinds_of_a_stranger_are_passed_on():
    event = decode_event([b"e", b"paused", b"who", b"ops", b"attempt", b"first", b"e", b"again"])

    assert event == Event(
        kind="paused", job_id="", ts_ms=0, rest={"who": "ops", "attempt": "first"}
    )


def test_text_that_is_not_utf8_is_shown_with_marks():
    assert decode_event([b"e", b"failed", b"reason", b"a\xff"]).reason == "a\ufffd"


@pytest.mark.parametrize("fields", [[], [b"id", b"job"], [b"e", b""]], ids=["none", "id", "empty"])
def test_an_entry_that_does_not_say_what_happened_is_refused(fields):
    with pytest.raises(DecodeError, match="must have a field `e`"):
        decode_event(fields)


@given(st.lists(st.binary(max_size=6), max_size=9))
def test_any_fields_are_an_event_or_a_decode_error(fields):
    try:
        event = decode_event(fields)
    except DecodeError:
        return
    assert isinstance(event, Event)


@pytest.mark.parametrize("kind", list(EventKind))
def test_a_job_has_ended_when_it_is_completed_or_dead(kind):
    fields = to_bytes(encode_event(Event(kind=kind, job_id="job", ts_ms=1, name="mail")))

    ended = ended_job_id(fields)

    assert ended == ("job" if kind in (EventKind.COMPLETED, EventKind.DLQ) else None)


@pytest.mark.parametrize(
    "fields", [[], [b"e"], [b"e", b"completed"], [b"id", b"job", b"e", b"completed"]], ids=repr
)
def test_a_line_that_begins_otherwise_tells_of_no_end(fields):
    assert ended_job_id(fields) is None
