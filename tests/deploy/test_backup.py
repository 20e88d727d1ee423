"""A backup of a server that goes on has everything, and a restore brings all of it back."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from chasquimq import Queue, RepeatPattern, UnrecoverableError, Worker
from chasquimq.server.launch import bundled_binary
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from deploy.kit import ROOT
from deploy.production import SERVER
from support.servers import server_kinds
from support.waiting import eventually
from support.workers import RunningWorker

PAGE = (ROOT / "docs/how-to/back-up-and-restore.md").read_text()
CLI = f"{sys.executable} {ROOT / 'tests/support/valkey_cli.py'}"
LEASE_MS = 1_000


@pytest.fixture
def server_in(start_server, tmp_path):
    """Start a server on the data in this folder."""
    return lambda name: start_server(directory=tmp_path / name, aof="everysec")


@pytest.fixture
def server(server_in):
    return server_in("node")


@pytest.fixture
def script(kind):
    """One of the scripts, with the program of this kind of server."""

    own = kind.binary or bundled_binary()

    def run(name: str, *args, url: str = "", binary=own) -> subprocess.CompletedProcess[str]:
        environ = {
            "PYTHONPATH": str(ROOT / "src"), "SERVER": str(binary),
            "VALKEY_CLI": f"{CLI} -u {url}" if url else CLI,
        }  # fmt: skip
        return subprocess.run(
            ["sh", str(SERVER / name), *map(str, args)], env=os.environ | environ,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


async def handle(job):
    if job.name == "hopeless":
        raise UnrecoverableError("never")
    if job.name == "held":
        await asyncio.sleep(60)
    return job.data


async def fill(queue: Queue, url: str) -> RunningWorker:
    """Something of everything that a queue can hold, and a job in the hands of a worker."""
    await queue.add("hopeless", 0)
    await queue.add("held", 1, job_id="held")
    done = await queue.add("fine", 2, job_id="done")
    options = {"claim_min_idle_ms": LEASE_MS, "store_results": True}
    running = RunningWorker(Worker(queue.name, handle, redis_url=url, concurrency=3, **options))
    assert await queue.wait_for_result(done.id, timeout=20) == 2

    async def is_quiet() -> bool:
        counts = await queue.counts()
        return (counts.running, counts.dead) == (1, 1)

    await eventually(is_quiet, what="a dead job, and one that runs")
    await queue.add("later", 3, delay_ms=600_000, job_id="later")
    await queue.upsert_repeatable_job("nightly", 4, repeat=RepeatPattern.every(86_400_000))
    async with Queue(f"{queue.name}-waiting", redis_url=url) as waiting:
        await waiting.add_bulk([{"name": "fine", "data": at} for at in range(100)])
    return running


async def test_a_restored_server_has_everything_that_was_backed_up(
    server, server_in, script, queue_name, tmp_path
):
    async with Queue(queue_name, redis_url=server.url) as queue:
        running = await fill(queue, server.url)
        args = ("backup.sh", tmp_path / "node", tmp_path / "backup.rdb")
        made = await asyncio.to_thread(script, *args, url=server.url)
        assert (made.returncode, made.stderr) == (0, "")
        await queue.add("fine", 5, job_id="after the backup")
        assert await queue.cancel_delayed("later")
        await queue.purge_dlq(all=True)
        await running.cut_short()
    server.stop()

    restored = script("restore.sh", tmp_path / "backup.rdb", tmp_path / "new")

    assert restored.returncode == 0, restored.stderr
    await everything_is_there(server_in("new").url, queue_name)


async def everything_is_there(url: str, queue_name: str) -> None:
    async with Queue(f"{queue_name}-waiting", redis_url=url) as waiting:
        assert (await waiting.counts()).ready == 100
    async with Queue(queue_name, redis_url=url) as queue:
        counts = await queue.counts()
        # What ran when the backup was made is held by a worker that is gone.
        assert (counts.ready, counts.running, counts.delayed, counts.dead) == (0, 1, 1, 1)
        assert [one["reason"] for one in await queue.peek_dlq()] == ["unrecoverable"]
        assert [one.job_name for one in await queue.get_repeatable_jobs()] == ["nightly"]
        assert await queue.wait_for_result("done", timeout=5) == 2

        # An id of then is taken, one that was first used later is free.
        await queue.add("fine", 6, job_id="done")
        assert (await queue.counts()).ready == 0
        await queue.add("fine", 7, job_id="after the backup")
        assert (await queue.counts()).ready == 1

        seen: list[tuple[str, bool]] = []

        async def note(job):
            seen.append((job.id, job.redelivered))

        running = RunningWorker(Worker(queue_name, note, redis_url=url, claim_min_idle_ms=LEASE_MS))
        await eventually(lambda: len(seen) == 2, within_s=20, what="both jobs")
        assert sorted(seen) == [("after the backup", False), ("held", True)]
        assert await queue.cancel_delayed("later")
        await running.stop()


def test_a_dump_beside_no_append_only_file_is_not_read(server, server_in, script, tmp_path):
    """Why restore.sh makes one."""
    set_key(server.url)
    script("backup.sh", tmp_path / "node", tmp_path / "backup.rdb", url=server.url)
    (tmp_path / "naive").mkdir()
    (tmp_path / "naive/dump.rdb").write_bytes((tmp_path / "backup.rdb").read_bytes())

    assert keys_of(server_in("naive").url) == 0

    assert script("restore.sh", tmp_path / "backup.rdb", tmp_path / "new").returncode == 0
    assert keys_of(server_in("new").url) == 1


def test_a_folder_that_has_data_is_left_alone(server, script, tmp_path):
    set_key(server.url)
    script("backup.sh", tmp_path / "node", tmp_path / "backup.rdb", url=server.url)

    refused = script("restore.sh", tmp_path / "backup.rdb", tmp_path / "node")

    assert refused.returncode == 1
    assert "must hold no data" in refused.stderr
    assert keys_of(server.url) == 1


def test_what_is_no_dump_is_refused_and_leaves_nothing(script, tmp_path):
    (tmp_path / "backup.rdb").write_bytes(b"half a file")

    refused = script("restore.sh", tmp_path / "backup.rdb", tmp_path / "new")

    assert refused.returncode == 1
    assert "must be an RDB dump" in refused.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == []


@pytest.mark.skipif(len(server_kinds()) < 2, reason="needs servers of two kinds")
def test_a_server_of_another_kind_does_not_read_the_dump(server, script, kind, tmp_path):
    set_key(server.url)
    script("backup.sh", tmp_path / "node", tmp_path / "backup.rdb", url=server.url)
    (other,) = [one for one in server_kinds() if one != kind][:1]

    args = ("restore.sh", tmp_path / "backup.rdb", tmp_path / "new")
    refused = script(*args, binary=other.binary or bundled_binary())

    assert refused.returncode == 1
    assert "this version of the server can read" in refused.stderr


def test_a_backup_that_fails_leaves_no_file(server, script, tmp_path):
    # A snapshot takes the place of a file, and cannot take that of a folder.
    (tmp_path / "node/dump.rdb").mkdir()

    failed = script("backup.sh", tmp_path / "node", tmp_path / "backup.rdb", url=server.url)

    assert failed.returncode == 1
    assert "its last BGSAVE failed" in failed.stderr
    assert not (tmp_path / "backup.rdb").exists()


def test_a_backup_of_nobody_says_so_at_once(script, tmp_path):
    failed = script("backup.sh", tmp_path, tmp_path / "backup.rdb", url="redis://127.0.0.1:1")

    assert failed.returncode == 1
    assert "must answer" in failed.stderr
    assert not (tmp_path / "backup.rdb").exists()


def test_scripts_on_the_page_are_called_as_the_tests_call_them():
    called = re.findall(r"^ +(deploy/server/\w+\.sh .+)$", PAGE, re.MULTILINE)
    words = [shlex.split(line) for line in called]

    assert [Path(name).name for name, *_ in words] == ["backup.sh", "restore.sh"]
    assert all((ROOT / name).exists() and len(args) == 2 for name, *args in words)


def set_key(url: str) -> None:
    connection = BlockingConnection(ConnectionSettings(url=url))
    connection.call("SET", "key", "value")
    connection.close()


def keys_of(url: str) -> int:
    connection = BlockingConnection(ConnectionSettings(url=url))
    try:
        return connection.call("DBSIZE")
    finally:
        connection.close()
