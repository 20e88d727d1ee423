"""add.lua: once per write token, once per unique id, never above the cap, all or nothing."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError

TTL_S = 120
UNIQUE_MS = 60_000


@pytest.fixture
def add(run, raw):
    """One call: jobs are (envelope, name, digest, job id); the id matters only with a digest."""

    async def call(*jobs, token="t1", cap=0, unique_ms=UNIQUE_MS):
        markers = [raw.keys.uniq(job_id) for *_, digest, job_id in jobs if digest]
        keys = [raw.keys.stream, raw.keys.token(token), *markers]
        args = [part for job in jobs for part in job[:3]]
        return await run("add", keys, cap, TTL_S, unique_ms, *args)

    return call


def plain(envelope: str, name: str = "") -> tuple[str, str, str, str]:
    return (envelope, name, "", "")


async def fields(raw) -> list[dict[bytes, bytes]]:
    return [row for _, row in await raw.entries(raw.keys.stream)]


async def test_jobs_are_added_in_order_with_their_names(add, raw):
    marks = await add(plain("e1", "greet"), plain("e2"), plain("e3", "part"))

    assert marks == [1, 1, 1]
    assert await fields(raw) == [
        {b"d": b"e1", b"n": b"greet"},
        {b"d": b"e2"},
        {b"d": b"e3", b"n": b"part"},
    ]


async def test_a_resend_answers_what_the_first_send_did_and_adds_nothing(add, raw):
    await add(("e0", "", "d0", "taken"), token="t0")
    jobs = [plain("e1"), ("e2", "", "d0", "taken"), ("e3", "", "d3", "taken")]
    first = await add(*jobs)

    again = await add(*jobs)

    assert first == again == [1, 0, 2]
    assert await raw("XLEN", raw.keys.stream) == 2


async def test_a_token_is_remembered_for_its_time_only(add, raw):
    await add(plain("e1"))

    assert TTL_S - 5 <= await raw("TTL", raw.keys.token("t1")) <= TTL_S


async def test_another_token_is_another_write(add, raw):
    await add(plain("e1"))

    await add(plain("e1"), token="t2")

    assert await raw("XLEN", raw.keys.stream) == 2


@pytest.mark.parametrize(
    ("digest", "mark"), [("same", 0), ("other", 2)], ids=["same job", "another job"]
)
async def test_an_id_that_is_taken_adds_nothing_and_says_by_whom(add, raw, digest, mark):
    await add(("e1", "", "same", "id"))

    marks = await add(("e2", "", digest, "id"), token="t2")

    assert marks == [mark]
    assert await fields(raw) == [{b"d": b"e1"}]


async def test_a_marker_lives_as_long_as_the_unique_window(add, raw):
    await add(("e1", "", "digest", "id"), unique_ms=50_000)

    assert 45_000 <= await raw("PTTL", raw.keys.uniq("id")) <= 50_000
    assert await raw("GET", raw.keys.uniq("id")) == b"digest"


async def test_an_id_twice_in_one_call_is_one_job(add, raw):
    marks = await add(("e1", "", "a", "id"), ("e2", "", "a", "id"), ("e3", "", "b", "id"))

    assert marks == [1, 0, 2]
    assert await fields(raw) == [{b"d": b"e1"}]


async def test_jobs_that_fill_the_queue_to_its_cap_are_added(add, raw):
    marks = await add(plain("e1"), plain("e2"), cap=2)

    assert marks == [1, 1]


async def test_jobs_that_do_not_fit_are_refused_together(add, snapshot):
    await add(plain("e1"), cap=2)
    before = await snapshot()

    answer = await add(plain("e2"), ("e3", "", "digest", "id"), token="t2", cap=2)

    assert answer == b"full"
    assert await snapshot() == before


async def test_a_refusal_is_not_remembered(add, raw):
    await add(plain("e1"), cap=1)
    assert await add(plain("e2"), token="t2", cap=1) == b"full"
    await raw("XTRIM", raw.keys.stream, "MAXLEN", 0)

    assert await add(plain("e2"), token="t2", cap=1) == [1]


async def test_a_job_that_is_there_already_needs_no_room(add):
    await add(("e1", "", "digest", "id"), cap=1)

    assert await add(("e1", "", "digest", "id"), token="t2", cap=1) == [0]


async def test_only_new_jobs_count_against_the_cap(add):
    await add(("e1", "", "digest", "id"), cap=2)

    assert await add(("e1", "", "digest", "id"), plain("e2"), token="t2", cap=2) == [0, 1]


async def test_a_thousand_jobs_fit_one_call(add, raw):
    marks = await add(*(plain(f"e{i}", "n") for i in range(1_000)))

    assert marks == [1] * 1_000
    assert await raw("XLEN", raw.keys.stream) == 1_000


@pytest.mark.parametrize("unique_ms", ["0", "-1", "soon", "nan"])
async def test_a_window_that_is_no_time_is_refused_before_anything_is_written(
    add, snapshot, unique_ms
):
    with pytest.raises(StoreError):
        await add(plain("e1"), ("e2", "", "digest", "id"), unique_ms=unique_ms)

    assert await snapshot() == {}


async def test_a_stream_of_the_wrong_type_leaves_everything_as_it_was(add, raw, snapshot):
    await raw("SET", raw.keys.stream, "not a stream")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await add(("e1", "", "digest", "id"), plain("e2"))

    assert await snapshot() == before


async def test_a_marker_of_the_wrong_type_leaves_everything_as_it_was(add, raw, snapshot):
    await raw("RPUSH", raw.keys.uniq("second"), "not a marker")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await add(("e1", "", "a", "first"), ("e2", "", "b", "second"))

    assert await snapshot() == before


async def test_a_token_of_the_wrong_type_leaves_everything_as_it_was(add, raw, snapshot):
    await raw("RPUSH", raw.keys.token("t1"), "not a token")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await add(plain("e1"))

    assert await snapshot() == before
