"""A user with the commands of the page, and no other, does everything that the page says."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue, Worker
from chasquimq.errors import ServerRefused
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.sources.history import HistorySource
from chasquimq.store.producer.rows import (
    Jobs,
    OwnIdTerms,
    RowOwner,
    RowWriter,
    own_id_write,
    run_write,
)
from chasquimq.wire.new_job import encode_envelopes, job_digests, row_digests
from security.everyday import do_everything
from support.drive import Drive
from support.script_commands import commands_of, script_names
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/connect-securely.md").read_text("utf-8")
BLOCK = re.compile(r"<!-- commands: (?P<who>.*?) -->\n(?P<block>(?: {4}.*\n)+)")
COMMAND = re.compile(r"\+([a-z|]+)")
GRANTS = {found["who"]: COMMAND.findall(found["block"]) for found in BLOCK.finditer(PAGE)}
EVERYWHERE, NEWER = GRANTS["every server"], GRANTS["Redis 8.6"]
MANY_SET = GRANTS["Redis 8.4 and Valkey 9.1"]
REMOVAL = GRANTS["removing a group"]
ROWS = re.search(r"\| rows written by Spark.*", PAGE)
PASSWORD = "canary-5b1e"


def in_scripts() -> set[str]:
    """The commands that our scripts run."""
    return {command for name in script_names() for command in commands_of(name)}


@pytest.fixture
def newer(kind) -> list[str]:
    """What this kind of server has beyond the others."""
    return [] if kind.label == "valkey" else NEWER


@pytest.fixture
async def limited(raw, queue_name, url):
    """The URL of a user with these commands on the keys of this queue; gone after the test."""
    keys = f"~{raw.keys.stream.removesuffix('stream')}*"

    async def make(commands: list[str]) -> str:
        rights = [f"+{command}" for command in commands]
        await raw("ACL", "SETUSER", queue_name, "reset", "on", f">{PASSWORD}", keys, *rights)
        parts = urlsplit(url)
        return parts._replace(netloc=f"{queue_name}:{PASSWORD}@{parts.netloc}").geturl()

    yield make
    await raw("ACL", "DELUSER", queue_name)


async def used(raw, queue_name: str, url: str) -> set[str]:
    """The commands that everything takes."""
    # Whoever came before may have taught the server our scripts.
    await raw("SCRIPT", "FLUSH")
    await raw("CONFIG", "RESETSTAT")
    await do_everything(url, queue_name)
    stats = (await raw("INFO", "commandstats")).decode()
    return set(re.findall(r"cmdstat_([a-z|]+):calls=[1-9]", stats)) - {"auth", "config|resetstat"}


async def test_the_commands_of_the_page_are_enough_and_none_is_too_many(
    limited, raw, queue_name, newer
):
    commands = await used(raw, queue_name, await limited([*EVERYWHERE, *newer]))

    assert commands <= {*EVERYWHERE, *NEWER}
    # A look at what is due soon is rare, and a reader need not be blocked when it is stopped.
    assert {*EVERYWHERE, *newer} - commands - in_scripts() <= {"zcount", "client|unblock"}


async def test_what_newer_servers_have_is_done_without_where_it_is_not_granted(
    limited, raw, queue_name
):
    commands = await used(raw, queue_name, await limited(EVERYWHERE))

    assert commands <= {*EVERYWHERE}


def test_every_command_of_a_script_is_on_the_page():
    assert in_scripts() <= {*EVERYWHERE, *NEWER, *MANY_SET, *REMOVAL}


def write_rows(url: str, queue_name: str) -> list[bytes]:
    """Rows with ids and without, twice, with all that is asked and noted about them."""
    marks: list[bytes] = []
    writer = RowWriter(queue_name, ConnectionSettings(url=url), lambda _, got: marks.append(got))
    writer.drop_notes("r")
    for first in (0, 2):
        ids = [f"row-{at}" for at in range(first, first + 3)]
        jobs = Jobs(ids, ["n"] * 3, encode_envelopes(ids, [b"\xc0"] * 3, 5))
        terms = OwnIdTerms(
            stream_len_max=0, unique_ms=60_000, has_leftovers=writer.has_leftovers(ids),
            has_many_set=writer.has_many_set(),
        )  # fmt: skip
        writer.put(own_id_write(jobs, job_digests(jobs.names, [b"\xc0"] * 3), writer.keys, terms))
        digests = row_digests("r", jobs.names, [b"%d" % first] * 3)
        owner = RowOwner("r", "i", 0, 0)
        writer.put(run_write(jobs, digests, writer.keys, owner, stream_len_max=0, keep_ms=60_000))
    writer.drain()
    writer.wait_ms("r", 1, 10.0)
    writer.note("r", ["0", "6"])
    assert writer.notes("r") == {"0": "6"}
    writer.forget_run("r", 1_000)
    writer.close()
    return marks


@pytest.mark.parametrize("granted", [MANY_SET, []], ids=["granted", "not granted"])
async def test_rows_are_written_with_the_commands_of_the_page(limited, raw, queue_name, granted):
    url = await limited([*EVERYWHERE, *COMMAND.findall(ROWS[0]), *granted])
    (known,) = await raw("COMMAND", "INFO", "MSETEX")
    await raw("SCRIPT", "FLUSH")
    await raw("CONFIG", "RESETSTAT")

    marks = await asyncio.to_thread(write_rows, url, queue_name)

    assert marks == [b"111", b"111", b"011", b"111"]
    stats = (await raw("INFO", "commandstats")).decode()
    was_used = bool(re.search("cmdstat_msetex:calls=[1-9]", stats))
    assert was_used is bool(granted and known)
    # What is not granted is asked for once, and not with every write.
    assert stats.count("rejected_calls=1,") == (0 if was_used else 1)


async def test_a_producer_without_a_command_hears_which(limited, queue_name, newer):
    url = await limited([one for one in (*EVERYWHERE, *newer) if one != "xadd"])
    async with Queue(queue_name, redis_url=url) as queue:
        with pytest.raises(ServerRefused, match="must be allowed to run XADD and is not") as caught:
            await queue.add("n", 1)

    assert "+xadd" in str(caught.value)
    assert PASSWORD not in str(caught.value)


async def test_a_worker_without_a_command_says_which_in_its_log(limited, queue_name, newer, caplog):
    caplog.set_level(logging.WARNING)
    url = await limited([one for one in (*EVERYWHERE, *newer) if one != "xreadgroup"])
    worker = Worker(queue_name, print, redis_url=url)
    running = asyncio.create_task(worker.run())

    await eventually(
        lambda: running.done() or "XREADGROUP" in _logged(caplog), what="a word about the command"
    )
    await worker.close()
    await asyncio.gather(running, return_exceptions=True)

    said = _logged(caplog) + (str(running.exception()) if running.exception() else "")
    assert "must be allowed to run XREADGROUP and is not" in said
    assert f"ACL SETUSER {queue_name} +xreadgroup" in said
    assert PASSWORD not in said


async def test_a_source_of_the_pipeline_without_a_command_hears_which(limited, queue_name, queue):
    await queue.add("n", 1)
    url = await limited([one for one in EVERYWHERE if one != "xinfo|stream"])
    options = {"chasqui.redis.url": url, "subscribe": queue_name}

    with pytest.raises(Exception, match="must be allowed to run XINFO STREAM and is not"):
        await asyncio.to_thread(lambda: Drive(HistorySource, options).batches())


async def test_keys_of_others_are_out_of_reach(limited, url, queue_name, newer):
    limited_url = await limited([*EVERYWHERE, *newer])
    async with Queue(f"{queue_name}x", redis_url=limited_url) as queue:
        with pytest.raises(ServerRefused, match="must be allowed to use the keys of queue"):
            await queue.add("n", 1)


def _logged(caplog) -> str:
    return "\n".join(f"{one.getMessage()} {vars(one)}" for one in caplog.records)
