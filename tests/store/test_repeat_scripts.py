"""The scripts of repeatables: a due time fires once, an upsert of the same changes nothing."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError
from chasquimq.store.inspect.queue import server_ms

KEY = "mail::every:1000"
TTL_S = 60
MARKER_MS = 60_000


@pytest.fixture
async def now_ms(raw) -> int:
    return await server_ms(raw.connection)


@pytest.fixture
def upsert(run, raw):
    async def call(next_ms, *, spec="spec", retry="", token="t1"):
        keys = raw.keys
        names = [keys.repeat, keys.repeat_spec(KEY), keys.repeat_bad, keys.token(token)]
        return await run("upsert_repeatable", names, TTL_S, KEY, spec, retry, next_ms)

    return call


@pytest.fixture
def remove(run, raw):
    async def call(*, token="t1"):
        keys = raw.keys
        names = [keys.repeat, keys.repeat_spec(KEY), keys.repeat_bad, keys.token(token)]
        return await run("remove_repeatable", names, TTL_S, KEY)

    return call


@pytest.fixture
def arm(raw):
    """Put a spec into the repeat set."""

    async def put(score_ms, **fields):
        await raw("ZADD", raw.keys.repeat, score_ms, KEY)
        flat = [part for pair in ({"spec": "spec"} | fields).items() for part in pair]
        await raw("HSET", raw.keys.repeat_spec(KEY), *flat)

    return put


@pytest.fixture
def fire(run, raw):
    async def call(expected, next_ms, *due_ms, limit=0, end_ms=0, name="mail", marker_ms=MARKER_MS):
        keys = raw.keys
        markers = [keys.uniq(f"job {due}") for due in due_ms]
        jobs = [part for due in due_ms for part in (due, f"envelope {due}")]
        return await run(
            "fire", [keys.stream, keys.repeat, keys.repeat_spec(KEY), *markers],
            KEY, expected, next_ms, limit, end_ms, marker_ms, name, *jobs,
        )  # fmt: skip

    return call


@pytest.fixture
def quarantine(run, raw):
    async def call(expected, judged="spec", record="record"):
        names = [raw.keys.repeat, raw.keys.repeat_spec(KEY), raw.keys.repeat_bad]
        return await run("quarantine_spec", names, KEY, expected, judged, record)

    return call


@pytest.fixture
def score(raw):
    async def ask():
        found = await raw("ZSCORE", raw.keys.repeat, KEY)
        return None if found is None else int(found)

    return ask


@pytest.fixture
def fields(raw):
    async def ask():
        flat = await raw("HGETALL", raw.keys.repeat_spec(KEY))
        return dict(zip(flat[::2], flat[1::2], strict=True))

    return ask


@pytest.fixture
def dues(raw):
    """The due times that became jobs, in the order of the stream."""

    async def ask():
        return [int(found[b"due"]) for _, found in await raw.entries(raw.keys.stream)]

    return ask


# ── upsert ───────────────────────────────────────────────────────────────────────────────────


async def test_to_ask_about_a_new_spec_writes_nothing_and_tells_the_time(upsert, snapshot, raw):
    before_ms = await server_ms(raw.connection)

    answer, at_ms = await upsert("")

    assert answer == b"new"
    assert before_ms <= int(at_ms) <= await server_ms(raw.connection)
    assert await snapshot() == {}


async def test_a_new_spec_is_written_and_armed(upsert, score, fields, raw):
    assert await upsert(5_000, retry="retry") == [b"written", b"5000"]

    assert await score() == 5_000
    assert await fields() == {b"spec": b"spec", b"retry": b"retry"}
    assert 0 < await raw("TTL", raw.keys.token("t1")) <= TTL_S


async def test_the_same_spec_keeps_its_next_fire_and_its_count(upsert, arm, snapshot):
    await arm(5_000, retry="retry", fired=3)
    before = await snapshot()

    assert await upsert("", retry="retry") == [b"same", b"5000"]
    assert await upsert(9_000, retry="retry") == [b"same", b"5000"]
    assert await snapshot() == before


@pytest.mark.parametrize(
    "change", [{"spec": "other"}, {"retry": "other"}, {"retry": "retry"}], ids=str
)
async def test_a_changed_spec_gets_a_new_first_fire_and_a_fresh_count(
    upsert, arm, score, fields, change
):
    await arm(5_000, fired=3)

    assert await upsert(9_000, **change) == [b"written", b"9000"]

    assert await score() == 9_000
    assert b"fired" not in await fields()


async def test_a_spec_that_loses_its_retry_options_has_none(upsert, arm, fields):
    await arm(5_000, retry="retry")

    await upsert(9_000)

    assert await fields() == {b"spec": b"spec"}


async def test_a_hash_that_is_not_armed_is_no_spec(upsert, score, raw):
    await raw("HSET", raw.keys.repeat_spec(KEY), "spec", "spec")

    assert await upsert(9_000) == [b"written", b"9000"]
    assert await score() == 9_000


async def test_an_upsert_brings_back_what_was_put_aside(upsert, raw):
    await raw("HSET", raw.keys.repeat_bad, KEY, "record")

    await upsert(9_000)

    assert await raw("HLEN", raw.keys.repeat_bad) == 0


async def test_a_resent_upsert_answers_what_the_first_did(upsert, remove, score):
    await upsert(5_000)
    await remove(token="t2")

    assert await upsert(9_000) == [b"written", b"5000"]
    assert await score() is None


async def test_a_next_fire_that_is_no_number_is_refused(upsert, snapshot):
    with pytest.raises(StoreError, match="next_fire_ms must be a number"):
        await upsert("soon")

    assert await snapshot() == {}


@pytest.mark.parametrize("key", ["repeat", "repeat_spec", "repeat_bad"])
async def test_an_upsert_over_a_key_of_the_wrong_type_writes_nothing(upsert, snapshot, raw, key):
    await raw(
        "SET", raw.keys.repeat_spec(KEY) if key == "repeat_spec" else getattr(raw.keys, key), 1
    )
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await upsert(5_000)

    assert await snapshot() == before


# ── remove ───────────────────────────────────────────────────────────────────────────────────


async def test_a_removed_spec_leaves_nothing(remove, arm, raw):
    await arm(5_000, fired=3)

    assert await remove() == 1
    assert await raw("EXISTS", raw.keys.repeat, raw.keys.repeat_spec(KEY)) == 0


async def test_a_spec_that_was_put_aside_can_be_removed(remove, raw):
    await raw("HSET", raw.keys.repeat_bad, KEY, "record")
    await raw("HSET", raw.keys.repeat_spec(KEY), "spec", "spec")

    assert await remove() == 1
    assert await raw("EXISTS", raw.keys.repeat_bad, raw.keys.repeat_spec(KEY)) == 0


async def test_there_is_nothing_to_remove(remove):
    assert await remove() == 0


async def test_a_resent_removal_answers_what_the_first_did(remove, arm, score):
    await arm(5_000)
    assert await remove() == 1
    await arm(9_000)

    assert await remove() == 1
    assert await score() == 9_000


async def test_a_resent_removal_of_nothing_stays_a_removal_of_nothing(remove, arm):
    assert await remove() == 0
    await arm(5_000)

    assert await remove() == 0


@pytest.mark.parametrize("key", ["repeat", "repeat_bad"])
async def test_a_removal_over_a_key_of_the_wrong_type_writes_nothing(remove, snapshot, raw, key):
    await raw("SET", getattr(raw.keys, key), 1)
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await remove()

    assert await snapshot() == before


# ── fire ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_window_becomes_a_job_and_the_next_is_armed(fire, arm, score, fields, raw):
    await arm(5_000)

    assert await fire(5_000, 6_000, 5_000) == [1, 1]

    ((_, entry),) = await raw.entries(raw.keys.stream)
    assert entry == {b"d": b"envelope 5000", b"n": b"mail", b"due": b"5000"}
    assert await score() == 6_000
    assert (await fields())[b"fired"] == b"1"


async def test_a_job_without_a_name_has_no_name(fire, arm, raw):
    await arm(5_000)

    await fire(5_000, 6_000, 5_000, name="")

    ((_, entry),) = await raw.entries(raw.keys.stream)
    assert entry == {b"d": b"envelope 5000", b"due": b"5000"}


async def test_two_schedulers_with_one_window_give_one_job(fire, arm, dues, score):
    await arm(5_000)

    answers = [await fire(5_000, 6_000, 5_000), await fire(5_000, 6_000, 5_000)]

    assert answers == [[1, 1], [-1, 0]]
    assert await dues() == [5_000]
    assert await score() == 6_000


async def test_a_score_that_was_put_back_fires_nothing_twice(fire, arm, dues, fields):
    await arm(5_000)
    await fire(5_000, 6_000, 5_000)
    await arm(5_000)

    assert await fire(5_000, 6_000, 5_000) == [1, 0]
    assert await dues() == [5_000]
    assert (await fields())[b"fired"] == b"1"


async def test_a_marker_lives_as_long_as_it_was_told(fire, arm, raw):
    await arm(5_000)

    await fire(5_000, 6_000, 5_000, marker_ms=90_000)

    assert 60_000 < await raw("PTTL", raw.keys.uniq("job 5000")) <= 90_000


async def test_a_window_that_has_not_come_by_the_servers_clock_does_not_fire(
    fire, arm, snapshot, now_ms
):
    await arm(now_ms + 60_000)
    before = await snapshot()

    assert await fire(now_ms + 60_000, now_ms + 120_000, now_ms + 60_000) == [-1, 0]
    assert await snapshot() == before


async def test_a_spec_that_is_gone_does_not_fire(fire, snapshot):
    assert await fire(5_000, 6_000, 5_000) == [-1, 0]
    assert await snapshot() == {}


async def test_a_member_without_a_spec_does_not_fire(fire, snapshot, raw):
    await raw("ZADD", raw.keys.repeat, 5_000, KEY)
    before = await snapshot()

    assert await fire(5_000, 6_000, 5_000) == [-1, 0]
    assert await snapshot() == before


async def test_fires_stop_at_the_limit_and_the_spec_is_removed(fire, arm, dues, raw):
    await arm(5_000, fired=1)

    assert await fire(5_000, 8_000, 5_000, 6_000, 7_000, limit=3) == [0, 2]
    assert await dues() == [5_000, 6_000]
    assert await raw("EXISTS", raw.keys.repeat, raw.keys.repeat_spec(KEY)) == 0


async def test_a_spec_below_its_limit_goes_on(fire, arm, score):
    await arm(5_000, fired=1)

    assert await fire(5_000, 6_000, 5_000, limit=3) == [1, 1]
    assert await score() == 6_000


@pytest.mark.parametrize(("next_ms", "end_ms"), [(0, 0), (6_001, 6_000)], ids=["over", "ended"])
async def test_a_spec_without_a_next_window_is_removed(fire, arm, dues, raw, next_ms, end_ms):
    await arm(5_000)

    assert await fire(5_000, next_ms, 5_000, end_ms=end_ms) == [0, 1]
    assert await dues() == [5_000]
    assert await raw("EXISTS", raw.keys.repeat, raw.keys.repeat_spec(KEY)) == 0


async def test_a_window_at_the_very_end_is_armed(fire, arm, score):
    await arm(5_000)

    assert await fire(5_000, 6_000, 5_000, end_ms=6_000) == [1, 1]
    assert await score() == 6_000


async def test_to_fire_nothing_moves_the_score_alone(fire, arm, dues, score, fields):
    await arm(5_000)

    assert await fire(5_000, 9_000) == [1, 0]
    assert (await dues(), await score()) == ([], 9_000)
    assert await fields() == {b"spec": b"spec"}


async def test_a_fraction_in_a_score_is_compared_as_it_is(fire, arm, score):
    await arm("5000.5")

    assert await fire(5_000, 6_000, 5_000) == [-1, 0]
    assert await fire("5000.5", 6_000, 5_000) == [1, 1]
    assert await score() == 6_000


@pytest.mark.parametrize("name", ["stream", "repeat", "repeat_spec"])
async def test_a_fire_over_a_key_of_the_wrong_type_writes_nothing(fire, arm, snapshot, raw, name):
    await arm(5_000)
    key = raw.keys.repeat_spec(KEY) if name == "repeat_spec" else getattr(raw.keys, name)
    await raw("SET", key, 1)
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await fire(5_000, 6_000, 5_000)

    assert await snapshot() == before


async def test_after_a_refused_entry_the_next_try_goes_on_where_it_stopped(
    fire, arm, dues, score, raw
):
    await arm(5_000)
    # After this id the stream takes exactly one more entry.
    await raw("XADD", raw.keys.stream, "18446744073709551615-18446744073709551614", "due", 1)

    with pytest.raises(StoreError):
        await fire(5_000, 7_000, 5_000, 6_000)
    assert (await dues(), await score()) == ([1, 5_000], 5_000)
    await raw("DEL", raw.keys.stream)

    assert await fire(5_000, 7_000, 5_000, 6_000) == [1, 1]
    assert (await dues(), await score()) == ([6_000], 7_000)
    assert await raw("HGET", raw.keys.repeat_spec(KEY), "fired") == b"2"


async def test_a_count_that_is_no_number_is_an_error(fire, arm, snapshot):
    await arm(5_000, fired="many")
    before = await snapshot()

    with pytest.raises(StoreError, match="fired must be a number"):
        await fire(5_000, 6_000, 5_000)

    assert await snapshot() == before


# ── quarantine ───────────────────────────────────────────────────────────────────────────────


async def test_a_bad_spec_leaves_the_set_and_keeps_its_bytes(quarantine, arm, score, fields, raw):
    await arm(5_000)

    assert await quarantine(5_000) == 1
    assert await score() is None
    assert await raw("HGET", raw.keys.repeat_bad, KEY) == b"record"
    assert await fields() == {b"spec": b"spec"}


@pytest.mark.parametrize("score_ms", [5_000, "-inf"])
async def test_a_member_without_a_spec_is_put_aside(quarantine, score, raw, score_ms):
    await raw("ZADD", raw.keys.repeat, score_ms, KEY)

    assert await quarantine(score_ms, judged="") == 1
    assert await score() is None


async def test_a_spec_whose_key_is_no_hash_is_put_aside(quarantine, score, raw):
    await raw("ZADD", raw.keys.repeat, 5_000, KEY)
    await raw("SET", raw.keys.repeat_spec(KEY), "precious")

    assert await quarantine(5_000, judged="") == 1
    assert await score() is None
    assert await raw("GET", raw.keys.repeat_spec(KEY)) == b"precious"


@pytest.mark.parametrize(
    ("expected", "judged"), [(4_000, "spec"), (5_000, "other"), (5_000, "")], ids=str
)
async def test_a_spec_that_changed_meanwhile_stays(quarantine, arm, snapshot, expected, judged):
    await arm(5_000)
    before = await snapshot()

    assert await quarantine(expected, judged) == 0
    assert await snapshot() == before


async def test_a_spec_that_is_gone_is_not_put_aside(quarantine, snapshot):
    assert await quarantine(5_000) == 0
    assert await snapshot() == {}


async def test_a_place_for_bad_ones_of_the_wrong_type_is_an_error(quarantine, arm, snapshot, raw):
    await arm(5_000)
    await raw("SET", raw.keys.repeat_bad, 1)
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await quarantine(5_000)

    assert await snapshot() == before
