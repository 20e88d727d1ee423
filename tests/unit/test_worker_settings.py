"""Settings that a worker cannot work with are refused where it is made, each by its name."""

from __future__ import annotations

import inspect
import random
import re
from fractions import Fraction

import pytest

from chasquimq import Consumer, Hooks, Queue, QueueEvents, Scheduler, Worker, blocking
from chasquimq.errors import SettingsError
from chasquimq.model.retry import delay_ms
from chasquimq.settings import (
    AckSettings,
    ConnectionSettings,
    EventSettings,
    HistorySettings,
    LeaseSettings,
    PoolSettings,
    ProducerSettings,
    ReadSettings,
    ResultSettings,
    RetrySettings,
    UpkeepSettings,
    WorkerSettings,
)
from chasquimq.worker.handlers import HandlerSet

WHOLE_NUMBERS = (
    "concurrency",
    "max_attempts",
    "read_block_ms",
    "read_count",
    "claim_min_idle_ms",
    "max_payload_bytes",
    "dlq_max_stream_len",
    "history_max_bytes",
    "scheduler_tick_ms",
    "result_ttl_ms",
    "max_result_bytes",
    "pool_size",
    "timeout_ms",
    "shutdown_deadline_ms",
    "stall_after_ms",
)
YES_OR_NO = (
    "events_enabled",
    "history",
    "delayed_enabled",
    "run_scheduler",
    "store_results",
    "insecure_tls",
)
HOOKS = ("on_startup", "on_shutdown", "on_completed", "on_failed", "on_dead", "on_lease_lost")


async def echo(job):
    return job.data


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
@pytest.mark.parametrize("found", [5e3, 10.5, 25.0, 0.0, True, False, "5", Fraction(5)])
def test_a_number_that_is_not_whole_is_refused_by_its_name(name, found):
    with refused(f"{name} must be a whole number, got {found!r}"):
        Worker("q", echo, store_results=True, **{name: found})


def test_every_number_that_a_worker_takes_is_whole():
    takes = inspect.signature(Worker).parameters.values()
    numbers = {one.name for one in takes if one.annotation in ("int", "int | None")}

    assert numbers == set(WHOLE_NUMBERS)


@pytest.mark.parametrize("name", YES_OR_NO)
@pytest.mark.parametrize("found", ["yes", 1, 0, []])
def test_what_is_neither_true_nor_false_is_refused_by_its_name(name, found):
    with refused(f"{name} must be True or False, got {found!r}"):
        Worker("q", echo, **{name: found})


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_cannot_be_called_is_refused(name):
    with refused(f"{name} must be a function that takes one argument, got 5"):
        Worker("q", echo, **{name: 5})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metrics": 5}, "metrics must be a MetricsSink, got 5; subclass it"),
        ({"retry": 5}, "retry must be a RetrySettings, got 5; the runs of a job are max_attempts"),
        ({"retry": 5, "max_attempts": 3}, "retry must be a RetrySettings, got 5"),
        ({"retry": 0}, "retry must be a RetrySettings, got 0"),
        ({"abilities": 5}, "abilities must be an AbilitySettings, got 5"),
        ({"consumer_id": ""}, "consumer_id must be a string that is not blank, got ''"),
        ({"consumer_id": 5}, "consumer_id must be a string, got 5"),
        ({"history_max_bytes": 1}, "history_max_bytes must be at least 65536, got 1"),
    ],
)
def test_settings_of_another_kind_are_refused(options, sentence):
    with refused(sentence):
        Worker("q", echo, **options)


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [
        (ConnectionSettings, "connect_timeout_ms", "connect_timeout_ms"),
        (ProducerSettings, "add_timeout_ms", "add_timeout_ms"),
        (ReadSettings, "held_bytes_max", "held_bytes_max"),
        (AckSettings, "ack.batch_max", "batch_max"),
        (RetrySettings, "jitter_ms", "jitter_ms"),
        (UpkeepSettings, "poll_ms", "poll_ms"),
    ],
)
def test_settings_that_are_made_by_hand_obey_the_same_rule(kind, name, field):
    with refused(f"{name} must be a whole number, got 5.0"):
        kind(**{field: 5.0})


def test_a_multiplier_may_be_a_fraction_and_must_be_a_number():
    assert RetrySettings(multiplier=1.5).multiplier == 1.5
    with refused("multiplier must be a number, got '2'"):
        RetrySettings(multiplier="2")


# Groups, and keywords that stand for a field of one.


async def greet(_):
    pass


@pytest.mark.parametrize(
    ("groups", "keywords"),
    [
        ({"retry": RetrySettings(max_attempts=3)}, {"max_attempts": 3}),
        ({"lease": LeaseSettings(lease_ms=900)}, {"claim_min_idle_ms": 900}),
        ({"read": ReadSettings(count=7)}, {"read_count": 7}),
        ({"read": ReadSettings(block_ms=70)}, {"read_block_ms": 70}),
        ({"read": ReadSettings(max_payload_bytes=70)}, {"max_payload_bytes": 70}),
        ({"results": ResultSettings(is_stored=True)}, {"store_results": True}),
        ({"results": ResultSettings(ttl_ms=5_000)}, {"result_ttl_ms": 5_000}),
        ({"results": ResultSettings(max_bytes=9)}, {"max_result_bytes": 9}),
        ({"events": EventSettings(level="terminal")}, {"events": "terminal"}),
        ({"events": EventSettings(level="off")}, {"events_enabled": False}),
        ({"history": HistorySettings(is_kept=False)}, {"history": False}),
        ({"history": HistorySettings(max_bytes=70_000)}, {"history_max_bytes": 70_000}),
        ({"pool": PoolSettings(kind="process", size=2)}, {"pool": "process", "pool_size": 2}),
        ({"upkeep": UpkeepSettings(delayed_enabled=False)}, {"delayed_enabled": False}),
        ({"upkeep": UpkeepSettings(run_scheduler=False)}, {"run_scheduler": False}),
        ({"upkeep": UpkeepSettings(scheduler_tick_ms=9)}, {"scheduler_tick_ms": 9}),
        ({"upkeep": UpkeepSettings(dlq_len_max=9)}, {"dlq_max_stream_len": 9}),
        *(({"hooks": Hooks(**{name: greet})}, {name: greet}) for name in HOOKS),
    ],
)
def test_a_keyword_says_what_its_group_says_and_not_both(groups, keywords):
    grouped, flat = (Worker("q", echo, **options) for options in (groups, keywords))

    assert (grouped._settings, grouped._hooks._hooks) == (flat._settings, flat._hooks._hooks)
    assert (flat._settings, flat._hooks._hooks) != (WorkerSettings(), Hooks())
    (group,), *others = groups, *(name for name in keywords if name not in groups)
    for name in others:
        with refused(f"{name} must be left out where {group} has "):
            Worker("q", echo, **groups, **{name: keywords[name]})


@pytest.mark.parametrize(
    ("events", "enabled"),
    [
        ("off", True),
        ("terminal", False),
        (EventSettings(level="full"), False),
        (EventSettings(level="off"), True),
    ],
)
def test_events_that_are_said_in_two_ways_do_not_contradict_each_other(events, enabled):
    level = events if isinstance(events, str) else events.level
    with refused(f"events_enabled must be left out where events has level={level!r}"):
        Worker("q", echo, events=events, events_enabled=enabled)


@pytest.mark.parametrize(
    ("events", "enabled", "level"),
    [("off", False, "off"), ("terminal", True, "terminal"), ("full", True, "full")],
)
def test_events_that_are_said_alike_in_two_ways_are_taken(events, enabled, level):
    worker = Worker("q", echo, events=events, events_enabled=enabled)

    assert worker._settings.events.level == level


def test_a_keyword_may_say_a_field_that_its_group_leaves_as_it_is():
    retry = RetrySettings(initial_backoff_ms=5)

    worker = Worker("q", echo, retry=retry, max_attempts=3)

    assert worker._settings.retry == RetrySettings(initial_backoff_ms=5, max_attempts=3)


@pytest.mark.parametrize("group", ["retry", "lease", "read", "results", "upkeep", "hooks"])
def test_a_group_of_another_kind_is_refused_by_its_name(group):
    with refused(f"{group} must be "):
        Worker("q", echo, **{group: ConnectionSettings()})


@pytest.mark.parametrize("kind", [Queue, blocking.Queue])
def test_keywords_of_a_queue_say_what_its_producer_group_says_and_not_both(kind):
    with refused("max_stream_len must be left out where producer has max_stream_len=5, got 6"):
        kind("q", producer=ProducerSettings(max_stream_len=5), max_stream_len=6)
    queue = Queue("q", producer=ProducerSettings(resend=False), add_timeout_ms=70)
    assert queue._settings == ProducerSettings(resend=False, add_timeout_ms=70)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Worker("q", echo, concurency=5),
            "Worker takes no argument 'concurency'; did you mean 'concurrency'?",
        ),
        (
            lambda: Worker("q", echo, max_atempts=5),
            "Worker takes no argument 'max_atempts'; did you mean 'max_attempts'?",
        ),
        (
            lambda: Worker("q", echo, max_retries=3),
            "Worker takes no argument 'max_retries'; did you mean 'max_attempts'?",
        ),
        (
            lambda: Queue("q", url="redis://127.0.0.1"),
            "Queue takes no argument 'url'; did you mean 'redis_url'?",
        ),
        (
            lambda: Queue("q", resnd=False),
            "Queue takes no argument 'resnd'; did you mean 'resend'?",
        ),
        (
            lambda: blocking.Queue("q", zzz=1),
            "Queue takes no argument 'zzz'; help(Queue) lists them",
        ),
        (
            lambda: Worker("q", echo, is_stored=True),
            (
                "Worker takes no argument 'is_stored'; 'is_stored' is a field of ResultSettings: "
                "give results=ResultSettings(is_stored=…) or store_results=…"
            ),
        ),
        (
            lambda: Worker("q", echo, initial_backoff_ms=5),
            (
                "Worker takes no argument 'initial_backoff_ms'; 'initial_backoff_ms' is a field of "
                "RetrySettings: give retry=RetrySettings(initial_backoff_ms=…)"
            ),
        ),
        (
            lambda: RetrySettings(inital_backoff_ms=5),
            "RetrySettings takes no argument 'inital_backoff_ms'; did you mean 'initial_backoff_ms'?",
        ),
        (
            lambda: ConnectionSettings(comand_timeout_ms=5),
            (
                "ConnectionSettings takes no argument 'comand_timeout_ms'; did you mean "
                "'command_timeout_ms'?"
            ),
        ),
        (
            lambda: WorkerSettings(concurency=5),
            "WorkerSettings takes no argument 'concurency'; did you mean 'concurrency'?",
        ),
        (
            lambda: Hooks(on_complete=print),
            "Hooks takes no argument 'on_complete'; did you mean 'on_completed'?",
        ),
        (
            lambda: Queue("q", events_max_stream_len=5),
            (
                "Queue takes no argument 'events_max_stream_len'; 'events_max_stream_len' is a field "
                "of ProducerSettings: give producer=ProducerSettings(events_max_stream_len=…)"
            ),
        ),
    ],
)
def test_a_keyword_that_means_nothing_is_refused_with_the_nearest_one(make, sentence):
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        make()


@pytest.mark.parametrize("name", ["ttl_ms", "lease_ms", "janitor_ms", "max_bytes", "count"])
def test_a_field_of_a_group_is_refused_with_its_group_and_keywords_that_there_are(name):
    with pytest.raises(TypeError, match=f"{name!r} is a field of ") as refusal:
        Worker("q", echo, **{name: 5_000})

    takes = inspect.signature(Worker).parameters
    given = re.findall(r"give (\w+)=|or (\w+)=…", str(refusal.value))
    assert {name for pair in given for name in pair if name} <= takes.keys()


@pytest.mark.parametrize("kind", [Queue, Worker])
def test_a_signature_shows_every_keyword_with_what_it_is_when_left_out(kind):
    takes = inspect.signature(kind).parameters

    assert len(takes) > 15
    assert not any(one.kind is one.VAR_KEYWORD for one in takes.values())
    left_out = {one.name: one.default for one in takes.values() if one.kind is one.KEYWORD_ONLY}
    options = {name: value for name, value in left_out.items() if value is not None}
    kind("q", *([echo] if kind is Worker else []), **options)


def test_native_handles_obey_the_same_rule():
    with refused("concurrency must be a whole number, got 0.0"):
        Consumer("redis://127.0.0.1:1", "q", concurrency=0.0)
    with refused("tick_interval_ms must be a whole number, got 0.0"):
        Scheduler("redis://127.0.0.1:1", "q", tick_interval_ms=0.0)


@pytest.mark.parametrize("name", ["read_block_ms", "read_count", "scheduler_tick_ms"])
def test_zero_still_means_one_where_the_original_says_so(name):
    Worker("q", echo, **{name: 0})


@pytest.mark.parametrize("name", ["timeout", "poll_interval"])
@pytest.mark.parametrize("found", ["1", None, float("nan"), 0])
async def test_a_wait_that_is_no_number_of_seconds_is_refused(name, found):
    async with Queue("q", redis_url="redis://127.0.0.1:1") as queue:
        with refused(f"{name} must be a number of seconds above 0, got {found!r}"):
            await queue.wait_for_result("id", **{name: found})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("completed", 5), "callback must be a function that takes one argument, got 5"),
        ((5, echo), "event_name must be the name of an event, or None for all, got 5"),
    ],
)
def test_callbacks_of_another_kind_are_refused(words, sentence):
    with refused(sentence):
        QueueEvents("q").on(*words)


def test_an_event_that_no_worker_tells_is_followed_with_a_warning():
    with pytest.warns(UserWarning, match="'compelted'.* did you mean 'completed'"):
        QueueEvents("q").on("compelted", echo)


@pytest.mark.parametrize("name", ["block_ms", "count"])
def test_numbers_of_events_are_whole(name):
    with refused(f"{name} must be a whole number, got 1.5"):
        QueueEvents("q", **{name: 1.5})


def refused(sentence: str):
    return pytest.raises(SettingsError, match=f"^{re.escape(sentence)}")


@pytest.mark.parametrize(
    ("retry", "wait_ms"),
    [
        (RetrySettings(max_backoff_ms=50, jitter_ms=0), 50),
        (RetrySettings(initial_backoff_ms=60_000, jitter_ms=0), 30_000),
    ],
    ids=["a cap below the usual wait", "a wait above the usual cap"],
)
def test_the_first_wait_is_cut_to_the_longest(retry, wait_ms):
    backoff = HandlerSet(echo, WorkerSettings(retry=retry)).policy.backoff

    assert delay_ms(1, None, backoff, random.Random(5)) == wait_ms
