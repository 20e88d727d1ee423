"""Envelopes and payloads of any bytes: read, or refused with one kind of error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError, EncodeError
from chasquimq.wire.envelope import (
    Envelope,
    decode_envelope,
    encode_envelope,
    read_extras,
    split_envelope,
)
from chasquimq.wire.payload import decode_payload, encode_payload
from fuzz.seeds import RUN_S_MAX, budget, envelopes, golden, mutated

DEPTH_MAX = 500

payloads = mutated(golden("results", "value_hex")) | st.binary(max_size=60)
bodies = mutated(envelopes()) | st.binary(max_size=60)


def decoded(body: bytes) -> Envelope | None:
    try:
        return decode_envelope(body)
    except DecodeError:
        return None


@pytest.mark.timeout(RUN_S_MAX)
@budget(300)
@given(bodies)
def test_an_envelope_that_is_read_can_be_written_and_read_again(body):
    found = decoded(body)
    if found is None:
        with pytest.raises(DecodeError):
            split_envelope(body)
        return

    envelope, extras = split_envelope(body)
    spelled = encode_envelope(
        found.id, found.payload, found.created_at_ms, found.attempt, found.retry, extras
    )

    assert repr(envelope) == repr(found) == repr(decoded(spelled))
    assert read_extras(spelled) == (extras or {})
    assert read_extras(body) == (extras or {})


@pytest.mark.timeout(RUN_S_MAX)
@budget(300)
@given(payloads)
def test_a_payload_that_is_read_can_be_written_and_read_again(payload):
    try:
        value = decode_payload(payload)
    except DecodeError:
        return
    if "datetime" in repr(value):
        return  # the wire has times, which we read and do not write

    try:
        spelled = encode_payload(value)
    except EncodeError:
        # Whoever reads may go deeper than whoever writes.
        assert payload.count(0x91) + payload.count(0x81) > DEPTH_MAX
        return
    assert repr(decode_payload(spelled)) == repr(value)
