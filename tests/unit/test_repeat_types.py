"""The values users hand to a queue to say when a job repeats, and how they are checked."""

from __future__ import annotations

import pytest

from chasquimq import MissedFiresPolicy, RepeatableMeta, RepeatPattern
from chasquimq.errors import DecodeError, KindRefused, SettingsError
from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.model.schedule import INSTANT_MS_MAX, Cron, Every, MissedFires
from chasquimq.repeat import QuarantinedRepeatable
from chasquimq.wire.repeat import (
    BadRecord,
    Bounds,
    decode_record,
    encode_record,
    encode_repeat,
    read_stored,
)

SKIP = MissedFires.skip()


@pytest.mark.parametrize(
    ("pattern", "spelled"),
    [
        (RepeatPattern.every(250), {"kind": "every", "interval_ms": 250}),
        (RepeatPattern.cron("0 2 * * *"), {"kind": "cron", "expression": "0 2 * * *"}),
        (
            RepeatPattern.cron("0 2 * * *", tz="Asia/Tokyo"),
            {"kind": "cron", "expression": "0 2 * * *", "tz": "Asia/Tokyo"},
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, RepeatPattern) else "",
)
def test_a_pattern_has_a_dict_form_that_gives_it_back(pattern, spelled):
    assert pattern.to_dict() == spelled
    assert RepeatPattern.from_dict(spelled) == pattern


@pytest.mark.parametrize(
    ("policy", "spelled"),
    [
        (MissedFiresPolicy.skip(), {"kind": "skip"}),
        (MissedFiresPolicy.fire_once(), {"kind": "fire-once"}),
        (MissedFiresPolicy.fire_all(7), {"kind": "fire-all", "max_catchup": 7}),
    ],
    ids=lambda value: value.kind if isinstance(value, MissedFiresPolicy) else "",
)
def test_a_policy_has_a_dict_form_that_gives_it_back(policy, spelled):
    assert policy.to_dict() == spelled
    assert MissedFiresPolicy.from_dict(spelled) == policy


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kind": "hourly"},
        {"kind": ["every"]},
        {"kind": "every"},
        {"kind": "every", "interval_ms": 5, "tz": "UTC"},
        {"kind": "cron"},
        {"kind": "cron", "expression": "* * * * *", "interval_ms": 5},
    ],
    ids=str,
)
def test_a_dict_that_is_no_pattern_is_refused(given):
    with pytest.raises(SettingsError):
        RepeatPattern.from_dict(given)


@pytest.mark.parametrize(
    "given",
    [{}, {"kind": "fire-all"}, {"kind": "skip", "max_catchup": 1}, {"kind": "later"}],
    ids=str,
)
def test_a_dict_that_is_no_policy_is_refused(given):
    with pytest.raises(SettingsError):
        MissedFiresPolicy.from_dict(given)


@pytest.mark.parametrize("max_catchup", ["5", 5.0, True, None])
def test_how_many_to_catch_up_with_is_an_int(max_catchup):
    with pytest.raises(KindRefused, match="max_catchup"):
        MissedFiresPolicy.fire_all(max_catchup)


@pytest.mark.parametrize("max_catchup", [0, -1])
def test_to_catch_up_with_none_is_refused(max_catchup):
    with pytest.raises(ValueError, match="max_catchup"):
        MissedFiresPolicy.fire_all(max_catchup)


def test_values_cannot_be_changed():
    with pytest.raises(AttributeError):
        RepeatPattern.every(5).interval_ms = 6  # pyright: ignore[reportAttributeAccessIssue]


def test_a_listed_plan_has_a_dict_form_without_what_is_not_set():
    meta = RepeatableMeta(
        "k", "mail", RepeatPattern.every(5), 1_000, missed_fires=MissedFiresPolicy.fire_all(3)
    )

    assert meta.to_dict() == {
        "key": "k",
        "job_name": "mail",
        "pattern": {"kind": "every", "interval_ms": 5},
        "next_fire_ms": 1_000,
        "missed_fires": {"kind": "fire-all", "max_catchup": 3},
    }


def test_a_plan_put_aside_has_a_dict_form():
    aside = QuarantinedRepeatable("k", "because", b"\xff", 1_000)

    assert aside.to_dict() == {
        "key": "k", "reason": "because", "spec": {"$base64": "/w=="}, "quarantined_at_ms": 1_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    "bounds",
    [
        {"limit": 0},
        {"limit": True},
        {"limit": 1.5},
        {"start_after_ms": -1},
        {"start_after_ms": INSTANT_MS_MAX + 1},
        {"end_before_ms": "soon"},
        {"start_after_ms": 5, "end_before_ms": 5},
        {"start_after_ms": 6, "end_before_ms": 5},
    ],
    ids=str,
)
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(SettingsError):
        Bounds(**bounds)


@pytest.mark.parametrize("key", ["", " ", "k" * 1_025, 7])
def test_a_key_that_is_no_key_is_refused(key):
    with pytest.raises(SettingsError, match="spec key"):
        encode_repeat("mail", b"\x01", Every(5), SKIP, Bounds(), key=key)


@pytest.mark.parametrize("name", ["n" * 257, None])
def test_a_name_that_is_no_name_is_refused(name):
    with pytest.raises(SettingsError, match="job name"):
        encode_repeat(name, b"\x01", Every(5), SKIP, Bounds(), key="k")


@pytest.mark.parametrize(
    ("pattern", "policy"),
    [
        (Every(250), SKIP),
        (Cron("*/5 * * * *", "+05:30"), MissedFires.fire_once()),
        (Cron("@daily"), MissedFires.fire_all(9)),
    ],
    ids=["every", "cron with a zone", "nickname"],
)
def test_what_was_spelled_is_understood_again(pattern, policy):
    retry = RetryOverride(3, Backoff.fixed(50))
    new = encode_repeat("mail", b"\x01", pattern, policy, Bounds(limit=4), retry)

    stored = read_stored(new.spec, new.retry, b"2")

    assert (stored.pattern, stored.policy) == (pattern, policy)
    assert (stored.retry, stored.fired) == (retry, 2)
    assert (stored.spec.key, stored.spec.limit, stored.spec.payload) == (new.key, 4, b"\x01")


def test_a_plan_without_retry_options_stores_none():
    new = encode_repeat("mail", b"\x01", Every(250), SKIP, Bounds())

    assert new.retry == b""
    assert read_stored(new.spec, None, None).retry is None


@pytest.mark.parametrize(
    ("retry", "fired"), [(b"\xc1", None), (b"\x93\x01\x02\x03", None), (None, b"many")]
)
def test_fields_that_make_no_sense_are_no_plan(retry, fired):
    new = encode_repeat("mail", b"\x01", Every(250), SKIP, Bounds())

    with pytest.raises(DecodeError, match="make sense"):
        read_stored(new.spec, retry, fired)


@pytest.mark.parametrize("pattern", [{"Cron": ["61 * * * *", None]}, {"Cron": ["@daily", "Mars"]}])
def test_an_expression_or_a_zone_that_does_not_exist_is_no_plan(pattern):
    import msgpack

    row = ["k", "mail", pattern, b"\xc4\x01\x01", None, None, None, 0]

    with pytest.raises(DecodeError, match="make sense"):
        read_stored(msgpack.packb(row), None, None)


def test_what_is_kept_of_a_bad_plan_survives_the_wire():
    record = BadRecord("because", b"\xff\x00", 1_794_727_017_102)

    assert decode_record(encode_record(record)) == record


def test_a_record_of_somebody_else_is_shown_as_it_is():
    assert decode_record(b"\xc1 noise").spec == b"\xc1 noise"
