"""What becomes of a job: every reason to bury, every reason to wait, and how much that costs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from chasquimq.errors import DecodeError, RetryLater, UnrecoverableError
from chasquimq.model.delivery import Delivery, DlqReason, Failure, describe, ready_ms
from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.model.retry import (
    BackoffDefaults,
    Bury,
    Retry,
    RetryPolicy,
    UnknownName,
    is_at_once,
    judge,
    judge_start,
    unknown_since_ms,
)

READY_MS = 1_700_000_000_000
POLICY = RetryPolicy(
    max_attempts=3,
    backoff=BackoffDefaults(jitter_ms=0),
    unknown_name_retry_ms=5_000,
    unknown_name_for_ms=600_000,
)


class NoLuck:
    """Dice that always show nothing."""

    def randrange(self, _stop: int) -> int:
        return 0


def delivery(spent=0, earlier=0, *, attempts=None, backoff=None, **extras) -> Delivery:
    asks = attempts is not None or backoff is not None
    return Delivery(
        entry_id=b"%d-7" % READY_MS, job_id="job", name="n", payload=b"\x01",
        created_at_ms=READY_MS - 5, spent=spent, earlier=earlier,
        retry=RetryOverride(attempts, backoff) if asks else None,
        extras=extras or None, due_ms=None, envelope=b"",
    )  # fmt: skip


def verdict(one: Delivery, error: BaseException, now_ms: float = READY_MS) -> Retry | Bury:
    return judge(one, error, POLICY, NoLuck(), now_ms)


# arrivals


@pytest.mark.parametrize(("spent", "earlier"), [(0, 0), (2, 0), (0, 2), (1, 1)])
def test_a_job_within_its_budget_may_start(spent, earlier):
    assert judge_start(delivery(spent, earlier), POLICY, READY_MS) is None


@pytest.mark.parametrize(
    ("spent", "earlier", "reason"),
    [
        (3, 0, DlqReason.RETRIES_EXHAUSTED),
        (0, 3, DlqReason.CRASH_LOOP),
        (2, 1, DlqReason.CRASH_LOOP),
        (9, 9, DlqReason.CRASH_LOOP),
    ],
)
def test_a_job_over_its_budget_never_starts_again(spent, earlier, reason):
    assert judge_start(delivery(spent, earlier), POLICY, READY_MS) == Bury(reason)


@pytest.mark.parametrize(("attempts", "may_start"), [(1, False), (2, True), (None, True)])
def test_a_jobs_own_budget_comes_before_the_workers(attempts, may_start):
    found = judge_start(delivery(1, attempts=attempts), POLICY, READY_MS)

    assert (found is None) is may_start


@pytest.mark.parametrize(("age_ms", "is_expired"), [(0, False), (1_000, False), (1_001, True)])
def test_a_job_expires_after_its_time_in_the_stream(age_ms, is_expired):
    found = judge_start(delivery(expires_ms=1_000), POLICY, READY_MS + age_ms)

    assert found == (Bury(DlqReason.EXPIRED) if is_expired else None)


@pytest.mark.parametrize("spent_and_earlier", [(1, 0), (0, 1)])
def test_a_job_that_has_started_once_does_not_expire(spent_and_earlier):
    assert judge_start(delivery(*spent_and_earlier, expires_ms=1), POLICY, READY_MS + 9_999) is None


@pytest.mark.parametrize("expires_ms", ["1", None, 1.5, []], ids=repr)
def test_an_expiry_of_a_stranger_that_is_no_number_is_none(expires_ms):
    assert judge_start(delivery(expires_ms=expires_ms), POLICY, READY_MS + 9_999) is None


# failures


@pytest.mark.parametrize(("spent", "earlier", "after_ms"), [(0, 0, 100), (1, 0, 200), (0, 1, 200)])
def test_a_failure_within_the_budget_is_retried_later_and_later(spent, earlier, after_ms):
    found = verdict(delivery(spent, earlier), ValueError("no"))

    assert found == Retry(after_ms, spent + earlier + 1)


def test_a_jobs_own_backoff_comes_before_the_workers():
    assert verdict(delivery(backoff=Backoff.fixed(7)), ValueError("no")) == Retry(7, 1)


@pytest.mark.parametrize(("spent", "earlier"), [(2, 0), (0, 2), (1, 1), (5, 5)])
def test_the_last_failure_of_a_budget_buries(spent, earlier):
    assert verdict(delivery(spent, earlier), ValueError("no")) == Bury(DlqReason.RETRIES_EXHAUSTED)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnrecoverableError("no"), DlqReason.UNRECOVERABLE),
        (type("Own", (UnrecoverableError,), {})("no"), DlqReason.UNRECOVERABLE),
        (DecodeError("no"), DlqReason.DECODE_FAILED),
    ],
    ids=["unrecoverable", "of one's own", "unreadable"],
)
def test_what_no_retry_can_heal_is_buried_at_once(error, reason):
    assert verdict(delivery(), error) == Bury(reason)


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), GeneratorExit(), SystemExit(1), KeyboardInterrupt()],
    ids=repr,
)
def test_every_other_error_is_a_failure_like_any(error):
    assert verdict(delivery(), error) == Retry(100, 1)


@pytest.mark.parametrize(
    ("asked_ms", "after_ms"),
    [
        (250, 250),
        (0, 0),
        (-5, 0),
        (1.9, 1),
        (float("inf"), 2**52),
        (2**60, 2**52),
        (10**400, 2**52),
        (timedelta(seconds=60), 60_000),
        (timedelta(seconds=-1), 0),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_handler_that_asks_to_wait_spends_no_attempt(asked_ms, after_ms):
    assert verdict(delivery(1, 1), RetryLater(asked_ms)) == Retry(after_ms, 2)


@pytest.mark.parametrize(
    ("after_ms", "spent", "is_needless"), [(0, 2, True), (1, 2, False), (0, 1, False)],
    ids=["no wait", "a wait", "a snooze"],
)  # fmt: skip
def test_only_a_failure_without_backoff_need_not_wait(after_ms, spent, is_needless):
    assert is_at_once(Retry(after_ms, spent), delivery(1)) is is_needless


@pytest.mark.parametrize("asked_ms", [float("nan"), None, "5"], ids=repr)
def test_a_wait_that_is_no_time_is_a_failure(asked_ms):
    assert verdict(delivery(), RetryLater(asked_ms)) == Retry(100, 1)


@pytest.mark.parametrize("asked", [None, "60", [1]], ids=repr)
def test_a_wait_of_another_kind_says_what_it_must_be(asked):
    said = describe(RetryLater(asked)).message

    assert said == f"RetryLater must be given milliseconds or a timedelta, got {asked!r}"


def test_no_wait_is_longer_than_the_clock_can_tell():
    endless = Backoff("fixed", 2**63, 2**63, None, None)

    assert verdict(delivery(backoff=endless), ValueError("no")) == Retry(2**52, 1)


# unknown names


def test_a_job_nobody_knows_waits_for_a_worker_that_does_and_spends_nothing():
    assert verdict(delivery(1, 1), UnknownName()) == Retry(5_000, 2)


@pytest.mark.parametrize(
    ("known_for_ms", "answer"),
    [(599_999, Retry(5_000, 0)), (600_000, Bury(DlqReason.UNKNOWN_NAME))],
)
def test_a_job_nobody_knows_is_given_up_after_its_time(known_for_ms, answer):
    one = delivery(unknown_since_ms=READY_MS)

    assert verdict(one, UnknownName(), READY_MS + known_for_ms) == answer


def test_the_first_meeting_counts():
    assert unknown_since_ms(delivery(), READY_MS + 0.7) == READY_MS
    assert unknown_since_ms(delivery(unknown_since_ms=5), READY_MS) == 5
    assert unknown_since_ms(delivery(unknown_since_ms="x"), READY_MS) == READY_MS


# words


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "failure", "text"),
    [
        (ValueError("no"), Failure("ValueError", "no"), "ValueError: no"),
        (ValueError(), Failure("ValueError", ""), "ValueError"),
        (KeyError("k"), Failure("KeyError", "'k'"), "KeyError: 'k'"),
        (Silent(), Failure("Silent", "<exception str() failed>"), None),
        (ValueError("\ud800"), Failure("ValueError", "\\ud800"), None),
        (ValueError("x" * 600), Failure("ValueError", "x" * 512), None),
    ],
    ids=["plain", "wordless", "quoted", "failing", "half a letter", "long"],
)
def test_an_error_is_kept_in_words_that_can_be_stored(error, failure, text):
    assert describe(error) == failure
    assert text is None or failure.text == text


def test_an_error_of_a_child_process_is_kept_in_the_childs_words():
    remote = RuntimeError("the child failed")
    remote.__cause__ = type("Remote", (Exception,), {})()
    vars(remote.__cause__).update(type_name="ZeroDivisionError", message="division by zero")

    assert describe(remote) == Failure("ZeroDivisionError", "division by zero")


def test_errors_that_differ_in_details_share_a_fingerprint():
    one, other = describe(ValueError("user 1")), describe(ValueError("user 22"))

    assert one.fingerprint == other.fingerprint


def test_a_job_is_ready_when_the_server_put_it_into_the_stream():
    assert ready_ms(delivery()) == READY_MS
