"""Payloads and results as cells: JSON, bytes, or values of a type."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from chasquimq.spark.queues.options import parse_options
from chasquimq.spark.queues.reading import MISFIT, UNREADABLE_PAYLOAD, cells
from chasquimq.spark.queues.source import ddl_of
from chasquimq.wire.payload import encode_payload


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        ({"raw": b"\0\xff"}, {"raw": {"$base64": "AP8="}}),
        ({1: "one", b"k": 2}, {"1": "one", "k": 2}),
        ("é\u2028", "é\u2028"),
        (None, None),
        (float("nan"), "nan"),
        ({"x": float("-inf"), "raw": b""}, {"x": "-inf", "raw": {"$base64": ""}}),
        ([1.5, float("inf")], [1.5, "inf"]),
    ],
)
def test_any_payload_has_a_json_text(value, said):
    column, faults = cells([encode_payload(value)], pa.string(), is_json=True)

    assert json.loads(column[0].as_py()) == said
    assert faults == [""]


@pytest.mark.parametrize("beside", [b"\xc0", b"\xc4\0"], ids=["alone", "beside bytes"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xca\x7f\xc0\0\0", "nan"),
        (b"\xca\xff\x80\0\0", "-inf"),
        (b"\xcb\x7f\xf0\0\0\0\0\0\0", "inf"),
        (b"\xd6\xff\0\0\0\0", "1970-01-01T00:00:00+00:00"),
        (b"\xd7\xff\0\0\0\0\0\0\0\0", "1970-01-01T00:00:00+00:00"),
        (b"\xc7\x0c\xff" + bytes(12), "1970-01-01T00:00:00+00:00"),
    ],
)
def test_a_value_has_one_text_whatever_is_beside_it(body, said, beside):
    column, _ = cells([b"\x92" + body + beside], pa.string(), is_json=True)

    assert json.loads(column[0].as_py())[0] == said


def test_what_cannot_be_read_is_null_and_marked():
    column, faults = cells([b"\xc1", b"", None, b"\1"], pa.string(), is_json=True)

    assert column.to_pylist() == [None, None, None, "1"]
    assert faults == [UNREADABLE_PAYLOAD, UNREADABLE_PAYLOAD, "", ""]


def test_bytes_are_not_even_looked_at():
    column, faults = cells([b"\xc1", None], pa.binary(), is_json=True)

    assert column.to_pylist() == [b"\xc1", None]
    assert faults == ["", ""]


def test_what_does_not_fit_a_schema_is_null_and_the_others_stay():
    kind = pa.struct([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
    bodies = [encode_payload(one) for one in ({"n": 1, "more": 2}, {"n": "x"}, 5, None)]

    column, faults = cells(bodies, kind, is_json=False)

    assert column.to_pylist() == [{"n": 1, "tags": None}, None, None, None]
    assert faults == ["", MISFIT, MISFIT, ""]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "payload string"),
        ({"payload": "binary"}, "payload binary"),
        ({"payloadSchema": "bigint"}, "payload bigint,"),
        ({"payloadSchema": "array<struct<a: int>>"}, "payload array<struct<a: int>>,"),
        ({"payloadSchema": "a int, b string"}, "payload struct<a int, b string>,"),
        ({"read": "results", "payloadSchema": "a int"}, "result struct<a int>,"),
    ],
)
def test_the_columns_of_a_read_follow_from_its_options(options, words):
    assert words in ddl_of(parse_options({"queue": "q"} | options)) + ","
