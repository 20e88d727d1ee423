"""Fields of main-stream and DLQ entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.model.delivery import DlqReason
from chasquimq.wire.stream_entry import (
    ERROR_CHARS_MAX,
    DlqEntry,
    StreamFields,
    decode_dlq,
    encode_dlq,
    read_fields,
)

WHOLE = DlqEntry(
    entry_id="5-1",
    payload=b"\x94",
    name="mail",
    source_id="4-0",
    reason=DlqReason.CRASH_LOOP,
    detail="why",
    attempt=3,
    failed_at_ms=1794726951751,
    error="ValueError: boom é",
    fingerprint="00ff",
)


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        pytest.param(None, StreamFields(None), id="no fields"),
        pytest.param([], StreamFields(None), id="empty"),
        pytest.param([b"d"], StreamFields(None), id="a name without a value"),
        pytest.param([b"d", b"x"], StreamFields(b"x"), id="d alone"),
        pytest.param([b"d", b"x", b"n", b"mail"], StreamFields(b"x", "mail"), id="d and n"),
        pytest.param([b"n", b"mail", b"d", b"x"], StreamFields(b"x", "mail"), id="other order"),
        pytest.param([b"n", b"mail"], StreamFields(None, "mail"), id="n alone"),
        pytest.param([b"d", b"x", b"n", b"\xff"], StreamFields(b"x", ""), id="n not UTF-8"),
        pytest.param([b"d", b"x", b"d", b"y"], StreamFields(b"x"), id="d twice"),
        pytest.param([b"d", b"x", b"z", b"1", b"n"], StreamFields(b"x"), id="odd count"),
        pytest.param([b"d", b"x", b"due", b"77"], StreamFields(b"x", "", 77), id="due"),
        pytest.param([b"d", b"x", b"due", b"-7"], StreamFields(b"x"), id="due negative"),
        pytest.param([b"d", b"x", b"due", b"9" * 5000], StreamFields(b"x"), id="due too long"),
        pytest.param([b"d", b"x", b"due", "٣".encode()], StreamFields(b"x"), id="due not ASCII"),
    ],
)
def test_fields_are_read_in_any_order_and_the_first_wins(fields, meant):
    assert read_fields(fields) == meant


@given(st.lists(st.binary(max_size=6), max_size=9))
def test_any_fields_are_read_without_an_error(fields):
    assert isinstance(read_fields(fields), StreamFields)
    assert isinstance(decode_dlq(b"5-0", fields), DlqEntry)


def test_a_whole_dlq_entry_survives_the_wire():
    fields = encode_dlq(
        WHOLE.payload,
        WHOLE.source_id,
        WHOLE.reason,
        name=WHOLE.name,
        detail=WHOLE.detail,
        attempt=WHOLE.attempt,
        failed_at_ms=WHOLE.failed_at_ms,
        error=WHOLE.error,
        fingerprint=WHOLE.fingerprint,
    )

    assert decode_dlq(b"5-1", fields) == WHOLE
    assert b" ".join(fields[::2]) == b"d n source_id reason detail attempt failed_at error fp"


def test_a_small_dlq_entry_has_the_fields_of_the_original_alone():
    fields = encode_dlq(b"", "4-0", DlqReason.DECODE_FAILED)

    assert fields == [b"d", b"", b"source_id", b"4-0", b"reason", b"decode_failed"]


def test_an_attempt_of_zero_is_written():
    assert encode_dlq(b"", "4-0", DlqReason.MALFORMED, attempt=0)[-2:] == [b"attempt", b"0"]


def test_a_dlq_entry_of_a_stranger_is_read_as_far_as_it_goes():
    assert decode_dlq("5-1", [b"reason", b"new_label", b"attempt", b"many"]) == DlqEntry(
        entry_id="5-1", payload=b"", name="", source_id="", reason="new_label"
    )


def test_a_dlq_entry_without_fields_is_empty():
    assert decode_dlq("5-1", None).reason == ""


def test_error_text_is_cut_and_always_encodable():
    fields = encode_dlq(b"", "4-0", "malformed", error="\udcff" + "x" * 5000)

    text = fields[fields.index(b"error") + 1].decode()

    assert text.startswith("\\udcffx")
    assert len(text) == ERROR_CHARS_MAX + len("\\udcff") - 1


@pytest.mark.parametrize("reason", list(DlqReason))
def test_a_reason_is_its_label(reason):
    assert decode_dlq("5-1", encode_dlq(b"", "4-0", reason)).reason == reason
    assert str(reason) == reason.value == reason.name.lower()
