"""Where a MessagePack value ends, against msgpack-python."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError
from chasquimq.wire.envelope import value_end

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=300))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=30,
)


@given(VALUES, st.binary(max_size=20))
def test_the_end_is_where_the_value_was_packed_to(value, behind):
    packed = msgpack.packb(value)

    assert value_end(packed + behind) == len(packed)


@given(VALUES, st.data())
def test_a_cut_value_has_no_end(value, data):
    packed = msgpack.packb(value)
    cut = data.draw(st.integers(0, len(packed) - 1))

    with pytest.raises(DecodeError, match="must be whole"):
        value_end(packed[:cut])


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x" * 70_000, id="str32"),
        pytest.param(b"x" * 70_000, id="bin32"),
        pytest.param(msgpack.ExtType(5, b"x" * 70_000), id="ext32"),
        pytest.param([None] * 70_000, id="array32"),
        pytest.param(dict.fromkeys(range(70_000)), id="map32"),
        pytest.param([None] * 1_000, id="array16"),
        pytest.param(dict.fromkeys(range(1_000)), id="map16"),
        pytest.param({"a": {"b": [1, {}]}, "c": []}, id="nested maps"),
    ],
)
def test_large_headers_are_measured(value):
    packed = msgpack.packb(value)

    assert value_end(packed + b"\x00") == len(packed)


def test_a_float32_is_measured():
    assert value_end(msgpack.packb(1.5, use_single_float=True) + b"\x00") == 5


def test_nesting_costs_nothing():
    assert value_end(b"\x91" * 500_000 + b"\xc0") == 500_001


def test_a_byte_never_used_is_refused():
    with pytest.raises(DecodeError, match="0xc1"):
        value_end(b"\x91\xc1")
