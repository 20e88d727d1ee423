"""The envelope: round trips, extras behind it, hostile bytes."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError
from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.wire.envelope import (
    Envelope,
    changed_extras,
    decode_envelope,
    encode_envelope,
    read_extras,
    split_envelope,
)
from chasquimq.wire.payload import encode_payload

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
BACKOFFS = st.builds(
    Backoff,
    kind=st.text(max_size=12),
    delay_ms=U64,
    max_delay_ms=st.none() | U64,
    multiplier=st.none() | st.floats(allow_nan=False),
    jitter_ms=st.none() | U64,
)
ENVELOPES = st.builds(
    Envelope,
    id=st.text(max_size=300),
    payload=st.binary(max_size=300),
    created_at_ms=U64,
    attempt=U32,
    retry=st.none() | st.builds(RetryOverride, st.none() | U32, st.none() | BACKOFFS),
)
EXTRAS = st.dictionaries(
    st.text(max_size=8), st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(), max_size=4
)
FULL_EXTRAS = {"generation": 2, "traceparent": "00-ab-cd-01", "expires_ms": 7, "timeout_ms": 9}


def spell(envelope, extras=None):
    return encode_envelope(
        envelope.id,
        envelope.payload,
        envelope.created_at_ms,
        envelope.attempt,
        envelope.retry,
        extras,
    )


@given(ENVELOPES)
def test_an_envelope_survives_the_wire(envelope):
    assert decode_envelope(spell(envelope)) == envelope
    assert split_envelope(spell(envelope)) == (envelope, None)


@given(ENVELOPES, EXTRAS)
def test_extras_survive_the_wire_and_leave_the_envelope_alone(envelope, extras):
    spelled = spell(envelope, extras)

    assert spelled.startswith(spell(envelope))
    assert split_envelope(spelled) == (envelope, extras or None)
    assert decode_envelope(spelled) == envelope
    assert read_extras(spelled) == extras


@given(ENVELOPES)
def test_an_envelope_is_spelled_as_msgpack_does(envelope):
    backoff = envelope.retry and envelope.retry.backoff
    slots = [envelope.id, envelope.payload, envelope.created_at_ms, envelope.attempt]
    retry = envelope.retry and [
        envelope.retry.max_attempts,
        backoff
        and [
            backoff.kind,
            backoff.delay_ms,
            backoff.max_delay_ms,
            backoff.multiplier,
            backoff.jitter_ms,
        ],
    ]

    assert spell(envelope) == msgpack.packb(slots if retry is None else [*slots, retry])


@given(st.binary(max_size=64))
def test_any_bytes_are_an_envelope_or_a_decode_error(noise):
    try:
        envelope = decode_envelope(noise)
    except DecodeError:
        return
    assert isinstance(envelope, Envelope)


@given(ENVELOPES, st.data())
def test_a_cut_envelope_is_a_decode_error(envelope, data):
    spelled = spell(envelope)
    cut = data.draw(st.integers(0, len(spelled) - 1))

    with pytest.raises(DecodeError):
        split_envelope(spelled[:cut])


@given(ENVELOPES, st.binary(max_size=40))
def test_whatever_follows_an_envelope_does_not_harm_it(envelope, noise):
    found, _ = split_envelope(spell(envelope) + noise)

    assert found == envelope


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"\xff\xff", id="two ints"),
        pytest.param(b"\xc1", id="a byte never used"),
        pytest.param(b"\x81\x01", id="half a map"),
        pytest.param(b"\x81\x01\x02", id="a map with an int key"),
        pytest.param(b"\x93\x01\x02\x03", id="an array"),
        pytest.param(b"\x80", id="an empty map"),
        pytest.param(b"\x80\x80", id="two maps"),
    ],
)
def test_unreadable_extras_are_no_extras(noise):
    spelled = encode_envelope("job", b"\x01", 5) + noise

    assert split_envelope(spelled) == (Envelope("job", b"\x01", 5), None)
    assert read_extras(spelled) == {}


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        pytest.param(b"\x81\xa1k" + b"\x91" * 32 + b"\xc0", "at most 32 levels", id="33 levels"),
        pytest.param(b"\x81\xa1k" + b"\x91" * 5000 + b"\xc0", "at most 32 levels", id="a deep map"),
        pytest.param(b"\x81\xa1k\x81" + b"\x91" * 32 + b"\xc0\xc0", "32 levels", id="a deep key"),
        pytest.param(b"\xc1" * 16_385, "at most 16384 bytes, got 16385", id="long"),
    ],
)
def test_extras_over_the_cap_are_refused_by_words(extras, words):
    spelled = encode_envelope("job", b"\x01", 5) + extras

    with pytest.raises(DecodeError, match=words):
        split_envelope(spelled)
    assert read_extras(spelled) == {}
    assert decode_envelope(spelled).id == "job"


MANY_EXTRAS = st.dictionaries(st.text(max_size=9), U32 | st.text(max_size=9), max_size=20)
CHANGES = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 2**64 - 1))


@given(MANY_EXTRAS, st.dictionaries(st.sampled_from("abc"), U32), CHANGES)
def test_changed_extras_are_spelled_as_if_they_had_been_written_anew(others, known, changes):
    extras = {**others, **known}
    kept = {key: value for key, value in extras.items() if changes.get(key, 0) is not None}
    wanted = {**kept, **{key: value for key, value in changes.items() if value is not None}}

    changed = changed_extras(msgpack.packb(extras) if extras else b"", changes)

    assert changed == (msgpack.packb(wanted) if wanted else b"")


def test_known_extras_of_another_kind_are_left_out():
    wrong = {"generation": True, "traceparent": 5, "expires_ms": "7", "timeout_ms": 1.5}

    extras = read_extras(encode_envelope("job", b"", 5, extras={**wrong, "later": 1}))

    assert extras == {"later": 1}


def test_all_known_extras_are_read():
    assert read_extras(encode_envelope("job", b"", 5, extras=FULL_EXTRAS)) == FULL_EXTRAS


def test_extras_follow_a_map_form_too():
    spelled = msgpack.packb({"id": "job", "payload": b"\x01", "created_at_ms": 5})

    assert split_envelope(spelled + msgpack.packb({"generation": 3})) == (
        Envelope("job", b"\x01", 5),
        {"generation": 3},
    )


@pytest.mark.parametrize("extras", [None, {}], ids=["none", "empty"])
def test_no_extras_leave_no_bytes(extras):
    assert encode_envelope("job", b"", 5, extras=extras) == encode_envelope("job", b"", 5)


def test_extras_of_unreadable_bytes_are_empty():
    assert read_extras(b"\xc1") == {}


def test_an_int_multiplier_is_spelled_as_a_float():
    given_an_int = RetryOverride(None, Backoff.exponential(5, multiplier=3))

    spelled = encode_envelope("job", b"", 5, 0, given_an_int)

    assert msgpack.unpackb(spelled)[4][1][3].hex() == (3.0).hex()


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b"\x91" * 100_000 + b"\xc0", id="arrays"),
        pytest.param(b"\x81\xa1k" * 100_000 + b"\xc0", id="maps"),
        pytest.param(b"\x84\xa2id" + b"\x91" * 900 + b"\xc0", id="inside an id"),
        pytest.param(b"\x94" + b"\x91" * 900 + b"\xc0\xc4\x00\x05\x00", id="as an id"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="four billion elements"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="four billion pairs"),
        pytest.param(b"\x94\xa1a\xc6\xff\xff\xff\xff", id="four billion bytes"),
        pytest.param(b"\xdc", id="half a header"),
    ],
)
def test_hostile_nesting_and_lengths_are_decode_errors(bomb):
    with pytest.raises(DecodeError):
        decode_envelope(bomb)


def test_the_payload_is_handed_over_still_encoded():
    payload = encode_payload({"order": 7})

    assert decode_envelope(encode_envelope("job", payload, 5)).payload == payload


def test_a_refusal_says_what_must_hold():
    with pytest.raises(DecodeError, match="an envelope must have 3 to 5 elements, got 6"):
        decode_envelope(msgpack.packb(["job", b"", 5, 0, None, 1]))
