"""renew, charge, hand_back, claim and reap_consumer: who holds what, and for how much."""

from __future__ import annotations

import re

import pytest

from chasquimq.errors import StoreError

GROUP = "default"
STALE_MS = 3_600_000
LEASE_MS = 30_000
LOOK_MS, QUIET_MS = 500, 10_000


@pytest.fixture
def age(raw):
    """Make held entries look as if nobody had renewed them for an hour."""

    async def make_stale(consumer, *entry_ids, count=1):
        await raw(
            "XCLAIM", raw.keys.stream, GROUP, consumer, 0, *entry_ids,
            "IDLE", STALE_MS, "RETRYCOUNT", count, "JUSTID",
        )  # fmt: skip

    return make_stale


async def held(raw) -> dict[bytes, tuple[bytes, int]]:
    """Owner and delivery count of every pending entry."""
    return {row[0]: (row[1], row[3]) for row in await raw.pending()}


async def idle_ms(raw, entry_id) -> int:
    ((_, _, idle, _),) = await raw("XPENDING", raw.keys.stream, GROUP, entry_id, entry_id, 1)
    return idle


# renew


async def test_a_renewal_resets_the_idle_time_and_charges_nothing(run, raw, deliver, age):
    (entry_id,) = await deliver("me")
    await age("me", entry_id, count=3)

    lost = await run("renew", [raw.keys.stream], GROUP, "me", entry_id)

    assert lost == []
    assert await idle_ms(raw, entry_id) < STALE_MS / 2
    assert await held(raw) == {entry_id: (b"me", 3)}


async def test_a_renewal_names_what_is_ours_no_more_and_takes_nothing_back(run, raw, deliver, age):
    mine, gone, stolen = await deliver("me", 3)
    await raw("XACK", raw.keys.stream, GROUP, gone)
    await age("thief", stolen)

    lost = await run("renew", [raw.keys.stream], GROUP, "me", mine, gone, stolen)

    assert lost == [gone, stolen]
    assert await held(raw) == {mine: (b"me", 1), stolen: (b"thief", 1)}
    assert await idle_ms(raw, stolen) >= STALE_MS


async def test_five_hundred_leases_fit_one_renewal(run, raw, deliver, age):
    entry_ids = await deliver("me", 500)
    await age("me", *entry_ids)

    assert await run("renew", [raw.keys.stream], GROUP, "me", *entry_ids) == []
    assert await idle_ms(raw, entry_ids[-1]) < STALE_MS / 2


# charge


async def test_a_charge_sets_the_delivery_count_and_renews(run, raw, deliver, age):
    first, second = await deliver("me", 2)
    await age("me", first, second)

    lost = await run("charge", [raw.keys.stream], GROUP, "me", first, 0, second, 7)

    assert lost == []
    assert await held(raw) == {first: (b"me", 0), second: (b"me", 7)}
    assert await idle_ms(raw, first) < STALE_MS / 2


async def test_a_charge_names_what_is_ours_no_more_and_leaves_it_alone(run, raw, deliver):
    gone, mine = await deliver("me", 2)
    (theirs,) = await deliver("other")
    await raw("XACK", raw.keys.stream, GROUP, gone)

    lost = await run("charge", [raw.keys.stream], GROUP, "me", gone, 5, theirs, 5, mine, 5)

    assert lost == [gone, theirs]
    assert await held(raw) == {mine: (b"me", 5), theirs: (b"other", 1)}


# hand_back


async def test_a_handed_back_entry_is_parked_uncharged_and_claimable_at_once(run, raw, deliver):
    (entry_id,) = await deliver("me")

    count = await run(
        "hand_back", [raw.keys.stream], GROUP, "me", "returned", STALE_MS, "", "", entry_id, 0
    )

    assert count == 1
    assert await held(raw) == {entry_id: (b"returned", 0)}
    assert await idle_ms(raw, entry_id) >= STALE_MS


async def test_only_what_is_ours_is_handed_back(run, raw, deliver):
    gone, mine = await deliver("me", 2)
    (theirs,) = await deliver("other")
    await raw("XACK", raw.keys.stream, GROUP, gone)

    count = await run(
        "hand_back", [raw.keys.stream], GROUP, "me", "returned", STALE_MS, "", "",
        gone, 0, theirs, 0, mine, 2,
    )  # fmt: skip

    assert count == 1
    assert await held(raw) == {mine: (b"returned", 2), theirs: (b"other", 1)}


# claim


async def test_a_claim_takes_over_what_has_been_silent_for_a_lease(run, raw, deliver, age):
    stale, fresh = await deliver("dead", 2)
    await age("dead", stale, count=2)

    (entry,) = await run("claim", [raw.keys.stream], GROUP, "me", LEASE_MS, 10)

    assert entry[0] == stale
    assert entry[1] == [b"d", b"job 0"]
    assert entry[2] >= STALE_MS
    assert entry[3] == 2
    assert await held(raw) == {stale: (b"me", 2), fresh: (b"dead", 1)}


async def test_a_claim_charges_only_what_was_never_charged(run, raw, deliver, age):
    """What may have killed its holder is charged by its next start, and not before."""
    returned, suspect = await deliver("dead", 2)
    await age("dead", returned, count=0)
    await age("dead", suspect, count=1)

    claimed = await run("claim", [raw.keys.stream], GROUP, "me", LEASE_MS, 10)

    assert [entry[3] for entry in claimed] == [0, 1]
    assert await held(raw) == {returned: (b"me", 1), suspect: (b"me", 1)}


async def test_a_claim_finds_nothing_while_everyone_is_awake(run, raw, deliver):
    await deliver("other")

    assert await run("claim", [raw.keys.stream], GROUP, "me", LEASE_MS, 10) == []


async def test_a_claim_takes_no_more_than_asked_for(run, raw, deliver, age):
    entry_ids = await deliver("dead", 5)
    await age("dead", *entry_ids)

    claimed = await run("claim", [raw.keys.stream], GROUP, "me", LEASE_MS, 2)

    assert [entry[0] for entry in claimed] == entry_ids[:2]


async def test_a_claim_passes_over_an_entry_that_was_deleted(run, raw, deliver, age):
    ghost, real = await deliver("dead", 2)
    await age("dead", ghost, real)
    await raw("XDEL", raw.keys.stream, ghost)

    claimed = await run("claim", [raw.keys.stream], GROUP, "me", LEASE_MS, 10)

    assert [entry[0] for entry in claimed] == [real]


async def test_two_claimers_share_without_overlap(run, raw, deliver, age):
    entry_ids = await deliver("dead", 4)
    await age("dead", *entry_ids)

    first = await run("claim", [raw.keys.stream], GROUP, "a", LEASE_MS, 3)
    second = await run("claim", [raw.keys.stream], GROUP, "b", LEASE_MS, 3)

    assert [entry[0] for entry in first + second] == entry_ids


@pytest.fixture
def gated(run, raw):
    """A claim through the gate of the fleet; answers the ids and when the next look is due."""

    async def call(consumer="me", *, lease_ms=LEASE_MS, count=10, quiet_ms=QUIET_MS):
        entries, wait_ms = await run(
            "claim", [raw.keys.stream], GROUP, consumer, lease_ms, count, LOOK_MS, quiet_ms,
            raw.keys.claim_gate(GROUP), raw.keys.wake,
        )  # fmt: skip
        return [entry[0] for entry in entries], wait_ms

    return call


async def looks(raw) -> int:
    """How often the pending list was walked."""
    stats = (await raw("INFO", "commandstats")).decode()
    found = re.search(r"cmdstat_xpending:calls=(\d+)", stats)
    return int(found[1]) if found else 0


async def test_one_look_serves_the_whole_fleet(gated, raw, deliver):
    await deliver("awake")
    first = await gated("a")
    walked = await looks(raw)

    others = [await gated(f"worker-{at}") for at in range(300)]

    assert first == ([], QUIET_MS)
    assert all(ids == [] and 0 < wait_ms <= QUIET_MS for ids, wait_ms in others)
    assert await looks(raw) == walked


async def test_the_next_look_is_due_when_the_first_has_been_silent_for_a_lease(gated, raw, deliver):
    soon, later = await deliver("dead", 2)
    for entry_id, left_ms in ((soon, 4_000), (later, 9_000)):
        await raw("XCLAIM", raw.keys.stream, GROUP, "dead", 0, entry_id, "IDLE", LEASE_MS - left_ms)

    ids, wait_ms = await gated()

    assert ids == []
    assert 3_000 <= wait_ms <= 4_000


async def test_a_look_that_finds_more_than_it_has_room_for_lets_the_next_look_at_once(
    gated, raw, deliver, age
):
    await raw("XGROUP", "CREATE", raw.keys.wake, GROUP, "0", "MKSTREAM")
    entry_ids = await deliver("dead", 5)
    await age("dead", *entry_ids)

    first, wait_ms = await gated("a", count=2)
    calls = await raw("XLEN", raw.keys.wake)
    second, _ = await gated("b")

    assert (first, wait_ms, calls) == (entry_ids[:2], 0, 1)
    assert second == entry_ids[2:]


async def test_a_shorter_lease_does_not_wait_for_a_look_of_a_longer_one(gated, raw, deliver):
    (entry_id,) = await deliver("dead")
    await gated("long")
    await raw("XCLAIM", raw.keys.stream, GROUP, "dead", 0, entry_id, "IDLE", 5_000)

    assert (await gated("short", lease_ms=4_000, quiet_ms=2_000))[0] == [entry_id]


async def test_who_was_called_looks_whoever_looked_before(gated, raw, deliver, age):
    (entry_id,) = await deliver("dead")
    await gated("a")
    await age("dead", entry_id)

    assert (await gated("b"))[0] == []
    assert await gated("b", quiet_ms=0) == ([entry_id], LOOK_MS)


async def test_a_hand_back_opens_the_gate_and_calls_an_idle_worker(gated, run, raw, deliver):
    (entry_id,) = await deliver("me")
    await raw("XGROUP", "CREATE", raw.keys.wake, GROUP, "0", "MKSTREAM")
    await gated("a")

    await run(
        "hand_back", [raw.keys.stream], GROUP, "me", "returned", STALE_MS,
        raw.keys.claim_gate(GROUP), raw.keys.wake, entry_id, 0,
    )  # fmt: skip

    assert await raw("XLEN", raw.keys.wake) == 1
    assert (await gated("b"))[0] == [entry_id]


@pytest.mark.parametrize("poison", [("RPUSH", "x"), ("SET", "no lease"), ("SET", "1")])
async def test_a_gate_that_somebody_else_wrote_stays_open(gated, raw, deliver, age, poison):
    (entry_id,) = await deliver("dead")
    await age("dead", entry_id)
    await raw(poison[0], raw.keys.claim_gate(GROUP), poison[1])

    ids, wait_ms = await gated()

    assert (ids, wait_ms) == ([entry_id], QUIET_MS)


# reap_consumer


async def test_a_consumer_that_holds_nothing_is_removed(run, raw, deliver):
    (entry_id,) = await deliver("me")
    await raw("XACK", raw.keys.stream, GROUP, entry_id)

    assert await run("reap_consumer", [raw.keys.stream], GROUP, "me", 0) == 1
    assert await raw.consumers() == []


async def test_a_consumer_that_holds_an_entry_stays_with_it(run, raw, deliver):
    (entry_id,) = await deliver("me")

    assert await run("reap_consumer", [raw.keys.stream], GROUP, "me", 0) == 0
    assert await held(raw) == {entry_id: (b"me", 1)}


async def test_a_consumer_that_was_just_active_stays(run, raw, deliver):
    (entry_id,) = await deliver("me")
    await raw("XACK", raw.keys.stream, GROUP, entry_id)

    assert await run("reap_consumer", [raw.keys.stream], GROUP, "me", STALE_MS) == 0
    assert await raw.consumers() == ["me"]


async def test_an_unknown_consumer_is_unknown(run, raw, deliver):
    await deliver("other")

    assert await run("reap_consumer", [raw.keys.stream], GROUP, "me", 0) == -1


async def test_without_a_stream_every_consumer_is_unknown(run, raw, snapshot):
    assert await run("reap_consumer", [raw.keys.stream], GROUP, "me", 0) == -1
    assert await snapshot() == {}


async def test_without_a_group_every_consumer_is_unknown(run, raw, deliver):
    await deliver("me")

    assert await run("reap_consumer", [raw.keys.stream], "no-such-group", "me", 0) == -1


# all of them


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("renew", (GROUP, "me", "1-1")),
        ("charge", (GROUP, "me", "1-1", 1)),
        ("hand_back", (GROUP, "me", "returned", STALE_MS, "", "", "1-1", 0)),
        ("claim", (GROUP, "me", LEASE_MS, 10)),
        ("reap_consumer", (GROUP, "me", 0)),
    ],
)
async def test_a_stream_of_the_wrong_type_is_left_as_it_is(run, raw, snapshot, name, args):
    await raw("SET", raw.keys.stream, "not a stream")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await run(name, [raw.keys.stream], *args)

    assert await snapshot() == before


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("renew", (GROUP, "me", "1-1")),
        ("charge", (GROUP, "me", "1-1", 1)),
        ("hand_back", (GROUP, "me", "returned", STALE_MS, "", "", "1-1", 0)),
        ("claim", (GROUP, "me", LEASE_MS, 10)),
    ],
)
async def test_a_missing_group_is_named(run, raw, name, args):
    with pytest.raises(StoreError, match="NOGROUP"):
        await run(name, [raw.keys.stream], *args)
