"""No script keeps the server from everyone else for long, at the largest call that clients make."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from chasquimq import Queue
from chasquimq.engine import in_flight
from chasquimq.model.delivery import Burying, Completing, Delivery, DlqReason, Retrying
from chasquimq.settings import (
    AbilitySettings,
    ConnectionSettings,
    ReadSettings,
    ResultSettings,
    UpkeepSettings,
)
from chasquimq.store import drain as draining
from chasquimq.store import repeatables as fire_call
from chasquimq.store.consumer import lease as leasing
from chasquimq.store.consumer import store as consuming
from chasquimq.store.consumer.lease import LeaseStore
from chasquimq.store.consumer.store import ConsumerStore
from chasquimq.store.inspect import diagnose as diagnosing
from chasquimq.store.inspect import ranges as queue_reading
from chasquimq.store.inspect.pages import PAGE_MAX
from chasquimq.store.inspect.queue import server_ms
from chasquimq.store.net import script
from chasquimq.store.producer.rows import (
    OWN_ID_ROWS_PER_WRITE_MAX,
    ROWS_PER_WRITE_MAX,
    Jobs,
    OwnIdTerms,
    RowOwner,
    RowWrite,
    own_id_write,
    run_writes,
)
from chasquimq.store.producer.writes import JOBS_PER_WRITE_MAX
from chasquimq.store.upkeep import JanitorStore, UpkeepStore
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.stream_entry import encode_member
from support.raw import Raw

SERVER_MS_MAX = 5.0
RUNS, RUNS_MAX = 3, 20
# What is shorter is not noted: to note every command inside a script takes longer than they do.
SEEN_US_MIN = 200
GROUP, ME = "default", "me"
# A thousand jobs of this size are a mebibyte, which is the other bound of a call.
BODY = b"x" * 1_000
SPEC = "mail::every:1000"
# These do the same few steps whatever a client asks for.
OF_ONE_SIZE = {
    "join_group", "lead", "missing_rights", "pace", "quarantine_spec", "reap_consumer",
    "release_lock", "remove_group", "remove_repeatable", "upsert_repeatable",
}  # fmt: skip


class Load:
    """One queue full of jobs, and the clients that work on it."""

    def __init__(self, url: str, raw: Raw) -> None:
        self.raw = raw
        self.keys = raw.keys
        self.settings = ConnectionSettings(url=url)
        self.name = raw.keys.queue
        fallback = AbilitySettings(ack_delete=False, idempotent_add=False)
        # No native command takes the place of a script here.
        self.queue = Queue(self.name, redis_url=url, abilities=fallback, max_stream_len=10**6)
        self.worker = ConsumerStore(
            self.name, GROUP, ME, self.settings, ReadSettings(), fallback, 30_000,
            ResultSettings(is_stored=False),
        )  # fmt: skip
        self.keeper = ConsumerStore(
            self.name, GROUP, ME, self.settings, ReadSettings(), fallback, 30_000,
            ResultSettings(is_stored=True),
        )  # fmt: skip

    async def run(self, name: str, keys: list[str], *args: Any) -> Any:
        return await script.run(self.raw.connection, name, keys, *args)

    async def held(self, count: int) -> list[Delivery]:
        """Jobs that the worker has read."""
        await self.worker.open()
        await self.queue.add_bulk([{"name": "n", "data": BODY} for _ in range(count)])
        return (await self.worker.read(count, 0)).deliveries

    async def close(self) -> None:
        await self.queue.close()
        await self.worker.close()
        await self.keeper.close()


def specs(count: int, **options: Any) -> list[dict[str, Any]]:
    return [{"name": "n", "data": BODY, "job_id": f"job-{at}", **options} for at in range(count)]


def envelope(job_id: str) -> bytes:
    return encode_envelope(job_id, BODY, 5, 0, None, None)


def rows(count: int) -> Jobs:
    ids = [f"job-{at}" for at in range(count)]
    return Jobs(ids, ["n"] * count, [envelope(one) for one in ids])


async def add(load: Load) -> None:
    await load.queue.add_bulk(specs(JOBS_PER_WRITE_MAX))


async def schedule(load: Load) -> None:
    await load.queue.add_bulk(specs(JOBS_PER_WRITE_MAX, delay_ms=60_000))


async def cancel(load: Load) -> None:
    await schedule(load)
    store = load.queue._store()
    await store.cancel([f"job-{at}" for at in range(JOBS_PER_WRITE_MAX)])


async def cancel_by_index(load: Load) -> None:
    jobs = await load.queue.add_bulk([{"name": "n", "data": BODY, "delay_ms": 60_000}] * 1_000)
    await load.queue._store().cancel([job.id for job in jobs])


async def ack(load: Load) -> None:
    deliveries = await load.held(consuming._IDS_PER_CALL_MAX)
    await load.worker.ack([one.entry_id for one in deliveries])


async def complete(load: Load) -> None:
    deliveries = await load.held(1_000)
    await load.keeper.open()
    # A hundred of these are all that may be in a call.
    await load.keeper.complete([Completing(one, BODY * 10) for one in deliveries])


async def retry(load: Load) -> None:
    deliveries = await load.held(1_000)
    await load.worker.retry([Retrying(one, 60_000, 1, None) for one in deliveries])


async def retry_at_once(load: Load) -> None:
    deliveries = await load.held(1_000)
    await load.worker.retry([Retrying(one, 0, 1, None, None, True) for one in deliveries])


async def bury(load: Load) -> None:
    deliveries = await load.held(1_000)
    await load.worker.bury([Burying(one, DlqReason.UNRECOVERABLE, 1) for one in deliveries])


async def charge(load: Load) -> None:
    deliveries = await load.held(1_000)
    await load.worker.charge([(one.entry_id, 3) for one in deliveries])


async def hand_back(load: Load) -> None:
    deliveries = await load.held(1_000)
    await load.worker.requeue([(one.entry_id, 0) for one in deliveries])


async def claim(load: Load) -> None:
    await hand_back(load)
    await load.worker.claim(in_flight._READ_MAX)


async def renew(load: Load) -> None:
    deliveries = await load.held(2 * leasing._IDS_PER_CALL_MAX)
    lease = LeaseStore(load.name, GROUP, ME, load.settings, 1_000)
    lease.renew([one.entry_id for one in deliveries])
    lease.close()


async def half_ghosts(load: Load) -> None:
    deliveries = await load.held(1_000)
    await load.raw("XDEL", load.keys.stream, *[one.entry_id for one in deliveries[::2]])


async def sweep(load: Load) -> None:
    await half_ghosts(load)
    await JanitorStore(load.name, GROUP, load.worker.writes).sweep_ghosts()


async def sweep_index(load: Load) -> None:
    """A page of entries, each of which is looked up in the delayed set."""
    await load.raw("ZADD", load.keys.delayed, 0, "the first")
    entries = [part for at in range(1_000) for part in (f"gone-{at}", at + 1)]
    await load.raw("HSET", load.keys.dix, *entries)
    await JanitorStore(load.name, GROUP, load.worker.writes).sweep_index()


async def count_ghosts(load: Load) -> None:
    await half_ghosts(load)
    await load.run("count_ghosts", [load.keys.stream], GROUP, "-", diagnosing._GHOST_PAGE)


async def promote(load: Load) -> None:
    """Jobs of our own and of strangers, whose index is a key each."""
    await load.worker.open()
    due_ms = await server_ms(load.raw.connection) - 1_000
    for at in range(1_000):
        job_id = f"job-{at}"
        await load.raw("ZADD", load.keys.delayed, due_ms, encode_member("n", envelope(job_id)))
        if at % 2:
            await load.raw("HSET", load.keys.dix, job_id, due_ms)
            continue
        await load.raw("SET", load.keys.didx(job_id), encode_member("n", envelope(job_id)))
    upkeep = UpkeepStore(load.name, load.worker.writes, waiting_events_max=10_000)
    await upkeep.promote(UpkeepSettings().promote_max)


async def fire(load: Load) -> None:
    keys, now_ms, count = load.keys, await server_ms(load.raw.connection), 500
    assert count == fire_call.FIRES_PER_CALL_MAX
    await load.raw("ZADD", keys.repeat, now_ms, SPEC)
    await load.raw("HSET", keys.repeat_spec(SPEC), "spec", "spec")
    ids = [f"job-{at}" for at in range(count)]
    names = [keys.stream, keys.repeat, keys.repeat_spec(SPEC), *map(keys.uniq, ids)]
    jobs = [part for at, one in enumerate(ids) for part in (now_ms + at, envelope(one) + BODY)]
    await load.run("fire", names, SPEC, now_ms, now_ms + 10**6, 0, 0, 60_000, "n", *jobs)


async def replay(load: Load) -> None:
    await bury(load)
    await load.queue.replay_dlq()


async def purge(load: Load) -> None:
    await bury(load)
    entries = await load.raw.entries(load.keys.dlq)
    token = load.keys.token(secrets.token_hex(12))
    await load.run("purge", [load.keys.dlq, token], 60, *[one for one, _ in entries[:PAGE_MAX]])


async def drain(load: Load) -> None:
    """All that a page may be, beside as many that a worker holds."""
    await load.held(draining.ENTRIES_PER_CALL_MAX)
    await load.queue.add_bulk(specs(draining.ENTRIES_PER_CALL_MAX))
    entries = await load.raw.entries(load.keys.stream)
    assert await load.queue.drain(delayed=False) == draining.ENTRIES_PER_CALL_MAX < len(entries)


async def cancel_members(load: Load) -> None:
    await load.queue.add_bulk(specs(1_000, delay_ms=60_000))
    assert await load.queue.cancel_delayed_where(id_prefix="job-") == 1_000


async def import_dead(load: Load) -> None:
    letter = {
        "dlq_id": "", "source_id": "1-1", "reason": "retries_exhausted", "name": "n",
        "error": "E: " + "x" * 2_000, "payload": envelope("job"),
    }  # fmt: skip
    letters = [letter | {"dlq_id": f"9-{at}"} for at in range(1, 501)]
    assert await load.queue.import_dlq(letters) == 500


async def send_rows(load: Load, write: RowWrite) -> None:
    await script.run(load.raw.connection, write.script_name, write._keys, *write._args)


async def add_rows(load: Load) -> None:
    jobs = rows(OWN_ID_ROWS_PER_WRITE_MAX)
    terms = OwnIdTerms(
        stream_len_max=10**6, unique_ms=60_000, has_leftovers=True, has_many_set=False
    )
    await send_rows(
        load, own_id_write(jobs, [f"{at:016}" for at in range(len(jobs))], load.keys, terms)
    )


async def add_run_rows(load: Load) -> None:
    jobs = rows(ROWS_PER_WRITE_MAX)
    await send_run_rows(load, jobs)


async def delay_run_rows(load: Load) -> None:
    jobs = rows(ROWS_PER_WRITE_MAX)
    await send_run_rows(load, replace(jobs, waits_ms=[60_000] * len(jobs)))


async def send_run_rows(load: Load, jobs: Jobs) -> None:
    digests = [secrets.token_bytes(16) for _ in jobs.ids]
    owner = RowOwner("run", "instance", 0, 0)
    for write in run_writes(jobs, digests, load.keys, owner, stream_len_max=10**6, keep_ms=60_000):
        await send_rows(load, write)


async def record(load: Load) -> None:
    names = [load.keys.history, load.keys.token("history:run")]
    await load.run("record", names, 1, 1_000, 60, "rows", BODY * 1_000)


async def measure(load: Load) -> None:
    await load.queue.add_bulk(specs(1_000))
    count = queue_reading._MEASURED_MAX
    await load.run("measure", [load.keys.stream], "0-0", "+", count, 10**6, "n")


Act = Callable[[Load], Awaitable[None]]
# Which script, and what makes a client call it with as much as it ever does.
LARGEST: dict[str, tuple[str, Act]] = {
    "ack": ("ack", ack),
    "add": ("add", add),
    "add_rows": ("add_rows", add_rows),
    "add_run_rows": ("add_run_rows", add_run_rows),
    "add_run_rows, delayed": ("add_run_rows", delay_run_rows),
    "bury": ("bury", bury),
    "cancel": ("cancel", cancel),
    "cancel by index": ("cancel", cancel_by_index),
    "cancel_members": ("cancel_members", cancel_members),
    "charge": ("charge", charge),
    "claim": ("claim", claim),
    "complete": ("complete", complete),
    "count_ghosts": ("count_ghosts", count_ghosts),
    "drain": ("drain", drain),
    "fire": ("fire", fire),
    "hand_back": ("hand_back", hand_back),
    "import_dead": ("import_dead", import_dead),
    "measure": ("measure", measure),
    "promote_due": ("promote_due", promote),
    "purge": ("purge", purge),
    "record": ("record", record),
    "renew": ("renew", renew),
    "replay": ("replay", replay),
    "retry": ("retry", retry),
    "retry at once": ("retry", retry_at_once),
    "schedule": ("schedule", schedule),
    "sweep": ("sweep", sweep),
    "sweep_index": ("sweep_index", sweep_index),
    "unindex": ("unindex", promote),
}


def test_every_script_is_measured_or_of_one_size():
    found = {one.name for one in files("chasquimq.store").joinpath("scripts").iterdir()}
    scripts = {name.removesuffix(".lua") for name in found if name.endswith(".lua")}

    assert {name for name, _ in LARGEST.values()} == scripts - OF_ONE_SIZE


@pytest.mark.own_server
@pytest.mark.parametrize("case", LARGEST)
async def test_the_largest_call_of_a_script_is_over_within_five_milliseconds(
    server, raw, kind, case
):
    name, act = LARGEST[case]
    await raw("CONFIG", "SET", "slowlog-log-slower-than", SEEN_US_MIN)
    found_ms = [await busy_ms(server, raw, name, act) for _ in range(RUNS)]
    # Other programs slow the server down in some runs, and make it faster in none.
    while min(found_ms) > SERVER_MS_MAX and len(found_ms) < RUNS_MAX:
        found_ms.append(await busy_ms(server, raw, name, act))

    print(f"{kind.label}: {case} took {min(found_ms):.2f} to {max(found_ms):.2f} ms")
    assert min(found_ms) <= SERVER_MS_MAX


async def busy_ms(server, raw: Raw, name: str, act: Act) -> float:
    """The same without the time in which the server waited for a processor that others had."""
    waited_ms = waited_for_processor_ms(server.pid)
    took_ms = await slowest_ms(server.url, raw, name, act)
    return max(took_ms - (waited_for_processor_ms(server.pid) - waited_ms), SEEN_US_MIN / 1_000)


def waited_for_processor_ms(pid: int) -> float:
    """What the thread that runs commands has waited so far; 0 where the system does not tell."""
    told = Path(f"/proc/{pid}/task/{pid}/schedstat")
    return int(told.read_text().split()[1]) / 1e6 if told.exists() else 0.0


async def slowest_ms(url: str, raw: Raw, name: str, act: Act) -> float:
    """How long the server was busy with the longest call of a script while a client acts."""
    own = await Raw.open(url, f"q-{secrets.token_hex(6)}")
    load = Load(url, own)
    await raw("SLOWLOG", "RESET")
    await act(load)
    calls = await raw("SLOWLOG", "GET", -1)
    await load.close()
    await own.close()
    sha = script.script(name).sha.encode()
    by_hash = [row[2] for row in calls if row[3][0] == b"EVALSHA" and row[3][1] == sha]
    # The first call carries the text of a script that is not known yet, and is as large.
    by_text = [row[2] for row in calls if row[3][0] == b"EVAL" and is_text_of(name, row[3][1])]
    return max([*by_hash, *by_text, SEEN_US_MIN]) / 1_000


def is_text_of(name: str, shown: bytes) -> bool:
    """Whether a text, of which only the beginning is shown, is that of the script."""
    return script.script(name).text.encode().startswith(shown.partition(b"... (")[0])
