"""The bytes of the original, both ways: what it wrote we read, what we write it would have."""

import ast
from types import SimpleNamespace

import pytest

from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.store.producer.writes import XaddTemplate
from chasquimq.wire.envelope import Envelope, decode_envelope, encode_envelope
from chasquimq.wire.events import decode_event, encode_event
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.payload import decode_payload, encode_payload
from chasquimq.wire.repeat import decode_spec, encode_spec, resolve_key
from chasquimq.wire.stream_entry import (
    command,
    decode_dlq,
    encode_dlq,
    encode_member,
    read_fields,
    split_member,
)
from wire.vectors import cases, flat, load, raw, value

STREAM = load("stream_entries")["stream_entries"]
ENTRIES = [*STREAM["single"], *STREAM["bulk"]["entries"]]
MEMBERS = [
    *load("delayed_members")["delayed_members"]["members"],
    *load("dlq_and_retries")["dlq"]["retry_reschedules"],
    *(
        fire
        for call in load("repeatables")["repeatables"]["fires"]["script_calls"]
        for fire in call["fires"]
    ),
]
DLQ = load("dlq_and_retries")["dlq"]
SPECS = load("repeatables")["repeatables"]["specs"]
RESULTS = [row for row in load("results")["results"]["values"] if row["value_hex"] is not None]
EVENTS = [
    *load("events")["events_clean_run"]["events"],
    *load("dlq_and_retries")["events_dlq_run"]["events"],
]
XADDS = [
    traced["cmd"]
    for scenario in load("commands")["scenarios"]
    for traced in scenario["commands"]
    if traced["cmd"][0] == "XADD" and "inside_script" not in traced and traced["cmd"][2] == "IDMP"
]


def retry_of(decoded):
    spelled = decoded.get("retry")
    if spelled is None:
        return None
    backoff = spelled["backoff"]
    return RetryOverride(spelled["max_attempts"], backoff and Backoff(**backoff))


def envelope_of(decoded):
    return Envelope(
        decoded["id"],
        raw(decoded["payload_hex"]),
        decoded["created_at_ms"],
        decoded["attempt"],
        retry_of(decoded),
    )


@pytest.mark.parametrize("entry", cases(ENTRIES))
def test_an_envelope_of_the_original_is_read(entry):
    assert decode_envelope(raw(entry["d_hex"])) == envelope_of(entry["decoded"])


@pytest.mark.parametrize("entry", cases(ENTRIES))
def test_an_envelope_is_spelled_as_the_original_does(entry):
    parts = envelope_of(entry["decoded"])

    spelled = encode_envelope(
        parts.id, parts.payload, parts.created_at_ms, parts.attempt, parts.retry
    )

    assert spelled == raw(entry["d_hex"])


@pytest.mark.parametrize(
    "entry", cases([e for e in ENTRIES if isinstance(e["decoded"]["payload_hex"], str)])
)
def test_a_payload_is_spelled_and_read_as_the_original_does(entry):
    payload = raw(entry["decoded"]["payload_hex"])
    meant = value(entry["decoded"]["payload_value"])

    assert encode_payload(meant) == payload
    assert decode_payload(payload) == meant


@pytest.mark.parametrize("entry", cases(ENTRIES))
def test_the_name_of_an_entry_is_read(entry):
    name = [] if entry["n_hex"] is None else [["n", entry["n_hex"]]]

    fields = read_fields(flat([["d", entry["d_hex"]], *name]))

    assert fields.name == entry["decoded"]["name"]
    assert fields.payload == raw(entry["d_hex"])


@pytest.mark.parametrize("member", cases(MEMBERS))
def test_a_delayed_member_of_the_original_is_split(member):
    name, envelope = split_member(raw(member["member_hex"]))

    assert name == member["decoded"]["name"]
    assert decode_envelope(envelope) == envelope_of(member["decoded"])


@pytest.mark.parametrize("member", cases(MEMBERS))
def test_a_delayed_member_is_spelled_as_the_original_does(member):
    parts = envelope_of(member["decoded"])
    envelope = encode_envelope(
        parts.id, parts.payload, parts.created_at_ms, parts.attempt, parts.retry
    )

    assert encode_member(member["decoded"]["name"], envelope) == raw(member["member_hex"])


@pytest.mark.parametrize("row", cases(RESULTS, key="handler_return"))
def test_a_result_is_spelled_and_read_as_the_original_does(row):
    returned = ast.literal_eval(row["handler_return"].replace("2**40", str(2**40)))

    assert encode_payload(returned) == raw(row["value_hex"])
    assert encode_payload(decode_payload(raw(row["value_hex"]))) == raw(row["value_hex"])


@pytest.mark.parametrize("entry", cases(DLQ["entries"]))
def test_a_dlq_entry_is_spelled_in_the_order_of_the_original(entry):
    name = raw(entry["n_hex"] or "").decode()

    fields = encode_dlq(
        raw(entry["d_hex"]),
        entry["source_id"],
        entry["reason"],
        name=name,
        detail=entry["detail"],
    )

    assert [field.decode() for field in fields[::2]] == entry["fields_in_order"]
    assert decode_dlq(b"5-0", fields).reason == entry["reason"]
    assert decode_dlq(b"5-0", fields).payload == raw(entry["d_hex"])
    assert decode_dlq(b"5-0", fields).detail == entry["detail"]
    assert decode_dlq(b"5-0", fields).name == name


@pytest.mark.parametrize("entry", cases(DLQ["replay"]["stream_after"], key="d_hex"))
def test_a_replayed_envelope_differs_from_its_dlq_entry_in_the_attempt_alone(entry):
    replayed = decode_envelope(raw(entry["d_hex"]))

    spelled = encode_envelope(
        replayed.id, replayed.payload, replayed.created_at_ms, 0, replayed.retry
    )

    assert spelled == raw(entry["d_hex"])


@pytest.mark.parametrize("entry", cases(SPECS))
def test_a_repeat_spec_survives_reading_and_spelling(entry):
    spec = decode_spec(raw(entry["spec_hex"]))

    assert encode_spec(spec) == raw(entry["spec_hex"])


@pytest.mark.parametrize("entry", cases(SPECS))
def test_a_repeat_spec_of_the_original_is_read(entry):
    decoded = entry["decoded"]

    spec = decode_spec(raw(entry["spec_hex"]))

    assert (spec.key, spec.job_name) == (decoded["key"], decoded["job_name"])
    assert spec.payload == raw(decoded["payload_inner_bin_hex"])
    assert spec.limit == decoded["limit"]
    assert spec.start_after_ms == decoded["start_after_ms"]
    assert spec.end_before_ms == decoded["end_before_ms"]


@pytest.mark.parametrize("entry", cases(SPECS))
def test_the_key_of_a_repeat_spec_is_made_as_the_original_does(entry):
    spec = decode_spec(raw(entry["spec_hex"]))
    explicit = "my-key" if entry["resolved_key"] == "my-key" else ""

    key = resolve_key(
        spec.job_name,
        key=explicit,
        interval_ms=spec.interval_ms,
        expression=spec.expression,
        tz=spec.tz,
    )

    assert key == entry["resolved_key"]
    assert QueueKeys("mail").repeat_spec(key) == entry["hash_key"].replace("<queue>", "mail")


@pytest.mark.parametrize("event", cases(EVENTS))
def test_an_event_is_read_and_spelled_in_the_order_of_the_original(event):
    texts = [text for pair in event["fields"] for text in pair]

    read = decode_event([text.encode() for text in texts])

    assert encode_event(read) == texts
    assert read.rest == {}


@pytest.mark.parametrize("traced", [pytest.param(cmd, id=cmd[4]) for cmd in XADDS])
def test_an_add_is_the_traced_command_without_its_trim(traced):
    key, producer_id, job_id = traced[1], traced[3], traced[4]
    untrimmed = [part for part in traced if part not in ("MAXLEN", "~", "1000000")]
    parts = [bytes.fromhex(part["hex"]) if isinstance(part, dict) else part for part in untrimmed]
    fields = dict(zip(parts[6::2], parts[7::2], strict=True))

    job = SimpleNamespace(job_id=job_id, name=fields.get("n", ""), envelope=fields["d"])
    spelled = XaddTemplate(key, producer_id=producer_id).encode([job])

    assert spelled == command(*parts)
