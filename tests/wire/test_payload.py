"""The user's payload: the same bytes as msgpack-python, and refusals that point at the culprit."""

import enum
import uuid
from array import array
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError, EncodeError
from chasquimq.wire.payload import NESTING_MAX, decode_payload, encode_payload

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
KEYS = st.text() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=30
)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Blob(bytes):
    pass


class Row(dict):
    pass


class Rows(list):
    pass


class Colour(enum.Enum):
    RED = 1


class Mood(str, enum.Enum):  # noqa: UP042  prints as its member, packs as its text
    GLAD = "glad"


class Level(enum.IntEnum):
    HIGH = 3


class Right(enum.Flag):
    READ = 1


Point = namedtuple("Point", "x y")  # noqa: PYI024  the kind users bring


@dataclass
class Order:
    number: int


class Shape(msgspec.Struct):
    sides: int


def nested(levels):
    value = None
    for _ in range(levels):
        value = [value]
    return value


def moved():
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    return ordered


@given(VALUES)
def test_a_value_packs_to_the_bytes_of_msgpack_python(value):
    assert encode_payload(value) == msgpack.packb(value, use_bin_type=True)


@given(VALUES)
def test_a_value_survives_the_wire(value):
    assert decode_payload(encode_payload(value)) == value


@given(st.binary(max_size=64))
def test_any_bytes_are_a_value_or_a_decode_error(noise):
    try:
        decode_payload(noise)
    except DecodeError:
        return
    assert noise


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(Text("héllo"), id="str subclass"),
        pytest.param(Number(2**40), id="int subclass"),
        pytest.param(Real(1.5), id="float subclass"),
        pytest.param(Blob(b"\x00"), id="bytes subclass"),
        pytest.param(bytearray(b"abc"), id="bytearray"),
        pytest.param(memoryview(b"abc"), id="memoryview"),
        pytest.param(memoryview(b"abcd").cast("H"), id="memoryview of shorts"),
        pytest.param(Row(a=1), id="dict subclass"),
        pytest.param(Rows([1, Text("x")]), id="list subclass"),
        pytest.param(Point(1, 2), id="namedtuple"),
        pytest.param(Mood.GLAD, id="str enum"),
        pytest.param(Level.HIGH, id="int enum"),
        pytest.param(moved(), id="reordered OrderedDict"),
        pytest.param(defaultdict(list, a=[1]), id="defaultdict"),
        pytest.param(Counter("aab"), id="Counter"),
        pytest.param({Mood.GLAD: 1, Level.HIGH: 2, Text("t"): 3}, id="keys of subclasses"),
        pytest.param({(1, (Text("a"), b"b")): 2}, id="tuple key"),
        pytest.param({None: 1, 1.5: 2, b"x": 3, True: 4}, id="keys of every scalar"),
        pytest.param([1, (2, [Number(3)]), {"k": (True, None)}], id="mixed"),
        pytest.param([True, Number(1), False], id="bools beside a subclass"),
        pytest.param([float("nan"), float("inf"), -0.0], id="odd floats"),
    ],
)
def test_what_msgpack_python_accepts_packs_to_the_same_bytes(value):
    assert encode_payload(value) == msgpack.packb(value, use_bin_type=True)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({1, 2}, id="set"),
        pytest.param(frozenset(), id="frozenset"),
        pytest.param(datetime(2026, 1, 1, tzinfo=UTC), id="datetime"),
        pytest.param(datetime(2026, 1, 1), id="naive datetime"),  # noqa: DTZ001  that is the case
        pytest.param(date(2026, 1, 1), id="date"),
        pytest.param(time(1), id="time"),
        pytest.param(timedelta(1), id="timedelta"),
        pytest.param(Decimal("1.5"), id="Decimal"),
        pytest.param(Fraction(1, 2), id="Fraction"),
        pytest.param(uuid.UUID(int=5), id="UUID"),
        pytest.param(Order(1), id="dataclass"),
        pytest.param(Shape(3), id="Struct"),
        pytest.param(Colour.RED, id="enum"),
        pytest.param(Right.READ, id="flag"),
        pytest.param(object(), id="object"),
        pytest.param(Order, id="class"),
        pytest.param(len, id="function"),
        pytest.param(1j, id="complex"),
        pytest.param(range(3), id="range"),
        pytest.param(iter([1]), id="iterator"),
        pytest.param({}.keys(), id="dict view"),
        pytest.param(array("b", [1]), id="array"),
        pytest.param(memoryview(b"abcd")[::2], id="memoryview with gaps"),
        pytest.param(2**64, id="int over 64 bits"),
        pytest.param(-(2**63) - 1, id="int under 64 bits"),
        pytest.param("\ud800", id="lone surrogate"),
    ],
)
@pytest.mark.parametrize(
    "place", [lambda v: v, lambda v: [1, v], lambda v: {"k": [v]}], ids=["bare", "listed", "deep"]
)
def test_what_msgpack_python_refuses_is_refused(value, place):
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        msgpack.packb(place(value), use_bin_type=True)
    with pytest.raises(EncodeError):
        encode_payload(place(value))


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(msgspec.msgpack.Ext(5, b"x"), id="msgspec"),
        pytest.param(msgspec.Raw(b"\x01"), id="raw"),
        pytest.param(msgpack.ExtType(5, b"x"), id="msgpack"),
        pytest.param({msgpack.ExtType(5, b"x"): 1}, id="msgpack as key"),
        pytest.param(msgpack.Timestamp(5), id="timestamp"),
    ],
)
def test_extensions_are_refused_because_no_reader_knows_them(value):
    with pytest.raises(EncodeError):
        encode_payload([value])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        pytest.param(
            {"items": [0, 1, 2, {"when": datetime(2026, 1, 1, tzinfo=UTC)}]},
            "data.items[3].when is a datetime; convert it first, for example with .isoformat()",
            id="path",
        ),
        pytest.param({1}, "data is a set; convert it first, for example with sorted()", id="bare"),
        pytest.param(
            {"a b": Order(1)},
            "data['a b'] is an Order; convert it first, with dataclasses.asdict(value)",
            id="odd key",
        ),
        pytest.param({5: object()}, "data[5] is an object; convert it first", id="int key"),
        pytest.param(
            {"ids": {uuid.UUID(int=1): 1}},
            "a key of data.ids is a UUID; convert it first, for example with str()",
            id="key",
        ),
        pytest.param(
            [2**64], "data[0] must be an int of at most 64 bits; send it as a str", id="big int"
        ),
        pytest.param(
            {2**64: 1},
            "a key of data must be an int of at most 64 bits; send it as a str",
            id="big int key",
        ),
        pytest.param(
            ["\udcff"],
            "data[0] must be valid Unicode, but holds a lone surrogate; send it as bytes",
            id="surrogate",
        ),
    ],
)
def test_a_refusal_names_path_and_type(value, sentence):
    with pytest.raises(EncodeError) as refusal:
        encode_payload(value)

    assert str(refusal.value) == sentence


def test_the_root_of_the_path_can_be_named():
    with pytest.raises(EncodeError, match=r"^result\.at is a date;"):
        encode_payload({"at": date(2026, 1, 1)}, root="result")


def test_the_deepest_allowed_value_survives_the_wire():
    deepest = nested(NESTING_MAX)

    assert encode_payload(deepest) == msgpack.packb(deepest)
    assert decode_payload(encode_payload(deepest)) == deepest


@pytest.mark.parametrize("levels", [NESTING_MAX + 1, 5_000, 200_000])
def test_a_value_nested_too_deep_is_refused(levels):
    with pytest.raises(EncodeError, match="nested at most 511 levels"):
        encode_payload(nested(levels))


def test_a_value_of_subclasses_nested_too_deep_is_refused():
    with pytest.raises(EncodeError, match="nested at most 511 levels"):
        encode_payload([Number(1), nested(NESTING_MAX)])


def test_a_value_that_contains_itself_twice_is_refused():
    node = {"children": []}
    node["children"] += [{"parent": node}, {"parent": node}]

    with pytest.raises(EncodeError, match="contains itself"):
        encode_payload(node)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="a byte never used"),
        pytest.param(b"\x01\x02", id="two values"),
        pytest.param(b"\xa2\xff\xfe", id="text that is not UTF-8"),
        pytest.param(b"\x81\x80\x01", id="a map as key"),
        pytest.param(b"\xd4\x05x", id="an extension"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="four billion elements"),
        pytest.param(b"\x91" * 100_000 + b"\xc0", id="deep arrays"),
        pytest.param(b"\x81\xa1k" * 100_000 + b"\xc0", id="deep maps"),
    ],
)
def test_unreadable_payloads_are_decode_errors(payload):
    with pytest.raises(DecodeError, match="a payload must be one MessagePack value"):
        decode_payload(payload)


def test_a_timestamp_of_another_language_becomes_an_aware_datetime():
    packed = msgpack.packb(datetime(2026, 1, 1, tzinfo=UTC), datetime=True)

    assert decode_payload(packed) == datetime(2026, 1, 1, tzinfo=UTC)


def test_int_keys_are_read_back_where_the_original_could_not():
    assert decode_payload(encode_payload({1: {2: 3}})) == {1: {2: 3}}
