"""What each script is asked to do while one of its commands is refused, and what must come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from chasquimq.errors import DecodeError
from chasquimq.store.inspect.queue import server_ms
from chasquimq.store.net import script
from chasquimq.wire.envelope import decode_envelope, encode_envelope
from chasquimq.wire.stream_entry import encode_member, split_member
from support.raw import Raw

GROUP, ME, PARKING = "default", "me", "parking"
TTL_S, UNIQUE_MS = 60, 60_000
HOUR_MS = 3_600_000
SPEC = "mail::every:1000"


def envelope(job_id: str) -> bytes:
    return encode_envelope(job_id, b"\xc0", 5, 0, None, None)


def member(job_id: str, name: str = "n") -> bytes:
    return encode_member(name, envelope(job_id))


class Stage:
    """One queue: `raw` may do everything, `user` lacks one right."""

    def __init__(self, raw: Raw, user: Raw) -> None:
        self.raw = raw
        self.user = user
        self.keys = raw.keys
        self.ids: list[bytes] = []
        self.now_ms = 0

    async def run(self, name: str, keys: list[str], *args: Any) -> Any:
        return await script.run(self.user.connection, name, keys, *args)

    async def ready(self, *job_ids: str) -> None:
        for job_id in job_ids:
            await self.raw("XADD", self.keys.stream, "*", "d", envelope(job_id), "n", "n")

    async def deliver(self, *job_ids: str) -> None:
        """Jobs that a worker holds."""
        stream = self.keys.stream
        await self.raw("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
        await self.ready(*job_ids)
        reply = await self.raw("XREADGROUP", "GROUP", GROUP, ME, "STREAMS", stream, ">")
        self.ids = [entry[0] for entry in reply[0][1]]

    async def delay(self, due_ms: int, *job_ids: str) -> None:
        for job_id in job_ids:
            await self.raw("ZADD", self.keys.delayed, due_ms, member(job_id))
            await self.raw("HSET", self.keys.dix, job_id, due_ms)

    async def kill(self, *job_ids: str) -> None:
        """Jobs in the DLQ, with the outcomes that say so."""
        for job_id in job_ids:
            added = await self.raw("XADD", self.keys.dlq, "*", "d", envelope(job_id), "n", "n")
            self.ids.append(added)
            await self.raw("SET", self.keys.outcome(job_id), "dead")

    async def arm(self, due_ms: int, **fields: Any) -> None:
        await self.raw("ZADD", self.keys.repeat, due_ms, SPEC)
        flat = [part for pair in ({"spec": "spec"} | fields).items() for part in pair]
        await self.raw("HSET", self.keys.repeat_spec(SPEC), *flat)

    async def places(self) -> Counter[tuple[str, str]]:
        """How often each job lies where; an entry that nobody can be given is `stranded`."""
        found: Counter[tuple[str, str]] = Counter()
        for entry_id, fields in await self.raw.entries(self.keys.stream):
            found[_id_of(fields[b"d"]), await self._place_of(entry_id)] += 1
        for one in await self.raw("ZRANGE", self.keys.delayed, 0, -1):
            found[_owner_of(one), "delayed"] += 1
        for _, fields in await self.raw.entries(self.keys.dlq):
            found[_id_of(fields[b"d"]), "dlq"] += 1
        return found

    async def _place_of(self, entry_id: bytes) -> str:
        for row in await self.raw("XINFO", "GROUPS", self.keys.stream):
            last = dict(zip(row[::2], row[1::2], strict=True))[b"last-delivered-id"]
            held = await self.raw("XPENDING", self.keys.stream, GROUP, entry_id, entry_id, 1)
            if not held and _number(entry_id) <= _number(last):
                return "stranded"
        return "stream"

    async def job_places(self, job_id: str) -> list[str]:
        return [place for (one, place), count in (await self.places()).items() if one == job_id
                for _ in range(count)]  # fmt: skip


def _number(entry_id: bytes) -> tuple[int, int]:
    ms, seq = entry_id.split(b"-")
    return int(ms), int(seq)


def _owner_of(one: bytes) -> str:
    try:
        return _id_of(split_member(one)[1])
    except DecodeError:
        return repr(one)


def _id_of(body: bytes) -> str:
    try:
        return decode_envelope(body).id
    except DecodeError:
        return repr(body)


Step = Callable[[Stage], Awaitable[Any]]


async def nothing(_: Stage) -> None:
    """Nothing has to be there."""


@dataclass(frozen=True)
class Scenario:
    """One use of a script: `act` is what the caller sends, and sends again after an error.

    `ends` names where each job lies when all is done; a set of places leaves the choice.
    """

    act: Step
    arrange: Step = nothing
    ends: dict[str, set[str]] = field(default_factory=dict)
    answer: Any = None
    check: Step = nothing
    xadd_keys: tuple[str, ...] = ("stream",)
    needs: str = "XACK"


def told(mark: Any) -> list[Any]:
    return [mark, mark]


async def _ack(stage: Stage) -> Any:
    return await stage.run("ack", [stage.keys.stream], GROUP, *stage.ids)


async def _two_held(stage: Stage) -> None:
    await stage.deliver("a", "b")


def _rung(arrange: Step) -> Step:
    """The same, with a ring that no promoter has heard yet."""

    async def both(stage: Stage) -> None:
        await arrange(stage)
        await stage.raw("RPUSH", stage.keys.bell, "1")

    return both


async def _two_ready(stage: Stage) -> None:
    await stage.raw("XGROUP", "CREATE", stage.keys.stream, GROUP, "0", "MKSTREAM")


def _completion(has_ack_delete: int, has_many_set: int) -> Step:
    async def act(stage: Stage) -> Any:
        keys = stage.keys
        names = [
            keys.stream,
            keys.result("a"),
            keys.result("b"),
            keys.outcome("a"),
            keys.outcome("b"),
        ]
        flags = (has_ack_delete, has_many_set)
        args = (*stage.ids, b"\x01", b"", b"done", b"done")
        return await stage.run("complete", names, GROUP, TTL_S, TTL_S, *flags, *args)

    return act


async def _results_and_outcomes(stage: Stage) -> None:
    assert await stage.raw("GET", stage.keys.result("a")) == b"\x01"
    assert await stage.raw("GET", stage.keys.outcome("a")) == b"done"
    assert await stage.raw("GET", stage.keys.outcome("b")) == b"done"


async def _retry_later(stage: Stage) -> Any:
    keys, (first, second) = stage.keys, stage.ids
    names = [keys.stream, keys.delayed, keys.dix]
    moves = (first, 5_000, "a", member("a"), second, 5_000, "b", member("b"))
    return await stage.run("retry", names, GROUP, ME, *moves, keys.bell)


async def _both_indexed(stage: Stage) -> None:
    assert await stage.raw("HLEN", stage.keys.dix) == 2


async def _retry_now(stage: Stage) -> Any:
    keys, (first, second) = stage.keys, stage.ids
    names = [keys.stream, keys.delayed, keys.dix]
    moves = (first, "now", "n", envelope("a"), second, "now", "n", envelope("b"))
    return await stage.run("retry", names, GROUP, ME, *moves)


async def _bury(stage: Stage) -> Any:
    keys, (first, second) = stage.keys, stage.ids
    names = [keys.stream, keys.dlq, keys.outcome("a"), keys.outcome("b")]
    moves = (first, "dead", 2, "d", envelope("a"), second, "dead", 2, "d", envelope("b"))
    return await stage.run("bury", names, GROUP, ME, TTL_S, *moves)


async def _dead_outcomes(stage: Stage) -> None:
    outcomes = await stage.raw("MGET", stage.keys.outcome("a"), stage.keys.outcome("b"))
    entries = await stage.raw.entries(stage.keys.dlq)
    # Each is completed by the id of its own entry.
    assert outcomes == [b"dead\xd9" + bytes([len(one)]) + one for one, _ in entries]


async def _two_dead(stage: Stage) -> None:
    await stage.kill("a", "b")
    await _two_ready(stage)


async def _replay(stage: Stage) -> Any:
    keys, (first, second) = stage.keys, stage.ids
    names = [keys.dlq, keys.stream, keys.token("t"), keys.outcome("a"), keys.outcome("b")]
    moves = (first, envelope("a"), "n", second, envelope("b"), "n")
    return await stage.run("replay", names, TTL_S, *moves)


async def _no_outcomes(stage: Stage) -> None:
    assert await stage.raw("EXISTS", stage.keys.outcome("a"), stage.keys.outcome("b")) == 0


async def _purge(stage: Stage) -> Any:
    return await stage.run("purge", [stage.keys.dlq, stage.keys.token("t")], TTL_S, *stage.ids)


async def _former_ends(stage: Stage) -> None:
    """A job of the same id has ended before."""
    await _two_ready(stage)
    await stage.raw("SET", stage.keys.outcome("a"), "old")


async def _add(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.stream, keys.token("t"), keys.uniq("a"), keys.uniq("b")]
    names += [key for one in "ab" for key in (keys.outcome(one), keys.result(one))]
    jobs = [part for one in "ab" for part in (envelope(one), "n", f"digest {one}")]
    return await stage.run("add", names, 100, TTL_S, UNIQUE_MS, *jobs)


async def _add_fresh(stage: Stage) -> Any:
    names = [stage.keys.stream, stage.keys.token("t")]
    jobs = [part for one in "ab" for part in (envelope(one), "n", "")]
    return await stage.run("add", names, 0, TTL_S, UNIQUE_MS, *jobs)


def _rows(has_many_set: int) -> Step:
    async def act(stage: Stage) -> Any:
        keys = stage.keys
        names = [keys.stream, keys.token("t"), keys.uniq("a"), keys.uniq("b")]
        names += [key for one in "ab" for key in (keys.outcome(one), keys.result(one))]
        args = ("da", "db", envelope("a"), envelope("b"), "n")
        return await stage.run("add_rows", names, 100, TTL_S, UNIQUE_MS, has_many_set, 2, *args)

    return act


ROW_A, ROW_B = b"a" * 16, b"b" * 16


async def _run_rows(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.stream, keys.token("t"), keys.delayed, keys.dix]
    names += [keys.token(f"bucket {at}") for at in range(2)]
    rows = [(ROW_A, 0), (ROW_B, 0), (ROW_B, 60_000)]
    args = [part for one, wait in rows
            for part in (envelope(one.hex()), "n", one, wait)]  # fmt: skip
    head = (100, TTL_S, UNIQUE_MS, "i", 0, 0, keys.bell)
    return await stage.run("add_run_rows", names, *head, *args)


async def _schedule(stage: Stage) -> Any:
    """One job with an id of its own that waits, one without, and one whose time has passed."""
    keys = stage.keys
    names = [keys.delayed, keys.dix, keys.stream, keys.token("t")]
    for one in ("a", "c"):
        names += [keys.uniq(one), keys.dlid(one), keys.didx(one)]
    for one in ("a", "c"):
        names += [keys.outcome(one), keys.result(one)]
    jobs = [envelope("a"), "n", "digest a", "a", HOUR_MS, "in"]
    jobs += [envelope("b"), "n", "", "b", HOUR_MS, "in"]
    jobs += [envelope("c"), "n", "digest c", "c", 0, "at"]
    return await stage.run("schedule", names, TTL_S, UNIQUE_MS, *jobs, 100, keys.bell)


async def _waiting(stage: Stage) -> None:
    """One with an id of its own, and two that only dix knows."""
    due_ms = await server_ms(stage.raw.connection) + HOUR_MS
    await stage.raw("ZADD", stage.keys.delayed, due_ms, member("a"))
    await stage.raw("SET", stage.keys.didx("a"), member("a"))
    await stage.raw("SET", stage.keys.uniq("a"), "digest a")
    await stage.delay(due_ms, "b", "c")


async def _cancel(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.delayed, keys.dix, keys.token("t")]
    names += [key for one in "ab" for key in (keys.didx(one), keys.dlid(one), keys.uniq(one))]
    return await stage.run("cancel", names, TTL_S, "a", "b")


async def _cancel_members(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.delayed, keys.dix, keys.token("t")]
    names += [key for one in "ab" for key in (keys.didx(one), keys.dlid(one), keys.uniq(one))]
    moves = [part for one in "ab" for part in (member(one), one)]
    return await stage.run("cancel_members", names, TTL_S, *moves)


async def _one_held_one_parked_one_ready(stage: Stage) -> None:
    """The job `a` waits with an id of its own, `b` was given back, and `c` is held."""
    await stage.deliver("b", "c")
    stream = stage.keys.stream
    await stage.raw("XCLAIM", stream, GROUP, PARKING, 0, stage.ids[0], "JUSTID")
    added = await stage.raw("XADD", stream, "*", "d", envelope("a"), "n", "n")
    stage.ids.insert(0, added)
    await stage.raw("SET", stage.keys.uniq("a"), "digest a")


async def _drain(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.stream, keys.token("t")]
    names += [key for one in "abc" for key in (keys.didx(one), keys.dlid(one), keys.uniq(one))]
    return await stage.run("drain", names, TTL_S, PARKING, *stage.ids)


async def _a_is_free_and_c_is_held(stage: Stage) -> None:
    assert await stage.raw("EXISTS", stage.keys.uniq("a")) == 0
    assert [row[1] for row in await stage.raw.pending()] == [ME.encode()]


async def _import_dead(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.dlq, keys.token("t"), keys.token("import a"), keys.token("import b")]
    entries = [part for one in "ab" for part in ("5-1", envelope(one), 2, "n", "n")]
    return await stage.run("import_dead", names, TTL_S, TTL_S, *entries)


async def _no_traces(stage: Stage) -> None:
    keys = stage.keys
    assert await stage.raw("EXISTS", keys.didx("a"), keys.uniq("a")) == 0
    assert await stage.raw("HEXISTS", keys.dix, "b") == 0


async def _due(stage: Stage) -> None:
    """Two that are due, one of them with a stranger's id, one broken, and one that waits."""
    now_ms = await server_ms(stage.raw.connection)
    await _two_ready(stage)
    await stage.delay(now_ms - 2_000, "a")
    await stage.raw("ZADD", stage.keys.delayed, now_ms - 1_000, member("b"))
    await stage.raw("ZADD", stage.keys.delayed, now_ms - 500, b"\xff\xff\xff\xffbroken")
    await stage.delay(now_ms + HOUR_MS, "c")


async def _promote(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.delayed, keys.stream, keys.dlq, keys.dix, keys.events]
    return await stage.run("promote_due", names, 100, 1_000_000, 100)


async def _index_of_c_alone(stage: Stage) -> None:
    assert await stage.raw("HKEYS", stage.keys.dix) == [b"c"]
    ((_, fields),) = await stage.raw.entries(stage.keys.dlq)
    assert fields[b"reason"] == b"malformed_delayed"


async def _unindex(stage: Stage) -> Any:
    keys = stage.keys
    return await stage.run("unindex", [keys.delayed, keys.didx("a"), keys.didx("gone")])


async def _one_stale_index(stage: Stage) -> None:
    await _waiting(stage)
    await stage.raw("SET", stage.keys.didx("gone"), member("gone"))


async def _a_can_be_found(stage: Stage) -> None:
    assert await stage.raw("GET", stage.keys.didx("a")) == member("a")
    assert await stage.raw("EXISTS", stage.keys.didx("gone")) == 0


async def _armed(stage: Stage) -> None:
    await _two_ready(stage)
    stage.now_ms = await server_ms(stage.raw.connection)
    await stage.arm(stage.now_ms - 2_000, fired=1)


def _firing(next_in_ms: int) -> Step:
    async def act(stage: Stage) -> Any:
        keys, due_ms = stage.keys, stage.now_ms - 2_000
        names = [keys.stream, keys.repeat, keys.repeat_spec(SPEC), keys.uniq("a"), keys.uniq("b")]
        next_ms = stage.now_ms + next_in_ms if next_in_ms else 0
        jobs = (due_ms, envelope("a"), due_ms + 1_000, envelope("b"))
        args = (SPEC, due_ms, next_ms, 10, 0, UNIQUE_MS, "n")
        return await stage.run("fire", names, *args, *jobs)

    return act


async def _counted(stage: Stage) -> None:
    assert await stage.raw("HGET", stage.keys.repeat_spec(SPEC), "fired") == b"3"
    assert await stage.raw("ZSCORE", stage.keys.repeat, SPEC) == b"%d" % (stage.now_ms + HOUR_MS)


async def _over(stage: Stage) -> None:
    assert await stage.raw("EXISTS", stage.keys.repeat, stage.keys.repeat_spec(SPEC)) == 0


async def _repeat_call(stage: Stage, name: str, *args: Any) -> Any:
    keys = stage.keys
    names = [keys.repeat, keys.repeat_spec(SPEC), keys.repeat_bad, keys.token("t")]
    return await stage.run(name, names, TTL_S, SPEC, *args)


async def _old_plan(stage: Stage) -> None:
    await stage.arm(1_000, spec="old", fired=7, retry="old")


async def _put_aside(stage: Stage) -> None:
    await _old_plan(stage)
    await stage.raw("HSET", stage.keys.repeat_bad, SPEC, "record")


async def _new_plan(stage: Stage) -> None:
    found = await stage.raw("HGETALL", stage.keys.repeat_spec(SPEC))
    assert dict(zip(found[::2], found[1::2], strict=True)) == {b"spec": b"new", b"retry": b"r"}
    assert await stage.raw("ZSCORE", stage.keys.repeat, SPEC) == b"5000"
    assert await stage.raw("EXISTS", stage.keys.repeat_bad) == 0


async def _no_plan(stage: Stage) -> None:
    keys = stage.keys
    assert await stage.raw("EXISTS", keys.repeat, keys.repeat_spec(SPEC), keys.repeat_bad) == 0


async def _quarantine(stage: Stage) -> Any:
    keys = stage.keys
    names = [keys.repeat, keys.repeat_spec(SPEC), keys.repeat_bad]
    return await stage.run("quarantine_spec", names, SPEC, 1_000, "old", "record")


async def _is_aside(stage: Stage) -> None:
    assert await stage.raw("HGET", stage.keys.repeat_bad, SPEC) == b"record"
    assert await stage.raw("ZSCORE", stage.keys.repeat, SPEC) is None


async def _record(stage: Stage) -> Any:
    names = [stage.keys.history, stage.keys.token("run")]
    return await stage.run("record", names, 1, 100, TTL_S, "rows", "1")


async def _one_record(stage: Stage) -> None:
    assert await stage.raw("XLEN", stage.keys.history) == 1


async def _charge(stage: Stage) -> Any:
    args = [part for one in stage.ids for part in (one, 3)]
    return await stage.run("charge", [stage.keys.stream], GROUP, ME, *args)


async def _charged(stage: Stage) -> None:
    assert [row[3] for row in await stage.raw.pending()] == [3, 3]


async def _hand_back(stage: Stage) -> Any:
    args = [part for one in stage.ids for part in (one, 0)]
    head = (GROUP, ME, PARKING, 9_999, stage.keys.claim_gate(GROUP), stage.keys.wake)
    return await stage.run("hand_back", [stage.keys.stream], *head, *args)


async def _parked(stage: Stage) -> None:
    assert [row[1] for row in await stage.raw.pending()] == told(PARKING.encode())


async def _claim(stage: Stage) -> Any:
    claimed = await stage.run("claim", [stage.keys.stream], GROUP, "other", 0, 10)
    return len(claimed)


def _gated_claim(count: int) -> Step:
    async def claim(stage: Stage) -> Any:
        gate = (100, 1_000, stage.keys.claim_gate(GROUP), stage.keys.wake)
        head = (GROUP, "other", 0, count)
        entries, _ = await stage.run("claim", [stage.keys.stream], *head, *gate)
        return len(entries)

    return claim


async def _gate_closed(stage: Stage) -> None:
    """Another worker has just looked."""
    await stage.deliver("a", "b")
    await stage.raw("SET", stage.keys.claim_gate(GROUP), 0, "PX", 60_000)


async def _sweep_index(stage: Stage) -> Any:
    return await stage.run("sweep_index", [stage.keys.delayed, stage.keys.dix], "0", 1, 0)


async def _one_gone_from_the_index(stage: Stage) -> None:
    await stage.delay(1, "a")
    await stage.raw("HSET", stage.keys.dix, "gone", 5)


async def _a_is_indexed(stage: Stage) -> None:
    assert await stage.raw("HGET", stage.keys.dix, "a") == b"1"


async def _renew(stage: Stage) -> Any:
    return await stage.run("renew", [stage.keys.stream], GROUP, ME, *stage.ids)


async def _reap(stage: Stage) -> Any:
    return await stage.run("reap_consumer", [stage.keys.stream], GROUP, "idle", 0)


async def _idle_consumer(stage: Stage) -> None:
    await stage.deliver("a")
    await stage.raw("XGROUP", "CREATECONSUMER", stage.keys.stream, GROUP, "idle")


async def _one_consumer(stage: Stage) -> None:
    assert await stage.raw.consumers() == [ME]


async def _join(stage: Stage) -> Any:
    return await stage.run("join_group", [stage.keys.stream], GROUP, ME, PARKING, HOUR_MS)


async def _remove_group(stage: Stage) -> Any:
    return await stage.run("remove_group", [stage.keys.stream], "other", PARKING, HOUR_MS, 0)


async def _no_group(stage: Stage) -> None:
    assert await stage.raw("XINFO", "GROUPS", stage.keys.stream) == []


async def _group_left_over(stage: Stage) -> None:
    """A group of nobody but the parking consumer."""
    await stage.raw("XGROUP", "CREATE", stage.keys.stream, "other", "0", "MKSTREAM")
    await stage.raw("XGROUP", "CREATECONSUMER", stage.keys.stream, "other", PARKING)
    await stage.ready("a")


async def _missing_rights(stage: Stage) -> Any:
    return await stage.run("missing_rights", [stage.keys.stream], 2, "GET", stage.keys.stream)


async def _one_ghost(stage: Stage) -> None:
    await stage.deliver("a", "b")
    await stage.raw("XDEL", stage.keys.stream, stage.ids[1])


async def _sweep(stage: Stage) -> Any:
    return await stage.run("sweep", [stage.keys.stream], GROUP, "-", 100)


async def _count_ghosts(stage: Stage) -> Any:
    return await stage.run("count_ghosts", [stage.keys.stream], GROUP, "-", 100)


async def _measure(stage: Stage) -> Any:
    return (await stage.run("measure", [stage.keys.stream], "0-0", "+", 10, 10, ""))[1:]


async def _pace(stage: Stage) -> Any:
    return await stage.run("pace", [stage.keys.token("pace")], 1, 1000)


async def _lock(stage: Stage) -> Any:
    keys = [stage.keys.promoter_lock, stage.keys.delayed]
    return (await stage.run("lead", keys, ME, 5))[0]


async def _another_leads(stage: Stage) -> None:
    await stage.raw("SET", stage.keys.promoter_lock, "another", "EX", 60)


async def _unlock(stage: Stage) -> Any:
    return await stage.run("release_lock", [stage.keys.promoter_lock], ME, stage.keys.wake)


async def _locked(stage: Stage) -> None:
    await stage.raw("SET", stage.keys.promoter_lock, ME)


GONE: dict[str, set[str]] = {"a": set(), "b": set()}
READY = {"a": {"stream"}, "b": {"stream"}}
DELAYED = {"a": {"delayed"}, "b": {"delayed"}}
DEAD = {"a": {"dlq"}, "b": {"dlq"}}
ROWS = {ROW_A.hex(): {"stream"}, ROW_B.hex(): {"stream"}, f"{ROW_B.hex()}-1": {"delayed"}}

# Scripts by name, and for each the uses that reach all of its commands.
SCENARIOS: dict[str, dict[str, Scenario]] = {
    "ack": {"two": Scenario(_ack, _two_held, GONE, [1, 1])},
    "complete": {
        "one by one": Scenario(_completion(0, 0), _two_held, GONE, [1, 1], _results_and_outcomes),
        "many set": Scenario(_completion(0, 1), _two_held, GONE, [1, 1], _results_and_outcomes),
        "ack and delete": Scenario(
            _completion(1, 1), _two_held, GONE, [1, 1], _results_and_outcomes, needs="XACKDEL"
        ),
    },
    "retry": {
        "later": Scenario(_retry_later, _two_held, DELAYED, [1, 1], _both_indexed),
        "later, rung before": Scenario(
            _retry_later, _rung(_two_held), DELAYED, [1, 1], _both_indexed
        ),
        "now": Scenario(
            _retry_now, _two_held, {one: {"stream", "delayed"} for one in "ab"}, [1, 1]
        ),
    },
    "bury": {
        "two": Scenario(_bury, _two_held, DEAD, [1, 1], _dead_outcomes, xadd_keys=("dlq",)),
    },
    "replay": {"two": Scenario(_replay, _two_dead, READY, [1, 1], _no_outcomes)},
    "purge": {"two": Scenario(_purge, _two_dead, GONE, 2)},
    "add": {
        "own ids": Scenario(_add, _former_ends, READY, [1, 1], _no_outcomes),
        "fresh ids": Scenario(_add_fresh, _two_ready, READY, [1, 1]),
    },
    "add_rows": {
        "one by one": Scenario(_rows(0), _former_ends, READY, b"11", _no_outcomes),
        "many set": Scenario(_rows(1), _former_ends, READY, b"11", _no_outcomes),
    },
    "add_run_rows": {
        "ready and later": Scenario(_run_rows, _two_ready, ROWS, b"111"),
        "rung before": Scenario(_run_rows, _rung(_two_ready), ROWS, b"111"),
    },
    "schedule": {
        "waiting and passed": Scenario(
            _schedule, _former_ends, {**DELAYED, "c": {"stream"}}, [1, 1, 1], _no_outcomes
        ),
        "rung before": Scenario(
            _schedule, _rung(_former_ends), {**DELAYED, "c": {"stream"}}, [1, 1, 1], _no_outcomes
        ),
    },
    "cancel": {
        "two of three": Scenario(_cancel, _waiting, {**GONE, "c": {"delayed"}}, [1, 1], _no_traces),
    },
    "cancel_members": {
        "two of three": Scenario(
            _cancel_members, _waiting, {**GONE, "c": {"delayed"}}, [1, 1], _no_traces
        ),
    },
    "drain": {
        "ready, parked and held": Scenario(
            _drain, _one_held_one_parked_one_ready, {**GONE, "c": {"stream"}}, [1, 1, 2],
            _a_is_free_and_c_is_held,
        ),
    },
    "import_dead": {
        "two": Scenario(_import_dead, _two_ready, DEAD, [1, 1], xadd_keys=("dlq",)),
    },
    "promote_due": {
        "two and a broken one": Scenario(
            _promote, _due, {**READY, "c": {"delayed"}}, None, _index_of_c_alone,
            xadd_keys=("stream", "dlq", "events"),
        ),
    },
    "unindex": {
        "one waits": Scenario(
            _unindex, _one_stale_index, {one: {"delayed"} for one in "abc"}, 1, _a_can_be_found
        ),
    },
    "fire": {
        "again": Scenario(_firing(HOUR_MS), _armed, READY, [1, 2], _counted),
        "for the last time": Scenario(_firing(0), _armed, READY, [0, 2], _over),
    },
    "upsert_repeatable": {
        "changed": Scenario(
            lambda stage: _repeat_call(stage, "upsert_repeatable", "new", "r", 5_000),
            _put_aside, {}, [b"written", b"5000"], _new_plan,
        ),
        "asked": Scenario(
            lambda stage: _repeat_call(stage, "upsert_repeatable", "new", "r", ""), _old_plan
        ),
    },
    "remove_repeatable": {
        "armed and aside": Scenario(
            lambda stage: _repeat_call(stage, "remove_repeatable"), _put_aside, {}, 1, _no_plan
        ),
    },
    "quarantine_spec": {"bad": Scenario(_quarantine, _old_plan, {}, 1, _is_aside)},
    "record": {
        "one": Scenario(_record, nothing, {}, 1, _one_record, xadd_keys=("history",)),
    },
    "charge": {"two": Scenario(_charge, _two_held, READY, [], _charged)},
    "hand_back": {"two": Scenario(_hand_back, _two_held, READY, 2, _parked)},
    "claim": {
        "two": Scenario(_claim, _two_held, READY, 2),
        "all of them": Scenario(_gated_claim(10), _two_held, READY, 2),
        "as many as there is room for": Scenario(_gated_claim(2), _two_held, READY, 2),
        "behind a closed gate": Scenario(_gated_claim(10), _gate_closed, READY),
    },
    "sweep_index": {
        "one gone": Scenario(
            _sweep_index, _one_gone_from_the_index, {"a": {"delayed"}}, None, _a_is_indexed
        ),
    },
    "renew": {"two": Scenario(_renew, _two_held, READY, [])},
    "reap_consumer": {"idle": Scenario(_reap, _idle_consumer, {"a": {"stream"}}, 1, _one_consumer)},
    "join_group": {
        "beside one left over": Scenario(
            _join, _group_left_over, {"a": {"stream"}}, [], _one_consumer
        ),
    },
    "remove_group": {
        "left over": Scenario(
            _remove_group, _group_left_over, {"a": {"stream"}}, [1, 0, 0], _no_group
        ),
    },
    "missing_rights": {"none": Scenario(_missing_rights, answer=[])},
    "sweep": {"one ghost": Scenario(_sweep, _one_ghost, {"a": {"stream"}}, [1, b""])},
    "count_ghosts": {
        "one ghost": Scenario(_count_ghosts, _one_ghost, {"a": {"stream"}}, [1, 2, b""])
    },
    "measure": {"two": Scenario(_measure, _two_held, READY, [2, 2])},
    "pace": {"one": Scenario(_pace, answer=0)},
    "lead": {"free": Scenario(_lock, answer=1), "another leads": Scenario(_lock, _another_leads, answer=0)},
    "release_lock": {"ours": Scenario(_unlock, _locked, {}, 1)},
}  # fmt: skip
