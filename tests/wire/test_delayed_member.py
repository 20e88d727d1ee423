"""Members of the delayed set: round trips and broken prefixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError
from chasquimq.wire.stream_entry import encode_member, split_member


@given(st.text(max_size=80), st.binary(max_size=80))
def test_a_member_survives_the_wire(name, envelope):
    assert split_member(encode_member(name, envelope)) == (name, envelope)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_member_or_a_decode_error(noise):
    try:
        name, envelope = split_member(noise)
    except DecodeError:
        return
    assert len(name.encode()) + len(envelope) + 4 <= len(noise)


@pytest.mark.parametrize("member", [b"", b"\x00", b"\x00\x00\x00"], ids=["0", "1", "3"])
def test_a_member_without_a_whole_prefix_is_refused(member):
    with pytest.raises(DecodeError, match="at least 4 bytes"):
        split_member(member)


@pytest.mark.parametrize(
    "member",
    [b"\x01\x00\x00\x00", b"\x04\x00\x00\x00abc", b"\xff\xff\xff\xffabc"],
    ids=["nothing left", "one short", "four billion"],
)
def test_a_prefix_longer_than_the_member_is_refused(member):
    with pytest.raises(DecodeError, match="bytes of name it announces"):
        split_member(member)


def test_a_name_that_is_not_utf8_counts_as_no_name():
    assert split_member(b"\x02\x00\x00\x00\xff\xferest") == ("", b"rest")


def test_a_name_may_fill_the_member():
    assert split_member(b"\x03\x00\x00\x00abc") == ("abc", b"")


def test_an_empty_name_is_four_zero_bytes():
    assert encode_member("", b"rest") == b"\x00\x00\x00\x00rest"
