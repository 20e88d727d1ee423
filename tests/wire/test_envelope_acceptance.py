"""What a reader takes for an envelope: exactly what the original takes."""

import msgpack
import pytest

from chasquimq.errors import DecodeError
from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.wire.envelope import decode_envelope, split_envelope
from chasquimq.wire.stream_entry import read_fields
from wire.vectors import cases, flat, load

OFFERED = load("envelope_decode")["envelope_decode"]["cases"]
DISPATCHED = [case for case in OFFERED if case["outcome"] == "dispatched"]
# The reader turns these away for their size or their attempts; their bytes are in order.
REFUSED_LATER = [
    case for case in OFFERED if case["outcome"] in ("dlq:oversize_payload", "dlq:retries_exhausted")
]
UNDECODABLE = [case for case in OFFERED if case["outcome"] == "dlq:decode_failed"]
MALFORMED = [case for case in OFFERED if case["outcome"] == "dlq:malformed"]

HEAD = ("job", b"\x01", 5)
FULL = {"id": "job", "payload": b"\x01", "created_at_ms": 5}


def test_every_recorded_case_has_a_test():
    tested = [*DISPATCHED, *REFUSED_LATER, *UNDECODABLE, *MALFORMED]

    assert len(tested) == len(OFFERED) == 48


@pytest.mark.parametrize("case", cases(DISPATCHED))
def test_what_the_original_dispatches_is_read(case):
    fields = read_fields(flat(case["fields"]))

    envelope = decode_envelope(fields.payload)

    assert envelope.id == case["job"]["id"]
    assert envelope.payload.hex() == case["job"]["payload_hex"]
    assert envelope.attempt == case["job"]["attempt"]
    assert envelope.created_at_ms == case["job"]["created_at_ms"]
    assert fields.name == case["job"]["name"]


@pytest.mark.parametrize("case", cases(REFUSED_LATER))
def test_what_the_reader_refuses_for_other_reasons_still_decodes(case):
    assert decode_envelope(read_fields(flat(case["fields"])).payload).payload


@pytest.mark.parametrize("case", cases(UNDECODABLE))
def test_what_the_original_cannot_decode_is_refused(case):
    payload = read_fields(flat(case["fields"])).payload

    with pytest.raises(DecodeError):
        decode_envelope(payload)
    with pytest.raises(DecodeError):
        split_envelope(payload)


@pytest.mark.parametrize("case", cases(MALFORMED))
def test_an_entry_without_an_envelope_has_no_payload(case):
    assert read_fields(flat(case["fields"])).payload is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([], id="no elements"),
        pytest.param(["job"], id="one element"),
        pytest.param([*HEAD, 0, None, None, None], id="seven elements"),
        pytest.param([None, b"", 5, 0], id="id nil"),
        pytest.param([b"\xff\xfe", b"", 5, 0], id="id bin that is not UTF-8"),
        pytest.param(["job", True, 5, 0], id="payload bool"),
        pytest.param(["job", [1, True], 5, 0], id="payload array with a bool"),
        pytest.param(["job", [-1], 5, 0], id="payload array with a negative"),
        pytest.param(["job", b"", None, 0], id="created_at nil"),
        pytest.param(["job", b"", 5.0, 0], id="created_at whole float"),
        pytest.param([*HEAD, None], id="attempt nil"),
        pytest.param([*HEAD, -1], id="attempt negative"),
        pytest.param([*HEAD, True], id="attempt bool"),
        pytest.param([*HEAD, 2**32], id="attempt one over u32"),
        pytest.param([*HEAD, 0, 3], id="retry int"),
        pytest.param([*HEAD, 0, []], id="retry empty"),
        pytest.param([*HEAD, 0, [1.5, None]], id="max_attempts float"),
        pytest.param([*HEAD, 0, [2**32, None]], id="max_attempts over u32"),
        pytest.param([*HEAD, 0, [None, ["fixed", 5, None, None]]], id="backoff of four"),
        pytest.param([*HEAD, 0, [None, ["fixed", 5, None, None, None, 1]]], id="backoff of six"),
        pytest.param([*HEAD, 0, [None, [None, 5, None, None, None]]], id="kind nil"),
        pytest.param([*HEAD, 0, [None, [2, 5, None, None, None]]], id="kind index 2"),
        pytest.param([*HEAD, 0, [None, ["fixed", None, None, None, None]]], id="delay nil"),
        pytest.param([*HEAD, 0, [None, ["fixed", 5, None, "2", None]]], id="multiplier str"),
        pytest.param([*HEAD, 0, [None, ["fixed", 5, None, None, -1]]], id="jitter negative"),
        pytest.param({**FULL, "attempt": None}, id="map with attempt nil"),
        pytest.param({"id": "job", "payload": b""}, id="map without created_at"),
        pytest.param({**FULL, "retry": {"backoff": {"kind": "fixed"}}}, id="backoff without delay"),
        pytest.param("job", id="a string"),
        pytest.param(7, id="an int"),
    ],
)
def test_what_the_table_refuses_is_refused(value):
    with pytest.raises(DecodeError):
        decode_envelope(msgpack.packb(value))


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        pytest.param("fixed", "fixed", id="fixed"),
        pytest.param(0, "fixed", id="index 0"),
        pytest.param(1, "exponential", id="index 1"),
        pytest.param("linear", "linear", id="unknown text is kept"),
    ],
)
def test_a_backoff_kind_comes_as_text_or_index(kind, meant):
    packed = msgpack.packb([*HEAD, 0, [None, [kind, 5, None, None, None]]])

    assert decode_envelope(packed).retry == RetryOverride(None, Backoff(meant, 5, None, None, None))


@pytest.mark.parametrize(
    ("retry", "meant"),
    [
        pytest.param(None, None, id="nil"),
        pytest.param([None, None], RetryOverride(None, None), id="two nils"),
        pytest.param({}, RetryOverride(None, None), id="empty map"),
        pytest.param({"max_attempts": 3, "later": 1}, RetryOverride(3, None), id="unknown key"),
        pytest.param(
            {"backoff": {"delay_ms": 7, "kind": "exponential", "multiplier": 3}},
            RetryOverride(None, Backoff.exponential(7, multiplier=3.0)),
            id="backoff as map",
        ),
        pytest.param(
            [2, {"kind": "fixed", "delay_ms": 7, "jitter_ms": 1}],
            RetryOverride(2, Backoff.fixed(7, 1)),
            id="backoff as map in an array",
        ),
    ],
)
def test_a_retry_override_comes_as_array_or_map(retry, meant):
    as_array = decode_envelope(msgpack.packb([*HEAD, 0, retry]))
    as_map = decode_envelope(msgpack.packb({**FULL, "retry": retry}))

    assert as_array.retry == as_map.retry == meant


def test_an_int_multiplier_is_read_as_a_float():
    packed = msgpack.packb([*HEAD, 0, [None, ["exponential", 5, None, 2, None]]])

    assert repr(decode_envelope(packed).retry.backoff.multiplier) == "2.0"
