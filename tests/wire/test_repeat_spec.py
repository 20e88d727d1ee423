"""Repeat specs: round trips and what is turned away."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError
from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.wire.repeat import RepeatSpec, decode_spec, encode_spec, resolve_key

U64 = st.integers(0, 2**64 - 1)
OPTIONAL = st.none() | U64
COMMON = {
    "key": st.text(max_size=20),
    "job_name": st.text(max_size=20),
    "payload": st.binary(max_size=300),
    "limit": OPTIONAL,
    "start_after_ms": OPTIONAL,
    "end_before_ms": OPTIONAL,
}
SPECS = st.builds(
    RepeatSpec, kind=st.just("every"), interval_ms=st.integers(1, 2**64 - 1), **COMMON
) | st.builds(
    RepeatSpec,
    kind=st.just("cron"),
    expression=st.text(max_size=20),
    tz=st.none() | st.text(max_size=20),
    missed_fires=st.just("fire-all"),
    max_catchup=st.integers(1, 2**32),
    **COMMON,
)
ROW = ["k", "mail", {"Every": [5]}, b"\xc4\x01\x01", None, None, None, 0]


def row_with(at, value):
    return msgpack.packb([*ROW[:at], value, *ROW[at + 1 :]])


@given(SPECS)
def test_a_spec_survives_the_wire(spec):
    assert decode_spec(encode_spec(spec)) == spec


@given(st.binary(max_size=64))
def test_any_bytes_are_a_spec_or_a_decode_error(noise):
    try:
        spec = decode_spec(noise)
    except DecodeError:
        return
    assert isinstance(spec, RepeatSpec)


def test_the_smallest_spec_is_read():
    assert decode_spec(msgpack.packb(ROW)) == RepeatSpec(
        key="k", job_name="mail", kind="every", payload=b"\x01", interval_ms=5
    )


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(msgpack.packb(ROW[:7]), id="seven slots"),
        pytest.param(msgpack.packb([*ROW, "Skip", [3]]), id="half a retry"),
        pytest.param(msgpack.packb([*ROW, "Skip", ["3", None]]), id="attempts as text"),
        pytest.param(row_with(2, {"Every": [0]}), id="no interval"),
        pytest.param(row_with(2, {"Every": [-5]}), id="negative interval"),
        pytest.param(row_with(2, {"Every": ["5"]}), id="interval as text"),
        pytest.param(row_with(2, {"Every": []}), id="interval missing"),
        pytest.param(row_with(2, {"Cron": ["* * * * *"]}), id="zone missing"),
        pytest.param(row_with(2, {"Cron": ["* * * * *", 5]}), id="zone as int"),
        pytest.param(row_with(2, {"Hourly": [1]}), id="unknown pattern"),
        pytest.param(row_with(2, {"Every": [5], "Cron": ["x", None]}), id="two patterns"),
        pytest.param(row_with(2, {}), id="no pattern"),
        pytest.param(row_with(3, b"\x93\x01\x02\x03"), id="payload wrapped once"),
        pytest.param(row_with(3, "text"), id="payload as text"),
        pytest.param(row_with(3, b"\xc4\x01\x01\x01"), id="payload with a tail"),
        pytest.param(row_with(4, -1), id="negative limit"),
        pytest.param(msgpack.packb([*ROW, "Sometimes"]), id="unknown policy"),
        pytest.param(msgpack.packb([*ROW, {"FireAll": []}]), id="fire-all without a number"),
        pytest.param(msgpack.packb(ROW) + b"\x01", id="a tail"),
    ],
)
def test_what_could_never_fire_is_refused(row):
    with pytest.raises(DecodeError):
        decode_spec(row)


def test_a_tenth_slot_says_how_its_jobs_are_retried():
    backoff = ["fixed", 250, None, None, None]

    spec = decode_spec(msgpack.packb([*ROW, "Skip", [7, backoff]]))

    assert spec.retry == RetryOverride(7, Backoff.fixed(250))


@pytest.mark.parametrize("more", [[None], [[None, None]], [None, "new", {"newer": 1}]])
def test_slots_of_later_versions_are_left_alone(more):
    spec = decode_spec(msgpack.packb([*ROW, "FireOnce", *more]))

    assert (spec.key, spec.missed_fires) == ("k", "fire-once")


@pytest.mark.parametrize(
    ("policy", "meant"),
    [
        pytest.param(None, ("skip", None), id="nil"),
        pytest.param("Skip", ("skip", None), id="skip"),
        pytest.param("FireOnce", ("fire-once", None), id="fire-once"),
        pytest.param({"FireAll": [7]}, ("fire-all", 7), id="fire-all"),
        pytest.param({"FireAll": [0]}, ("skip", None), id="fire-all of none"),
    ],
)
def test_a_policy_for_missed_fires_is_read(policy, meant):
    spec = decode_spec(msgpack.packb([*ROW, policy]))

    assert (spec.missed_fires, spec.max_catchup) == meant


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ({"interval_ms": 250}, "mail::every:250"),
        ({"expression": "0 2 * * *"}, "mail::cron:0 2 * * *:UTC"),
        ({"expression": "0 2 * * *", "tz": ""}, "mail::cron:0 2 * * *:UTC"),
        ({"expression": "0 2 * * *", "tz": "UTC"}, "mail::cron:0 2 * * *:UTC"),
        ({"expression": "0 2 * * *", "tz": "US/Eastern"}, "mail::cron:0 2 * * *:US/Eastern"),
        ({"interval_ms": 250, "key": "mine"}, "mine"),
    ],
)
def test_a_key_is_the_callers_or_made_of_name_and_pattern(pattern, key):
    assert resolve_key("mail", **pattern) == key
