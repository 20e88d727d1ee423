"""The pages of a worker are drawn from what its own loop sees, and ask for no needless restart."""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

import pytest

from chasquimq import Worker
from chasquimq.cli.service import LOOPBACK, Endpoint
from chasquimq.cli.worker.foreground import WorkerPages
from chasquimq.worker.session import Health

pytestmark = pytest.mark.takes_turns


class Watched(Worker):
    """Notes which threads ask how it is."""

    threads: ClassVar[set[int]] = set()

    def health(self):
        self.threads.add(threading.get_ident())
        return super().health()


@pytest.fixture
async def get():
    """A page of a worker that does not run."""
    pages = WorkerPages("q")
    worker = Watched("q", _nothing, redis_url="redis://127.0.0.1:1", metrics=pages.sink)
    server = await pages.open(worker, Endpoint(LOOPBACK, 0))

    async def ask(path: str) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    yield ask
    await server.stop()
    pages._prometheus.close()


async def test_health_is_read_on_the_loop_that_changes_it(get):
    Watched.threads.clear()

    page = await get("/metrics")

    assert b'chasquimq_worker_consuming{queue="q"} 0.0\n' in page
    assert Watched.threads == {threading.get_ident()}


async def test_a_worker_that_consumes_nothing_is_not_ready_and_asks_for_no_restart(get):
    not_ready = await get("/readyz")

    assert not_ready.startswith(b"HTTP/1.1 503 ")
    assert not_ready.endswith(b"\r\n\r\nservice unavailable\nthe worker does not read jobs\n")
    assert (await get("/healthz")).startswith(b"HTTP/1.1 200 ")


async def test_a_page_that_is_not_ready_shows_no_password(get, monkeypatch):
    down = Health(
        is_running=True, is_consuming=True, loops_down={"reader": "redis://u:hunter2@h:1"}
    )
    monkeypatch.setattr(Watched, "health", lambda _: down)

    not_ready = await get("/readyz")

    assert b"\nloop reader keeps failing: redis://u:***@h:1\n" in not_ready
    assert b"hunter2" not in not_ready


async def _nothing(job) -> None:
    return
