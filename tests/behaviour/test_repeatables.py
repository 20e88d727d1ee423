"""Jobs that repeat: planned once, fired on time and once, listed, changed and ended."""

from __future__ import annotations

import asyncio
import time

import msgpack
import pytest

from chasquimq import BackoffSpec, MissedFiresPolicy, RepeatableMeta, RepeatPattern
from chasquimq.engine.upkeep import RepeatableScheduler
from chasquimq.errors import (
    EncodeError,
    KindRefused,
    LimitExceeded,
    PayloadTooLarge,
    SettingsError,
)
from chasquimq.model.job_options import Backoff, RetryOverride
from chasquimq.model.schedule import Plan
from chasquimq.settings import ConnectionSettings, UpkeepSettings
from chasquimq.store.inspect.queue import server_ms
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.repeatables import FiringStore
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.new_job import ulid_ms
from chasquimq.wire.repeat import RepeatSpec, encode_spec
from chasquimq.worker.upkeep import Upkeep
from support.waiting import eventually, patience
from wire.vectors import cases, load

GOLDEN = load("repeatables")["repeatables"]
EVERY_MINUTE = RepeatPattern.every(60_000)
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
SKIP, ONCE = MissedFiresPolicy.skip(), MissedFiresPolicy.fire_once()


@pytest.fixture
async def firing(url, queue_name):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    yield FiringStore(queue_name, link)
    await link.close()


@pytest.fixture
def scheduler(firing):
    """A scheduler that takes a step when the test says so."""
    return RepeatableScheduler(firing, UpkeepSettings())


@pytest.fixture
def now_ms(raw):
    return lambda: server_ms(raw.connection)


@pytest.fixture
def come(raw, now_ms):
    """Pretend that a plan has been waiting for its window since then; answers that window."""

    async def put(key, ago_ms=0):
        due_ms = await now_ms() - ago_ms
        await raw("ZADD", raw.keys.repeat, "XX", due_ms, key)
        return due_ms

    return put


@pytest.fixture
def fired(raw):
    """The entries that fires left in the stream, oldest first."""

    async def ask():
        return [Fired(fields) for _, fields in await raw.entries(raw.keys.stream)]

    return ask


@pytest.fixture
def keys_left(raw):
    async def ask():
        found = await raw("KEYS", "{chasqui:" + raw.keys.queue + "}:*")
        # The producer's own connection creates the stream.
        return sorted(set(found) - {raw.keys.stream.encode()})

    return ask


class Fired:
    def __init__(self, fields):
        self.envelope = decode_envelope(fields[b"d"])
        self.name = fields.get(b"n", b"").decode()
        self.due_ms = int(fields[b"due"])
        self.data = msgpack.unpackb(self.envelope.payload)


async def next_ms(queue, key):
    (found,) = [meta.next_fire_ms for meta in await queue.get_repeatable_jobs() if meta.key == key]
    return found


async def dues(fired):
    return [one.due_ms for one in await fired()]


# ── what is written ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vector", cases(GOLDEN["specs"]))
async def test_a_plan_is_written_byte_for_byte_as_the_original_writes_it(queue, raw, vector):
    decoded = vector["decoded"]
    job = await queue.upsert_repeatable_job(
        decoded["job_name"],
        msgpack.unpackb(bytes.fromhex(decoded["payload_inner_bin_hex"])),
        repeat=pattern_of(decoded),
        missed_fires=policy_of(decoded),
        key="my-key" if decoded["key"] == "my-key" else None,
        **{name: decoded[name] for name in ("limit", "start_after_ms", "end_before_ms")},
    )

    spec = await raw("HGET", raw.keys.repeat_spec(vector["resolved_key"]), "spec")
    assert spec.hex() == vector["spec_hex"]
    assert job.id == vector["resolved_key"]
    assert await raw("ZSCORE", raw.keys.repeat, vector["resolved_key"]) is not None


@pytest.mark.parametrize(
    "vector", cases([spec for spec in GOLDEN["specs"] if spec["decoded"]["start_after_ms"]])
)
async def test_the_first_fire_is_the_one_the_original_finds(queue, vector):
    decoded = vector["decoded"]
    await queue.upsert_repeatable_job(
        decoded["job_name"], 1, repeat=pattern_of(decoded),
        start_after_ms=decoded["start_after_ms"],
    )  # fmt: skip

    assert await next_ms(queue, vector["resolved_key"]) == vector["score"]


def pattern_of(decoded):
    match decoded["pattern"]:
        case {"Every": [interval_ms]}:
            return RepeatPattern.every(interval_ms)
        case {"Cron": [expression, tz]}:
            return RepeatPattern.cron(expression, tz=tz)


def policy_of(decoded):
    match decoded["missed_fires"]:
        case "FireOnce":
            return MissedFiresPolicy.fire_once()
        case {"FireAll": [max_catchup]}:
            return {"kind": "fire-all", "max_catchup": max_catchup}
        case _:
            return None


@pytest.mark.parametrize("vector", cases(GOLDEN["specs"]))
async def test_a_plan_the_original_wrote_is_listed_and_fires(raw, queue, scheduler, fired, vector):
    key, decoded = vector["resolved_key"], vector["decoded"]
    await raw("HSET", raw.keys.repeat_spec(key), "spec", bytes.fromhex(vector["spec_hex"]))
    await raw("ZADD", raw.keys.repeat, vector["score"], key)
    (listed,) = await queue.get_repeatable_jobs()
    due_ms = await server_ms(raw.connection)
    await raw("ZADD", raw.keys.repeat, due_ms, key)

    await scheduler.run_once()

    assert (listed.key, listed.job_name) == (key, decoded["job_name"])
    assert (listed.next_fire_ms, listed.pattern) == (vector["score"], pattern_of(decoded))
    (one,) = await fired()
    assert (one.name, one.due_ms) == (decoded["job_name"], due_ms)
    assert one.envelope.payload.hex() == decoded["payload_inner_bin_hex"]


async def test_a_fired_job_has_the_envelope_the_original_gives_it(queue, scheduler, come, raw):
    (golden, *_) = GOLDEN["fires"]["stream_entries"]
    await queue.upsert_repeatable_job("tick", {"n": 1}, repeat=RepeatPattern.every(150), limit=3)
    await come("tick::every:150")

    await scheduler.run_once()

    ((_, fields),) = await raw.entries(raw.keys.stream)
    ours, theirs = fields[b"d"], bytes.fromhex(golden["d_hex"])
    assert (len(ours), fields[b"n"].hex()) == (len(theirs), golden["n_hex"])
    assert decode_envelope(ours).payload == decode_envelope(theirs).payload
    assert (decode_envelope(ours).attempt, decode_envelope(ours).retry) == (0, None)


# ── upsert ───────────────────────────────────────────────────────────────────────────────────


async def test_the_same_plan_again_changes_nothing(queue, raw, scheduler, come):
    first = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, limit=5)
    await come(first.id)
    await scheduler.run_once()
    score = await raw("ZSCORE", raw.keys.repeat, first.id)

    again = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, limit=5)

    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert await raw("ZSCORE", raw.keys.repeat, first.id) == score
    assert await raw("HGET", raw.keys.repeat_spec(first.id), "fired") == b"1"


@pytest.mark.parametrize(
    "change", [{"data": 2}, {"limit": 6}, {"attempts": 2}, {"missed_fires": ONCE}], ids=str
)
async def test_a_changed_plan_starts_afresh(queue, raw, scheduler, come, now_ms, change):
    plan = {"data": 1, "repeat": EVERY_MINUTE, "limit": 5}
    job = await queue.upsert_repeatable_job("mail", **plan)
    await come(job.id)
    await scheduler.run_once()
    await come(job.id, ago_ms=-5_000)
    before_ms = await now_ms()

    changed = await queue.upsert_repeatable_job("mail", **(plan | change))

    assert not changed.is_duplicate
    assert await next_ms(queue, job.id) >= before_ms + MINUTE_MS
    assert await raw("HEXISTS", raw.keys.repeat_spec(job.id), "fired") == 0


async def test_plans_of_one_name_live_side_by_side_under_their_own_keys(queue):
    await queue.upsert_repeatable_job("mail", "a", repeat=EVERY_MINUTE, key="a")
    await queue.upsert_repeatable_job("mail", "b", repeat=EVERY_MINUTE, key="b")

    assert {meta.key for meta in await queue.get_repeatable_jobs()} == {"a", "b"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"repeat": RepeatPattern.cron("61 * * * *")}, SettingsError),
        ({"repeat": RepeatPattern.cron("0 0 30 2 *")}, SettingsError),
        ({"repeat": RepeatPattern.cron("@daily", tz="Mars/Olympus")}, SettingsError),
        ({"repeat": RepeatPattern.cron(None)}, SettingsError),
        ({"repeat": RepeatPattern.every(0)}, SettingsError),
        ({"repeat": RepeatPattern.every(1.5)}, SettingsError),
        ({"repeat": RepeatPattern("hourly")}, SettingsError),
        ({"repeat": {"kind": "every"}}, SettingsError),
        ({"repeat": 1_000}, KindRefused),
        ({"missed_fires": {"kind": "fire-all", "max_catchup": 0}}, SettingsError),
        ({"missed_fires": "skip"}, KindRefused),
        ({"limit": 0}, LimitExceeded),
        ({"limit": "3"}, SettingsError),
        ({"start_after_ms": -1}, LimitExceeded),
        ({"start_after_ms": 2_000, "end_before_ms": 1_000}, SettingsError),
        ({"end_before_ms": 1_000}, SettingsError),
        ({"attempts": 0}, LimitExceeded),
        ({"backoff": {"kind": "linear", "delay_ms": 5}}, SettingsError),
        ({"job_id": "mine"}, SettingsError),
        ({"name": "n" * 257}, LimitExceeded),
        ({"name": 5}, SettingsError),
        ({"key": " "}, SettingsError),
        ({"key": "k" * 1_025}, LimitExceeded),
        ({"data": {1, 2}}, EncodeError),
        ({"data": b"x" * (1024 * 1024)}, PayloadTooLarge),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
async def test_a_plan_that_makes_no_sense_is_refused_before_anything_is_written(
    queue, keys_left, change, error
):
    plan = {"name": "mail", "data": 1, "repeat": EVERY_MINUTE} | change

    with pytest.raises(error):
        await queue.upsert_repeatable_job(**plan)

    assert await keys_left() == []


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"missed_fires": "skip"}, "MissedFiresPolicy.skip()"),
        ({"missed_fires": "fire-once"}, "MissedFiresPolicy.fire_once()"),
        ({"missed_fires": "fire_all"}, "MissedFiresPolicy.fire_all(max_catchup=100)"),
        ({"missed_fires": "later"}, "MissedFiresPolicy.skip()"),
        ({"repeat": 1_000}, "RepeatPattern.every(1000)"),
        ({"repeat": "0 7 * * *"}, "RepeatPattern.cron('0 7 * * *')"),
        ({"repeat": True}, "RepeatPattern.every(60000)"),
    ],
)
async def test_a_plain_value_in_place_of_a_pattern_or_policy_is_refused_with_what_to_write(
    queue, change, remedy
):
    plan = {"name": "mail", "data": 1, "repeat": EVERY_MINUTE} | change

    with pytest.raises(KindRefused) as refused:
        await queue.upsert_repeatable_job(**plan)

    assert str(refused.value).endswith(f"; for example {remedy}")


async def test_a_refused_job_id_says_what_to_use_instead(queue):
    with pytest.raises(ValueError, match=r"each fire has an id of its own.*key="):
        await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, job_id="mine")


# ── through add ──────────────────────────────────────────────────────────────────────────────


async def test_add_with_repeat_plans_instead_of_adding(queue, fired, raw):
    job = await queue.add(
        "viaadd", {"z": 1}, repeat={"kind": "every", "interval_ms": 62_000},
        missed_fires=ONCE, attempts=3, backoff=5,
    )  # fmt: skip

    (listed,) = await queue.get_repeatable_jobs()
    assert job.id == listed.key == "viaadd::every:62000"
    assert listed.missed_fires == ONCE
    assert await fired() == []
    assert await raw("HEXISTS", raw.keys.repeat_spec(job.id), "retry") == 1


async def test_add_unique_with_repeat_gives_the_plan_its_id_as_key(queue):
    job = await queue.add_unique("mail", 1, job_id="nightly", repeat=EVERY_MINUTE)
    again = await queue.add_unique("mail", 1, job_id="nightly", repeat=EVERY_MINUTE)

    assert (job.id, again.is_duplicate) == ("nightly", True)
    assert len(await queue.get_repeatable_jobs()) == 1


@pytest.mark.parametrize(
    "useless",
    [
        {"job_id": "mine"},
        {"delay_ms": 5},
        {"expires_ms": 5},
        {"timeout_ms": 5},
        {"unique_for_ms": 5},
        {"on_conflict": "raise"},
        {"durability": "server"},
    ],
    ids=str,
)
async def test_arguments_that_a_plan_has_no_use_for_are_refused(queue, keys_left, useless):
    (name,) = useless

    with pytest.raises(SettingsError, match=name):
        await queue.add("mail", 1, repeat=EVERY_MINUTE, **useless)

    assert await keys_left() == []


@pytest.mark.parametrize("useless", [{"delay_ms": 5}, {"unique_for_ms": 5}], ids=str)
async def test_a_unique_plan_refuses_them_too(queue, useless):
    with pytest.raises(SettingsError, match="left out where a job repeats"):
        await queue.add_unique("mail", 1, job_id="k", repeat=EVERY_MINUTE, **useless)


@pytest.mark.parametrize("add", ["add", "add_unique"])
async def test_missed_fires_without_repeat_are_refused(queue, add):
    own_id = {"job_id": "k"} if add == "add_unique" else {}

    with pytest.raises(ValueError, match="together with repeat"):
        await getattr(queue, add)("mail", 1, missed_fires=SKIP, **own_id)


# ── list, remove, run now ────────────────────────────────────────────────────────────────────


async def test_plans_are_listed_by_their_next_fire(queue, come):
    for key in ("late", "soon", "sooner"):
        await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, key=key)
    await come("soon", ago_ms=-5_000)
    await come("sooner", ago_ms=-1_000)

    assert [meta.key for meta in await queue.get_repeatable_jobs()] == ["sooner", "soon", "late"]
    assert [meta.key for meta in await queue.get_repeatable_jobs(limit=1)] == ["sooner"]
    assert await queue.get_repeatable_jobs(limit=0) == []


async def test_a_listed_plan_tells_all_that_was_asked_for(queue):
    cron = RepeatPattern.cron("0 2 * * *", tz="Asia/Tokyo")
    policy = MissedFiresPolicy.fire_all(9)
    await queue.upsert_repeatable_job(
        "mail", 1, repeat=cron, limit=3, start_after_ms=1_893_456_000_000,
        end_before_ms=1_893_999_999_999, missed_fires=policy,
    )  # fmt: skip

    assert await queue.get_repeatable_jobs() == [
        RepeatableMeta(
            "mail::cron:0 2 * * *:Asia/Tokyo", "mail", cron, 1_893_517_200_000,
            3, 1_893_456_000_000, 1_893_999_999_999, policy,
        )
    ]  # fmt: skip


async def test_many_plans_are_listed_and_unreadable_ones_left_out(queue, raw):
    for number in range(40):
        await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, key=f"k{number}")
    await raw("HSET", raw.keys.repeat_spec("k7"), "spec", "noise")
    await raw("DEL", raw.keys.repeat_spec("k8"), raw.keys.repeat_spec("k9"))
    await raw("SET", raw.keys.repeat_spec("k9"), "no hash")
    await raw("ZADD", raw.keys.repeat, 1, b"\xff")

    assert len(await queue.get_repeatable_jobs()) == 37


@pytest.mark.parametrize("limit", [-1, 1.5, "5"])
async def test_a_limit_of_a_list_is_a_whole_number(queue, limit):
    with pytest.raises(SettingsError):
        await queue.get_repeatable_jobs(limit)


async def test_a_removed_plan_is_gone_and_does_not_fire(queue, scheduler, come, fired, keys_left):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE)
    await come(job.id)

    assert await queue.remove_repeatable_by_key(job.id) is True
    await scheduler.run_once()

    assert await queue.remove_repeatable_by_key(job.id) is False
    assert await queue.get_repeatable_jobs() == []
    assert await fired() == []


async def test_a_plan_removed_while_it_is_about_to_fire_does_not(queue, firing, come, fired):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE)
    due_ms = await come(job.id)
    agenda = await firing.agenda(256)
    (spec,), _ = await firing.read(agenda.due)

    await queue.remove_repeatable_by_key(job.id)

    assert await firing.fire([(spec, Plan([due_ms], due_ms + MINUTE_MS))], agenda.now_ms) == 0
    assert await fired() == []
    assert await queue.get_repeatable_jobs() == []


async def test_a_plan_can_run_at_once_without_moving_its_cadence(queue, raw):
    planned = await queue.upsert_repeatable_job("mail", {"a": 1}, repeat=EVERY_MINUTE, attempts=4)
    before_ms = await next_ms(queue, planned.id)

    job = await queue.run_repeatable_now(planned.id)
    other = await queue.run_repeatable_now(planned.id)

    entries = [fields for _, fields in await raw.entries(raw.keys.stream)]
    envelopes = [decode_envelope(fields[b"d"]) for fields in entries]
    assert [envelope.id for envelope in envelopes] == [job.id, other.id]
    assert [envelope.retry.max_attempts for envelope in envelopes] == [4, 4]
    assert (job.name, job.data, entries[0][b"n"]) == ("mail", {"a": 1}, b"mail")
    assert await next_ms(queue, planned.id) == before_ms
    assert await raw("HEXISTS", raw.keys.repeat_spec(planned.id), "fired") == 0


async def test_to_run_an_unknown_plan_is_refused(queue):
    with pytest.raises(SettingsError, match="get_repeatable_jobs"):
        await queue.run_repeatable_now("nobody")


# ── fires ────────────────────────────────────────────────────────────────────────────────────


async def test_a_window_that_has_come_becomes_a_job(queue, scheduler, come, fired, now_ms):
    job = await queue.upsert_repeatable_job("mail", {"a": 1}, repeat=EVERY_MINUTE)
    due_ms = await come(job.id)
    before_ms = await now_ms()

    await scheduler.run_once()

    (one,) = await fired()
    assert (one.name, one.data, one.due_ms) == ("mail", {"a": 1}, due_ms)
    assert ulid_ms(one.envelope.id) == due_ms
    assert before_ms <= one.envelope.created_at_ms <= await now_ms()
    assert await next_ms(queue, job.id) == due_ms + MINUTE_MS


async def test_a_window_that_has_not_come_does_not_fire(queue, scheduler, fired):
    await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE)

    pause_ms = await scheduler.run_once()

    assert await fired() == []
    assert pause_ms == UpkeepSettings().scheduler_tick_ms


async def test_a_scheduler_sleeps_until_the_next_window_when_that_is_sooner(queue, scheduler, come):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE)
    await come(job.id, ago_ms=-400)

    assert 300 <= await scheduler.run_once() <= 400


async def test_each_fire_has_the_retry_options_of_its_plan(queue, scheduler, come, fired):
    job = await queue.upsert_repeatable_job(
        "mail", 1, repeat=EVERY_MINUTE, attempts=3, backoff=BackoffSpec.fixed(50)
    )
    await come(job.id)

    await scheduler.run_once()

    (one,) = await fired()
    assert one.envelope.retry.max_attempts == 3
    assert (one.envelope.retry.backoff.kind, one.envelope.retry.backoff.delay_ms) == ("fixed", 50)


async def test_after_its_limit_a_plan_is_gone(queue, scheduler, come, fired, raw):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, limit=2)
    for ago_ms in (2, 1):
        await come(job.id, ago_ms)
        await scheduler.run_once()

    assert len(await fired()) == 2
    assert await raw("EXISTS", raw.keys.repeat, raw.keys.repeat_spec(job.id)) == 0


async def test_after_its_end_a_plan_is_gone(queue, scheduler, fired, now_ms):
    end_ms = await now_ms() + 350
    await queue.upsert_repeatable_job(
        "mail", 1, repeat=RepeatPattern.every(100), end_before_ms=end_ms
    )

    running = asyncio.create_task(scheduler.run())
    await eventually(lambda: has_no_plans(queue))
    scheduler.stop()
    await running

    found = await dues(fired)
    assert found == list(range(found[0], end_ms + 1, 100))


async def test_windows_after_the_end_are_not_caught_up_with(
    queue, scheduler, come, fired, now_ms, raw
):
    end_ms = await now_ms() + MINUTE_MS
    job = await queue.upsert_repeatable_job(
        "mail", 1, repeat=RepeatPattern.every(1_000), end_before_ms=end_ms,
        missed_fires=MissedFiresPolicy.fire_all(100),
    )  # fmt: skip
    spec_hash = raw.keys.repeat_spec(job.id)
    spec = msgpack.unpackb(await raw("HGET", spec_hash, "spec"))
    spec[6] = await now_ms() - 5_500
    await raw("HSET", spec_hash, "spec", msgpack.packb(spec))
    due_ms = await come(job.id, ago_ms=10_000)

    await scheduler.run_once()

    assert await dues(fired) == [due_ms + step * 1_000 for step in range(5)]
    assert await queue.get_repeatable_jobs() == []


async def test_a_plan_that_ended_without_a_worker_still_fires_its_last_window(
    queue, scheduler, come, fired, now_ms, raw
):
    job = await queue.upsert_repeatable_job(
        "mail", 1, repeat=RepeatPattern.every(1_000), end_before_ms=await now_ms() + MINUTE_MS
    )
    spec_hash = raw.keys.repeat_spec(job.id)
    spec = msgpack.unpackb(await raw("HGET", spec_hash, "spec"))
    spec[6] = await now_ms() - 5_500
    await raw("HSET", spec_hash, "spec", msgpack.packb(spec))
    due_ms = await come(job.id, ago_ms=10_000)

    await scheduler.run_once()

    assert await dues(fired) == [due_ms + 4_000]
    assert scheduler.missed_count == 4
    assert await queue.get_repeatable_jobs() == []


async def test_a_plan_waits_for_its_start(queue, now_ms):
    start_ms = await now_ms() + 3 * MINUTE_MS

    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, start_after_ms=start_ms)

    assert await next_ms(queue, job.id) == start_ms + MINUTE_MS


@pytest.mark.parametrize(
    ("policy", "windows"),
    [
        pytest.param(SKIP, [4], id="skip"),
        pytest.param(ONCE, [0], id="fire-once"),
        pytest.param(MissedFiresPolicy.fire_all(100), [0, 1, 2, 3, 4], id="fire-all"),
        pytest.param(MissedFiresPolicy.fire_all(2), [0, 4], id="fire-all with a cap"),
    ],
)
async def test_missed_windows_follow_the_policy(queue, scheduler, come, fired, policy, windows):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, missed_fires=policy)
    due_ms = await come(job.id, ago_ms=4 * MINUTE_MS + 30_000)

    await scheduler.run_once()

    assert await dues(fired) == [due_ms + window * MINUTE_MS for window in windows]
    assert await next_ms(queue, job.id) == due_ms + 5 * MINUTE_MS
    assert scheduler.missed_count == 5 - len(windows)


async def test_a_daily_plan_that_missed_two_days_still_fires_the_day_that_is_only_late(
    queue, scheduler, come, fired
):
    job = await queue.upsert_repeatable_job("report", 1, repeat=RepeatPattern.every(DAY_MS))
    due_ms = await come(job.id, ago_ms=2 * DAY_MS + 3 * HOUR_MS)

    await scheduler.run_once()

    assert await dues(fired) == [due_ms + 2 * DAY_MS]
    assert await next_ms(queue, job.id) == due_ms + 3 * DAY_MS
    assert scheduler.missed_count == 2


async def test_a_plan_of_ten_slots_fires_and_its_jobs_are_retried_as_it_says(
    queue, scheduler, come, fired, raw
):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE)
    spec_hash = raw.keys.repeat_spec(job.id)
    spec = msgpack.unpackb(await raw("HGET", spec_hash, "spec"))
    ten = [*spec[:8], "Skip", [7, ["fixed", 250, None, None, None]]]
    await raw("HSET", spec_hash, "spec", msgpack.packb(ten))
    await come(job.id, ago_ms=10)

    await scheduler.run_once()

    assert await queue.quarantined_repeatables() == []
    assert [listed.key for listed in await queue.get_repeatable_jobs()] == [job.id]
    ((_, fields),) = await raw("XRANGE", raw.keys.stream, "-", "+")
    envelope = decode_envelope(dict(zip(fields[::2], fields[1::2], strict=True))[b"d"])
    assert envelope.retry == RetryOverride(7, Backoff.fixed(250))


async def test_a_short_stall_misses_nothing(queue, scheduler, come, fired):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=RepeatPattern.every(100))
    due_ms = await come(job.id, ago_ms=1_050)

    await scheduler.run_once()

    assert (await dues(fired))[:11] == [due_ms + step * 100 for step in range(11)]
    assert scheduler.missed_count == 0


async def test_to_catch_up_with_many_windows_takes_several_writes(queue, scheduler, come, fired):
    policy = MissedFiresPolicy.fire_all(10_000)
    plan = {"repeat": RepeatPattern.every(1_000), "missed_fires": policy}
    light = await queue.upsert_repeatable_job("light", 1, **plan)
    heavy = await queue.upsert_repeatable_job("heavy", b"x" * 300_000, **plan)
    light_ms = await come(light.id, ago_ms=2_500_500)
    heavy_ms = await come(heavy.id, ago_ms=10_500)

    await scheduler.run_once()

    found = await fired()
    lights = [one.due_ms for one in found if one.name == "light"]
    heavies = [one.due_ms for one in found if one.name == "heavy"]
    assert lights == list(range(light_ms, light_ms + 2_501_000, 1_000))
    assert heavies == list(range(heavy_ms, heavy_ms + 11_000, 1_000))
    assert scheduler.fired_count == len(found)


async def test_more_plans_than_a_step_takes_are_fired_without_a_pause(queue, firing, come, fired):
    scheduler = RepeatableScheduler(firing, UpkeepSettings(), specs_max=8)
    for number in range(20):
        await queue.upsert_repeatable_job("mail", number, repeat=EVERY_MINUTE, key=f"k{number}")
        await come(f"k{number}")

    pauses = [await scheduler.run_once() for _ in range(3)]

    assert [pause_ms == 0 for pause_ms in pauses] == [True, True, False]
    assert sorted(one.data for one in await fired()) == list(range(20))


async def test_an_interval_below_the_tick_fires_at_its_own_pace(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(ulid_ms(job.id))

    await queue.upsert_repeatable_job("beat", None, repeat=RepeatPattern.every(50))
    await running_worker(handler)
    await eventually(lambda: seen)
    began_s, begun = time.monotonic(), len(seen)
    await eventually(lambda: len(seen) >= begun + 40)

    assert 1.8 <= time.monotonic() - began_s <= 3.0 * patience()
    assert sorted(seen) == list(range(min(seen), min(seen) + 50 * len(seen), 50))


async def test_a_worker_fires_what_was_planned_and_its_handler_gets_the_data(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append((job.name, job.data))

    await running_worker(handler, scheduler_tick_ms=50)
    await queue.upsert_repeatable_job("mail", {"a": 1}, repeat=RepeatPattern.every(100), limit=3)

    await eventually(lambda: len(seen) == 3)
    await eventually(lambda: has_no_plans(queue))
    assert seen == [("mail", {"a": 1})] * 3


async def has_no_plans(queue):
    return await queue.get_repeatable_jobs() == []


async def test_a_worker_without_a_scheduler_fires_nothing(queue, running_worker, come, raw):
    async def handler(job):
        pass

    await running_worker(handler, run_scheduler=False, scheduler_tick_ms=20)
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE)
    due_ms = await come(job.id)
    await asyncio.sleep(0.2)

    assert await next_ms(queue, job.id) == due_ms
    assert await raw("EXISTS", raw.keys.scheduler_lock) == 0


# ── leadership ───────────────────────────────────────────────────────────────────────────────


async def test_one_of_two_schedulers_leads_and_a_released_lock_is_free(firing, raw):
    first, second = (RepeatableScheduler(firing, UpkeepSettings()) for _ in range(2))
    await first.run_once()
    await second.run_once()
    led = (first.is_leader, second.is_leader)

    await first.release()
    await second.run_once()

    assert led == (True, False)
    assert second.is_leader
    assert await raw("GET", raw.keys.scheduler_lock) == second.holder.encode()
    assert second.holder.startswith("s-")
    assert 0 < await raw("TTL", raw.keys.scheduler_lock) <= 5


async def test_a_closed_worker_leaves_the_lock_to_others(running_worker, raw):
    async def handler(job):
        pass

    worker = await running_worker(handler)
    await eventually(lambda: raw("EXISTS", raw.keys.scheduler_lock))

    await worker.stop()

    assert await raw("EXISTS", raw.keys.scheduler_lock) == 0


async def test_two_schedulers_that_both_believe_to_lead_fire_a_window_once(
    queue, firing, come, fired, raw
):
    job = await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE)
    await come(job.id)
    agendas = [await firing.agenda(256) for _ in range(2)]
    schedulers = [RepeatableScheduler(firing, UpkeepSettings()) for _ in range(2)]

    for scheduler, agenda in zip(schedulers, agendas, strict=True):
        await scheduler._fire_due(agenda)

    assert [scheduler.fired_count for scheduler in schedulers] == [1, 0]
    assert len(await fired()) == 1


# ── bad plans ────────────────────────────────────────────────────────────────────────────────


def row_with(at, value):
    row = ["bad", "mail", {"Every": [1_000]}, b"\xc4\x01\x01", None, None, None, 0]
    return msgpack.packb([*row[:at], value, *row[at + 1 :]])


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(b"noise", id="noise"),
        pytest.param(row_with(3, "text"), id="payload as text"),
        pytest.param(row_with(3, b"\x01"), id="payload wrapped once"),
        pytest.param(row_with(2, {"Cron": ["never", None]}), id="no cron"),
        pytest.param(row_with(2, {"Cron": ["@daily", "Mars"]}), id="no zone"),
        pytest.param(row_with(2, {"Every": [0]}), id="no interval"),
    ],
)
async def test_a_bad_plan_is_put_aside_and_the_others_fire(
    queue, scheduler, come, fired, raw, caplog, spec
):
    await queue.upsert_repeatable_job("mail", "good", repeat=EVERY_MINUTE, key="good")
    await raw("HSET", raw.keys.repeat_spec("bad"), "spec", spec)
    await raw("ZADD", raw.keys.repeat, 1, "bad")
    await come("good")

    await scheduler.run_once()
    await scheduler.run_once()

    assert [one.data for one in await fired()] == ["good"]
    (aside,) = await queue.quarantined_repeatables()
    assert (aside.key, aside.spec) == ("bad", spec)
    assert aside.reason
    assert abs(aside.quarantined_at_ms - await server_ms(raw.connection)) < 10_000
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.chasqui_spec_key == "bad"
    assert f"the repeatable job bad of queue {queue.name} " in line.getMessage()


async def test_a_missing_hash_a_wrong_type_and_a_wild_score_are_put_aside_too(
    queue, scheduler, come, fired, raw
):
    await queue.upsert_repeatable_job("mail", "good", repeat=EVERY_MINUTE, key="good")
    await queue.upsert_repeatable_job("mail", "wild", repeat=EVERY_MINUTE, key="wild score")
    await raw("SET", raw.keys.repeat_spec("no hash"), "text")
    await raw("HSET", raw.keys.repeat_spec("bad retry"), "spec", row_with(0, "k"), "retry", "?")
    await raw("HSET", raw.keys.repeat_spec("bad count"), "spec", row_with(0, "k"), "fired", "?")
    for key in ("missing", "no hash", "bad retry", "bad count", b"\xff\xfe"):
        await raw("ZADD", raw.keys.repeat, 1, key)
    await raw("ZADD", raw.keys.repeat, "-inf", "wild score")
    await come("good")

    await scheduler.run_once()

    assert [one.data for one in await fired()] == ["good"]
    assert {one.key for one in await queue.quarantined_repeatables()} == {
        "missing", "no hash", "bad retry", "bad count", "wild score", "\\xff\\xfe",
    }  # fmt: skip
    assert [meta.key for meta in await queue.get_repeatable_jobs()] == ["good"]
    assert await queue.quarantined_repeatables(limit=0) == []


@pytest.mark.parametrize("act", ["upsert", "remove"])
async def test_a_plan_that_was_put_aside_can_be_mended_or_removed(queue, scheduler, raw, act):
    await raw("HSET", raw.keys.repeat_spec("bad"), "spec", "noise")
    await raw("ZADD", raw.keys.repeat, 1, "bad")
    await scheduler.run_once()

    if act == "upsert":
        await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, key="bad")
    else:
        assert await queue.remove_repeatable_by_key("bad") is True

    assert await queue.quarantined_repeatables() == []
    assert len(await queue.get_repeatable_jobs()) == (1 if act == "upsert" else 0)


async def test_a_plan_that_is_mended_while_it_is_judged_stays(queue, firing, raw):
    await raw("HSET", raw.keys.repeat_spec("bad"), "spec", "noise")
    await raw("ZADD", raw.keys.repeat, 1, "bad")
    agenda = await firing.agenda(256)
    _, (bad,) = await firing.read(agenda.due)

    await queue.upsert_repeatable_job("mail", 1, repeat=EVERY_MINUTE, key="bad")

    assert await firing.quarantine(bad, agenda.now_ms) is False
    assert len(await queue.get_repeatable_jobs()) == 1


async def test_a_plan_of_the_original_with_limit_zero_fires_without_a_limit(
    url, queue_name, queue, raw
):
    key = "tick::every:100"
    spec = encode_spec(
        RepeatSpec(
            key=key, job_name="tick", kind="every", payload=b"\x01", interval_ms=100, limit=0
        )
    )
    await raw("HSET", raw.keys.repeat_spec(key), "spec", spec)
    await raw("ZADD", raw.keys.repeat, 1, key)
    async with asyncio.timeout(10):
        upkeep = Upkeep(queue_name, redis_url=url)
        running = asyncio.create_task(upkeep.run())

        async def has_fired():
            return (await queue.counts()).ready >= 3

        await eventually(has_fired)
        await upkeep.close()
        await running
