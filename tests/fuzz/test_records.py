"""What else lies on a server: events, dead letters, outcomes, history, put-aside specs, labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from chasquimq.errors import DecodeError
from chasquimq.model.delivery import DlqReason, Failure
from chasquimq.store.dlq import next_generation
from chasquimq.telemetry.prometheus import PrometheusSink
from chasquimq.telemetry.sink import DlqRouted, JobOutcome
from chasquimq.telemetry.tally import NAMES_MAX
from chasquimq.wire.events import decode_event, encode_event, ended_job_id
from chasquimq.wire.history import decode_history
from chasquimq.wire.outcome import decode_outcome, encode_completed, encode_dead
from chasquimq.wire.repeat import BadRecord, decode_record, encode_record
from chasquimq.wire.stream_entry import decode_dlq, encode_dlq
from fuzz.seeds import RUN_S_MAX, budget, envelopes, mutated
from wire.vectors import flat, load

OUR_FIELDS = [
    b"e", b"id", b"ts", b"n", b"attempt", b"reason", b"detail", b"d", b"error", b"fp", b"failed_at",
    b"source_id", b"duration_us", b"backoff_ms", b"w", b"v", b"r", b"s", b"t", b"b", b"end", b"lost",
    b"traceback",
]  # fmt: skip
HISTORIES = [flat(entry["fields"]) for entry in load("history")["entries"]]
OUTCOMES = [
    encode_completed("mail", 1, 5, has_result=True),
    encode_dead("expired", "ValueError: no") + b"\xd9\x031-1",
]
RECORDS = [encode_record(BadRecord("why", b"\x90", 1))]

noise = st.binary(max_size=30) | st.sampled_from([b"0", b"-1", b"99999999999999999999", b"1e3"])
fields = st.lists(st.sampled_from(OUR_FIELDS) | noise, max_size=24)


@st.composite
def spoiled_histories(draw) -> list[bytes]:
    found = list(draw(st.sampled_from(HISTORIES)))
    at = draw(st.integers(0, len(found) - 1))
    found[at] = draw(mutated([found[at], b"\x9f" + b"\xc0" * 15]))
    return found


def value_or_refusal(read, *args):
    try:
        return read(*args)
    except DecodeError:
        return None


@pytest.mark.timeout(RUN_S_MAX)
@budget(250)
@given(fields)
def test_any_event_is_read_or_refused(flat_fields):
    event = value_or_refusal(decode_event, flat_fields)
    if event is not None:
        again = decode_event([field.encode() for field in encode_event(event)])
        assert again.kind == event.kind
        assert again.ts_ms == event.ts_ms
    assert isinstance(ended_job_id(flat_fields), str | None)


@pytest.mark.timeout(RUN_S_MAX)
@budget(250)
@given(st.none() | fields, mutated(envelopes()))
def test_any_dead_letter_is_shown_and_replayed_or_left(flat_fields, envelope):
    letter = decode_dlq(b"1-1", [b"d", envelope, *(flat_fields or [])])
    assert letter.payload == envelope
    decode_dlq(b"\xff", flat_fields)

    replay = value_or_refusal(next_generation, letter, None)

    if replay is not None:
        assert replay.dlq_id == "1-1"
        spelled = encode_dlq(replay.envelope, letter.source_id, letter.reason, name=letter.name)
        assert decode_dlq("1-1", spelled).payload == replay.envelope


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(mutated(OUTCOMES) | noise)
def test_any_outcome_is_read_or_refused(raw_outcome):
    value_or_refusal(decode_outcome, raw_outcome)


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(mutated(RECORDS) | noise)
def test_any_spec_that_was_put_aside_is_shown(raw_record):
    assert isinstance(decode_record(raw_record), BadRecord)


def test_a_deep_record_is_shown_as_it_is():
    raw_record = b"\x94\xa1a\xc4\x00\x00" + b"\x91" * 20_000 + b"\xc0"

    assert decode_record(raw_record).spec == raw_record


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(spoiled_histories() | fields)
def test_any_entry_of_the_history_is_read_or_refused(flat_fields):
    entry = value_or_refusal(decode_history, flat_fields)
    if entry is not None:
        value_or_refusal(entry.rows)


@pytest.mark.timeout(RUN_S_MAX)
@budget(10)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=40, unique=True))
def test_any_name_makes_a_page_that_a_scraper_reads(names):
    sink = PrometheusSink(registry=CollectorRegistry())
    for name in names:
        sink.job_outcome(JobOutcome(kind="ok", attempt=1, handler_duration_us=1, name=name))
        sink.dlq_routed(DlqRouted(DlqReason.EXPIRED, attempt=1, name=name))

    families = list(text_string_to_metric_families(sink.exposition().decode()))

    assert families
    assert Failure("T", names[0]).fingerprint


def test_made_up_names_do_not_fill_the_memory():
    sink = PrometheusSink(registry=CollectorRegistry())
    for at in range(3 * NAMES_MAX):
        sink.job_outcome(JobOutcome(kind="ok", attempt=1, handler_duration_us=1, name=f"n{at}"))

    labels = {
        sample.labels.get("name")
        for family in text_string_to_metric_families(sink.exposition().decode())
        for sample in family.samples
    }

    assert len(labels) <= NAMES_MAX + 2
