"""What lies in a queue, read beside those who work on it: small pages, each entry once."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from chasquimq.errors import ServerRefused
from chasquimq.settings import ConnectionSettings
from chasquimq.store.inspect.ranges import HIGHEST, LOWEST, QueueReadStore
from chasquimq.wire.outcome import encode_completed, encode_dead
from store.fake_server import NEW, FakeServer


@pytest.fixture
def store(url, queue_name):
    store = QueueReadStore(queue_name, ConnectionSettings(url=url))
    yield store
    store.close()


async def fill(raw, key: str, count: int, size_bytes: int = 10) -> None:
    for at in range(count):
        await raw("XADD", key, f"1-{at + 1}", "d", b"%05d" % at + b"x" * size_bytes)


async def test_a_stream_is_cut_into_even_stretches_up_to_its_last_entry(store, raw):
    await fill(raw, raw.keys.stream, 100)

    stretches = await asyncio.to_thread(store.stretches, raw.keys.stream, 8)

    assert [one.entry_count for one in stretches] == [12] * 8 + [4]
    assert stretches[-1].last_id == "1-100"


async def test_a_stream_that_is_not_there_has_no_stretches(store, raw):
    assert await asyncio.to_thread(store.stretches, raw.keys.stream, 8) == []


async def test_heavy_entries_are_measured_a_few_at_a_time(store, raw):
    await fill(raw, raw.keys.stream, 12, size_bytes=400_000)

    stretches = await asyncio.to_thread(store.stretches, raw.keys.stream, 1)

    assert max(one.entry_count for one in stretches) <= 3
    assert sum(one.entry_count for one in stretches) == 12


async def test_pages_hold_about_a_mebibyte(store, raw):
    await fill(raw, raw.keys.stream, 130, size_bytes=50_000)

    pages = await asyncio.to_thread(
        lambda: list(store.pages(raw.keys.stream, "0-0", "1-130", 1_000))
    )

    assert [len(page) for page in pages][1:] == [20, 10]
    assert [entry[0] for page in pages for entry in page] == [
        b"1-%d" % (at + 1) for at in range(130)
    ]


async def test_entries_that_come_while_it_is_read_are_not_of_it(store, raw):
    await fill(raw, raw.keys.stream, 250)
    pages = store.pages(raw.keys.stream, "0-0", "1-250", 100)

    first = await asyncio.to_thread(next, pages)
    await raw("XADD", raw.keys.stream, "2-1", "d", "later")
    await raw("XDEL", raw.keys.stream, "1-1", "1-150")
    rest = await asyncio.to_thread(list, pages)

    ids = [entry[0] for page in [first, *rest] for entry in page]
    assert len(ids) == len(set(ids)) == 249
    assert b"2-1" not in ids


async def delay(raw, *scored: tuple[int, str]) -> None:
    await raw("ZADD", raw.keys.delayed, *[part for pair in scored for part in pair])


async def test_scores_cut_the_delayed_set_into_parts_that_leave_nothing_out(store, raw):
    await delay(raw, *[(at // 3, f"m{at:04}") for at in range(1_000)])

    edges = await asyncio.to_thread(store.score_edges, 4)
    bounds = zip([LOWEST, *edges], [*[f"({one}" for one in edges], HIGHEST], strict=True)
    parts = [
        await asyncio.to_thread(lambda pair=pair: [m for p in store.delayed(*pair, 70) for m in p])
        for pair in bounds
    ]

    assert len(parts) == 4
    assert all(200 < len(part) < 300 for part in parts)
    assert len({member for part in parts for member, _ in part}) == 1_000


async def test_members_of_one_score_are_met_once_though_some_leave_meanwhile(store, raw):
    await delay(raw, *[(5, f"m{at:04}") for at in range(600)], (6, "last"))
    pages = store.delayed(LOWEST, HIGHEST, 100)

    met = await asyncio.to_thread(lambda: [*next(pages), *next(pages)])
    # More than a page leaves from the front, so what follows moves up.
    await raw("ZREM", raw.keys.delayed, *[f"m{at:04}" for at in range(120)])
    met += await asyncio.to_thread(lambda: [one for page in pages for one in page])

    members = [member for member, _ in met]
    assert len(members) == len(set(members))
    assert {f"m{at:04}".encode() for at in range(120, 600)} | {b"last"} <= set(members)


@pytest.mark.parametrize(("most", "size_bytes"), [(1, 10), (4, 600_000)], ids=["small", "heavy"])
async def test_pages_of_one_member_come_to_an_end(store, raw, most, size_bytes):
    await delay(raw, *[(5, f"m{at}" + "x" * size_bytes) for at in range(8)], (6, "last"))

    # A walk that stands still would go on for ever.
    pages = await asyncio.to_thread(lambda: list(islice(store.delayed(LOWEST, HIGHEST, most), 40)))

    met = [member[:2] for page in pages for member, _ in page]
    assert sorted(met) == sorted([b"m%d" % at for at in range(8)] + [b"la"])
    assert len(pages) < 40


async def test_a_delayed_set_that_is_not_there_is_empty(store):
    assert await asyncio.to_thread(store.score_edges, 4) == []
    assert await asyncio.to_thread(lambda: list(store.delayed(LOWEST, HIGHEST, 10))) == [[]]


async def test_results_are_met_once_with_their_outcomes(store, raw, queue_name):
    keys, completed = raw.keys, encode_completed("mail", 1, 5, has_result=True)
    for at in range(300):
        await raw("SET", keys.result(f"j{at}"), f"r{at}", "PX", 60_000)
    for at in range(0, 300, 2):
        await raw("SET", keys.outcome(f"j{at}"), completed)
    await raw("SET", keys.outcome("dead"), encode_dead("why", "what"))
    await raw("SET", "{chasqui:" + queue_name + "x}:result:other", "r")

    kept = await asyncio.to_thread(lambda: [one for page in store.results() for one in page])

    found = {one.job_id: one for one in kept}
    assert len(kept) == len(found) == 301
    assert found["j7"].result == b"r7"
    assert found["j7"].outcome is None
    assert found["j8"].outcome == completed
    assert 0 < found["j8"].ttl_ms <= 60_000
    assert found["dead"].result is None


MEMBER = b"*2\r\n$1\r\nm\r\n$1\r\n5\r\n"
SCANNED = b"*2\r\n$1\r\n0\r\n*1\r\n$%d\r\n%b\r\n"
NO_RIGHT = b"-NOPERM this user has no permissions to run the 'mget' command\r\n"


@pytest.fixture
def store_at(queue_name):
    opened = []

    def make(url) -> QueueReadStore:
        opened.append(QueueReadStore(queue_name, ConnectionSettings(url=url)))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


async def test_a_server_that_loads_is_asked_again_for_the_edges(store_at):
    loading = b"-LOADING server is loading the dataset in memory\r\n"
    answers = {"ZCARD": b":10\r\n", "ZRANGE": (MEMBER, loading, MEMBER)}
    async with FakeServer(NEW | answers) as server:
        store = store_at(server.url)

        assert await asyncio.to_thread(store.score_edges, 4) == ["5"]
        assert server.count("ZRANGE") == 6


async def test_a_right_that_is_missing_is_told_and_not_taken_for_results(store_at):
    store = store_at("redis://unused")
    key = store.keys.result("j1").encode()
    scan = SCANNED % (len(key), key)
    answers = {"SCAN": scan, "MGET": NO_RIGHT, "PTTL": b":-1\r\n"}
    async with FakeServer(NEW | answers) as server:
        store = store_at(server.url)

        with pytest.raises(ServerRefused, match="must be allowed to run MGET"):
            await asyncio.to_thread(lambda: list(store.results()))
