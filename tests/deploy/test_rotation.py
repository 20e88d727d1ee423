"""The steps of the page rotate a password under load: no add fails, and no job is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue, Worker
from chasquimq.errors import ServerRefused
from deploy.kit import ROOT
from support.raw import Raw
from support.waiting import eventually
from support.workers import RunningWorker

PAGE = (ROOT / "docs/how-to/rotate-a-password.md").read_text()
STEPS = re.findall(r"^    valkey-cli (ACL SETUSER .+|CLIENT KILL .+|ACL LOG)$", PAGE, re.MULTILINE)
CLI = f"{sys.executable} {ROOT / 'tests/support/valkey_cli.py'}"
OLD, NEW = "old-secret-7c1d", "new-secret-02fe"
pytestmark = pytest.mark.own_server(port=0)


class Vault:
    """Where programs read their password."""

    def __init__(self) -> None:
        self.password = OLD

    async def __call__(self, address: str) -> tuple[str | None, str | None]:
        return "worker", self.password


@pytest.fixture
async def raw(raw):
    await raw("ACL", "SETUSER", "worker", "on", f">{OLD}", "~{chasqui:*", "+@all")
    return raw


@pytest.fixture
def step(server):
    """Run a command of the page as it stands there."""

    async def run(command: str) -> None:
        assert command in STEPS
        process = await asyncio.create_subprocess_shell(
            f"{CLI} -u {server.url} {command}",
            env=os.environ | {"OLD": OLD, "NEW": NEW, "PYTHONPATH": str(ROOT / "src")},
        )
        assert await process.wait() == 0

    return run


class Load:
    """Adds jobs as fast as they are taken, until it is ended."""

    def __init__(self, queue: Queue) -> None:
        self.added: list[str] = []
        self._is_ended = False
        self._queue = queue
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._is_ended:
            self.added.append((await self._queue.add("n", len(self.added))).id)
            await asyncio.sleep(0.002)

    async def goes_on(self, count: int = 100) -> None:
        """Wait for that many more; whatever was raised comes out here."""
        wanted = len(self.added) + count
        await eventually(
            lambda: self._task.done() or len(self.added) >= wanted, within_s=20, what="more adds"
        )
        if self._task.done():
            self._task.result()

    async def end(self) -> None:
        self._is_ended = True
        await self._task


async def test_a_password_is_rotated_under_load_without_a_lost_or_doubled_job(
    server, raw, step, queue_name
):
    add_new, take_old, kill, log = STEPS
    url = f"redis://{urlsplit(server.url).netloc}"
    vault, runs = Vault(), Counter[str]()

    async def count(job):
        runs[job.id] += 1

    options = {"redis_url": url, "credential_provider": vault}
    workers = [RunningWorker(Worker(queue_name, count, **options)) for _ in range(2)]
    async with Queue(queue_name, **options) as queue:
        load = Load(queue)
        await load.goes_on()

        await step(add_new)
        await load.goes_on()
        vault.password = NEW
        await step(take_old)
        await load.goes_on()
        await step(kill)
        await load.goes_on()
        await step(log)
        await load.end()

        await eventually(lambda: len(runs) == len(load.added), within_s=30, what="every job")
    for one in workers:
        await one.stop()
    assert set(runs) == set(load.added)
    assert set(runs.values()) == {1}
    assert await denied(raw) == 0


async def test_workers_by_url_are_replaced_one_by_one_while_both_passwords_are_good(
    server, raw, step, queue_name
):
    add_new, take_old, kill, _ = STEPS
    place = urlsplit(server.url).netloc
    old_url, new_url = (f"redis://worker:{secret}@{place}" for secret in (OLD, NEW))
    runs = Counter[str]()

    async def count(job):
        runs[job.id] += 1

    async with Queue(queue_name, redis_url=f"redis://{place}") as queue:
        load = Load(queue)
        first = RunningWorker(Worker(queue_name, count, redis_url=old_url))
        await load.goes_on()
        await step(add_new)

        second = RunningWorker(Worker(queue_name, count, redis_url=new_url))
        await second.until_consuming()
        await first.stop()
        await load.goes_on()
        await step(take_old)
        await step(kill)
        await load.goes_on()
        await load.end()

        await eventually(lambda: len(runs) == len(load.added), within_s=30, what="every job")
    await second.stop()
    assert set(runs.values()) == {1}


async def test_who_was_forgotten_is_refused_and_named(server, raw, step, queue_name):
    add_new, take_old, kill, _ = STEPS
    for one in (add_new, take_old, kill):
        await step(one)
    place = urlsplit(server.url).netloc

    async with Queue(queue_name, redis_url=f"redis://worker:{OLD}@{place}") as queue:
        with pytest.raises(ServerRefused):
            await queue.add("n", 1)

    entries = str(await raw("ACL", "LOG"))
    assert "auth" in entries
    assert "worker" in entries


async def denied(raw: Raw) -> int:
    stats = (await raw("INFO", "errorstats")).decode()
    found = re.search(r"errorstat_WRONGPASS:count=(\d+)", stats)
    return int(found[1]) if found else 0


def test_the_page_has_its_steps_in_order():
    assert STEPS == [
        'ACL SETUSER worker ">$NEW"', 'ACL SETUSER worker "<$OLD"', "CLIENT KILL USER worker",
        "ACL LOG",
    ]  # fmt: skip
