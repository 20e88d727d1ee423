"""`--wait-for-server`: a worker that is started before its server waits, and says so."""

from __future__ import annotations

import asyncio
import math
import re
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest

from chasquimq import Queue, Worker
from chasquimq.errors import ServerRefused, ServerUnreachable
from chasquimq.worker.upkeep import Upkeep
from support.raw import Raw
from support.waiting import eventually, patience

pytestmark = pytest.mark.takes_turns

TASKS = "async def send(job):\n    return 5\n"
NOBODY = "redis://me:canary@127.0.0.1:1"


@pytest.fixture(autouse=True)
def tasks(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)


@pytest.fixture
def port() -> int:
    return free_port()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def status(port: int, path: str) -> int:
    def get() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as refused:
            return refused.code

    return await asyncio.to_thread(get)


@pytest.fixture
def start_late(start_server, port):
    """Start the server late; it has the user of the URLs here."""

    def start(*args: str) -> str:
        user = ("--user", "me", "on", ">canary", "~*", "&*", "+@all")
        start_server(port=port, args=[*user, *args])
        return f"redis://me:canary@127.0.0.1:{port}"

    return start


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_worker_waits_for_its_server_and_then_works(
    running, start_late, port, queue_name, processes
):
    command = running(
        "worker", "tasks:send", "--queue", queue_name, "--wait-for-server", "forever",
        "--processes", str(processes), "--metrics-port", "0",
        CHASQUI_REDIS_URL=f"redis://me:canary@127.0.0.1:{port}",
    )  # fmt: skip
    await command.until_said("waiting for it", processes)
    pages = int(re.findall(r"http://[\d.]+:(\d+)", command.err)[0])
    assert (await status(pages, "/healthz"), await status(pages, "/readyz")) == (200, 503)

    url = start_late()
    await command.until_said("consuming", processes)
    await eventually(lambda: is_ready(pages))
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add("send", 1)
        await eventually(lambda: is_empty(queue))
    assert await command.ended(signal.SIGTERM) == 0
    assert "canary" not in command.err
    assert command.err.count("waiting for it") == command.err.count("is there") == processes
    assert "process died" not in command.err


async def is_ready(port: int) -> bool:
    return await status(port, "/readyz") == 200


async def is_empty(queue: Queue) -> bool:
    return not (await queue.counts()).ready


async def test_upkeep_waits_for_its_server(running, start_late, port, queue_name):
    command = running(
        "upkeep", queue_name, f"{queue_name}-2", "--wait-for-server", "1h",
        CHASQUI_REDIS_URL=f"redis://me:canary@127.0.0.1:{port}",
    )  # fmt: skip
    await command.until_said("waiting for it")
    start_late()
    await command.until_said("keeping up")
    assert await command.ended(signal.SIGTERM) == 0
    assert command.err.count("waiting for it") == command.err.count("is there") == 1
    assert "canary" not in command.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    "words", [("worker", "tasks:send", "--queue", "q"), ("upkeep", "q")], ids=lambda w: w[0]
)
async def test_a_signal_ends_the_wait_at_once(running, words, number, code):
    command = running(*words, "--wait-for-server", "forever", CHASQUI_REDIS_URL=NOBODY)
    await command.until_said("waiting for it")
    # By then it rests for seconds between two dials.
    await asyncio.sleep(3.2)
    begin_s = time.monotonic()
    assert await command.ended(number) == code
    assert time.monotonic() - begin_s < 1.5 * patience()


@pytest.mark.parametrize(
    "words", [("worker", "tasks:send", "--queue", "q"), ("upkeep", "q")], ids=lambda w: w[0]
)
async def test_the_wait_has_an_end(bare_program, words):
    begin_s = time.monotonic()
    said = await bare_program(*words, "--wait-for-server", "2s")
    assert said.code == 1
    assert time.monotonic() - begin_s < 5 * patience()
    assert "a server must answer at redis://me:***@127.0.0.1:1, found none" in said.err
    assert said.err.rstrip().endswith(
        "; gave up after 2 s (this server because CHASQUI_REDIS_URL is set)"
    )


@pytest.mark.parametrize("secret", ["me:wrong@", ":wrong@"])
@pytest.mark.parametrize(
    "words", [("worker", "tasks:send", "--queue", "q"), ("upkeep", "q")], ids=lambda w: w[0]
)
async def test_wrong_credentials_are_not_waited_for(bare_program, start_late, port, words, secret):
    start_late()
    url = f"redis://{secret}127.0.0.1:{port}"
    said = await bare_program(*words, "--wait-for-server", "forever", CHASQUI_REDIS_URL=url)
    assert said.code == 1
    assert "must accept the credentials" in said.err
    assert "wrong@" not in said.err


async def test_a_server_that_asks_for_a_password_is_not_waited_for(bare_program, start_late, port):
    url = start_late()
    async with Queue("q", redis_url=url):
        pass
    await lock(url)
    plain = f"redis://127.0.0.1:{port}"
    said = await bare_program(
        "worker", "tasks:send", "--queue", "q", "--wait-for-server", "1h", CHASQUI_REDIS_URL=plain
    )
    assert said.code == 1
    assert "must accept the credentials" in said.err


async def lock(url: str) -> None:
    raw = await Raw.open(url, "q")
    await raw("ACL", "SETUSER", "default", ">secret", "resetpass", ">other")
    await raw.close()


async def test_a_key_of_the_wrong_type_is_refused_after_the_wait(
    running, start_late, port, queue_name
):
    command = running(
        "worker", "tasks:send", "--queue", queue_name, "--wait-for-server", "forever",
        CHASQUI_REDIS_URL=f"redis://me:canary@127.0.0.1:{port}",
    )  # fmt: skip
    await command.until_said("waiting for it")
    stopped = signal.SIGSTOP, signal.SIGCONT
    command.process.send_signal(stopped[0])
    raw = await Raw.open(start_late(), queue_name)
    await raw("SET", f"{{chasqui:{queue_name}}}:stream", "x")
    command.process.send_signal(stopped[1])
    assert await command.ended() == 1
    assert "must hold a stream, found a string" in command.err
    await raw.close()


async def test_a_value_that_is_no_wait_is_refused(bare_program):
    said = await bare_program("worker", "tasks:send", "--queue", "q", "--wait-for-server", "soon")
    assert said.code == 2
    assert "write 30s, 10m or forever" in said.err


async def test_a_worker_of_a_program_waits_too(start_late, port, queue_name):
    done = asyncio.Event()

    async def send(job) -> None:
        done.set()

    worker = Worker(queue_name, send, redis_url=f"redis://me:canary@127.0.0.1:{port}")
    working = asyncio.create_task(worker.run(wait_for_server_ms=math.inf))
    await asyncio.sleep(0.3)
    assert not worker.health().is_ok
    async with Queue(queue_name, redis_url=start_late()) as queue:
        await queue.add("send", 1)
    async with asyncio.timeout(20):
        await done.wait()
        await worker.close()
        await working


async def test_a_program_may_wait_by_itself(start_late, port, queue_name):
    url = f"redis://me:canary@127.0.0.1:{port}"
    with pytest.raises(ServerUnreachable, match=r"me:\*\*\*@"):
        await Upkeep(queue_name, redis_url=url).wait_for_server(100)
    start_late()
    assert await Upkeep(queue_name, redis_url=url).wait_for_server()
    with pytest.raises(ServerRefused):
        await Worker(queue_name, print, redis_url=url.replace("canary", "x")).wait_for_server()


async def test_a_closed_worker_waits_no_longer(queue_name):
    worker = Worker(queue_name, print, redis_url=NOBODY)
    waiting = asyncio.create_task(worker.wait_for_server())
    await asyncio.sleep(0.2)
    worker.request_stop()
    async with asyncio.timeout(2):
        assert await waiting is False
