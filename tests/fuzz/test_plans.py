"""Plans of repeatable jobs and of retries: any text and any bytes, and never a hang."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError, SettingsError
from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.model.retry import BackoffDefaults, delay_ms
from chasquimq.model.schedule import Cron, plan_fires
from chasquimq.wire.repeat import StoredRepeat, read_stored
from fuzz.seeds import RUN_S_MAX, budget, golden, lines, mutated

NOW_MS = 1_893_456_000_000
# The hardest question there is takes a fifth of it.
ANSWER_S_MAX = 1.0
DEFAULTS = BackoffDefaults(
    initial_backoff_ms=100, max_backoff_ms=30_000, multiplier=2.0, jitter_ms=100
)

CRON_LINES, ZONES = lines("cron.txt"), lines("zones.txt")
RETRIES = [msgspec.msgpack.encode(one) for one in (
    RetryOverride(3, None), RetryOverride(None, Backoff("fixed", 50, None, None, 0)),
    RetryOverride(2**32 - 1, Backoff("exponential", 2**64 - 1, 2**64 - 1, 1e308, 2**64 - 1)),
)]  # fmt: skip

instants = st.integers(0, 2**53) | st.just(NOW_MS)
expressions = mutated([line.encode() for line in CRON_LINES]).map(lambda raw: raw.decode("latin-1"))
zones = st.sampled_from(ZONES) | st.text(max_size=12)


def ask(expression: str, tz: str, from_ms: int) -> int | None:
    """The next window, None where text or zone is refused."""
    try:
        return Cron(expression, tz).next_after(from_ms)
    except SettingsError:
        return None


def within_a_second(read, *args):
    began_s = time.process_time()
    answer = read(*args)
    assert time.process_time() - began_s < ANSWER_S_MAX
    return answer


@pytest.mark.parametrize("tz", [None, "Europe/Berlin", "Australia/Lord_Howe", "-11:30"])
def test_every_known_line_is_refused_or_names_a_later_instant(tz):
    answers = {line: within_a_second(ask, line, tz, NOW_MS) for line in CRON_LINES}

    assert [line for line, next_ms in answers.items() if next_ms and next_ms <= NOW_MS] == []
    assert sum(next_ms is not None for next_ms in answers.values()) > len(CRON_LINES) / 4
    assert None in answers.values()


@pytest.mark.parametrize("tz", ZONES)
def test_every_known_zone_is_refused_or_has_a_noon(tz):
    next_ms = ask("0 12 * * *", tz, NOW_MS)

    assert next_ms is None or NOW_MS < next_ms <= NOW_MS + 25 * 3_600_000


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(expressions, zones, instants)
def test_any_line_in_any_zone_is_refused_or_names_a_later_instant(expression, tz, from_ms):
    next_ms = within_a_second(ask, expression, tz, from_ms)

    assert next_ms is None or next_ms > from_ms


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(
    mutated(golden("repeatables", "spec_hex")),
    st.none() | mutated(RETRIES) | st.binary(max_size=9),
    st.none() | st.sampled_from([b"0", b"7", b"-1", b"1e9", b"9" * 30]) | st.binary(max_size=9),
    instants,
    instants,
)
def test_any_spec_on_the_server_is_put_aside_or_has_a_plan(spec, retry, fired, due_ms, now_ms):
    stored = within_a_second(understood, spec, retry, fired)
    if stored is None:
        return

    plan = within_a_second(plan_fires, stored.pattern, due_ms, now_ms, stored.policy)

    assert all(window_ms <= now_ms for window_ms in plan.fires)
    assert plan.next_ms is None or plan.next_ms > min(now_ms, due_ms)
    assert stored.envelope("id", 1)


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(mutated(RETRIES), st.integers(1, 2**32 - 1))
def test_any_backoff_is_refused_or_a_time_to_wait(retry, number):
    try:
        override = msgspec.msgpack.decode(retry, type=RetryOverride)
    except (ValueError, RecursionError):
        return

    wait_ms = delay_ms(number, override.backoff, DEFAULTS, random.Random(1))

    assert isinstance(wait_ms, int)
    assert wait_ms >= 0


def understood(spec: bytes, retry: bytes | None, fired: bytes | None) -> StoredRepeat | None:
    try:
        return read_stored(spec, retry, fired)
    except DecodeError:
        return None
