"""What an add does about each error a server can answer, on a server that says just that."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Queue
from chasquimq.errors import ServerOutOfMemory, ServerRefused
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.upkeep import UpkeepStore
from store.fake_server import ENTRY_ID, NEW, OK, OLD, FakeServer

MARKS = b"*1\r\n:1\r\n"

WAITED_OUT = {
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "BUSY": "BUSY Redis is busy running a script",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "ASK": "ASK 3999 127.0.0.1:6381",
}
REDIALLED = {
    "READONLY": "READONLY You can't write against a read only replica.",
    "MOVED": "MOVED 3999 127.0.0.1:6381",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down",
    "in an old script": (
        "ERR Error running script (call to f_9fce): @user_script:1: @user_script: 1: "
        "-READONLY You can't write against a read only replica."
    ),
    "NOAUTH": "NOAUTH Authentication required.",
}
TOLD = {
    "MISCONF": "MISCONF Errors writing to the AOF file: No space left on device",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOPERM": "NOPERM No permissions to access a channel",
    "ERR": "ERR something nobody has seen before",
}


def error(text: str) -> bytes:
    return b"-%b\r\n" % text.encode()


@pytest.fixture(params=["native", "script"])
def server_that(request):
    """A server whose first add fails with an error, and whose next one works."""

    def make(text: str) -> FakeServer:
        if request.param == "script":
            return FakeServer(OLD | {"EVALSHA": (error(text), MARKS), "EVAL": MARKS})
        return FakeServer(NEW | {"XADD": (error(text), ENTRY_ID)})

    return make


async def add(server: FakeServer, queue_name: str) -> None:
    async with Queue(queue_name, redis_url=server.url) as queue:
        await asyncio.wait_for(queue.add("n", 1), 10)


@pytest.mark.parametrize("text", WAITED_OUT.values(), ids=WAITED_OUT)
async def test_a_server_busy_with_itself_is_asked_again_on_the_same_connection(
    server_that, queue_name, text
):
    async with server_that(text) as server:
        await add(server, queue_name)

        assert server.accept_count == 1


@pytest.mark.parametrize("text", REDIALLED.values(), ids=REDIALLED)
async def test_a_server_that_is_the_wrong_one_is_dialled_anew(server_that, queue_name, text):
    async with server_that(text) as server:
        await add(server, queue_name)

        assert server.accept_count == 2


@pytest.mark.parametrize(("code", "text"), TOLD.items(), ids=TOLD)
async def test_what_asking_again_will_not_heal_is_told_at_once(server_that, queue_name, code, text):
    async with server_that(text) as server:
        with pytest.raises(ServerRefused, match=text.split()[-1]) as caught:
            await add(server, queue_name)

        assert caught.value.code == code
        assert len(caught.value.job_ids) == 1
        assert server.accept_count == 1


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "ERR Error running script: @user_script: -OOM command not allowed when used memory",
    ],
    ids=["plain", "in an old script"],
)
async def test_a_server_without_memory_is_an_error_of_its_own(server_that, queue_name, text):
    async with server_that(text) as server:
        with pytest.raises(ServerOutOfMemory, match="the server must have memory") as caught:
            await add(server, queue_name)

        assert len(caught.value.job_ids) == 1


async def test_a_forgotten_script_is_sent_with_its_text(queue_name):
    noscript = error("NOSCRIPT No matching script. Please use EVAL.")
    async with FakeServer(OLD | {"EVALSHA": noscript, "EVAL": MARKS}) as server:
        await add(server, queue_name)

        assert (server.count("EVALSHA"), server.count("EVAL")) == (1, 1)


async def test_an_error_that_never_ends_is_told_when_patience_ends(queue_name):
    async with FakeServer(OLD | {"EVALSHA": error(WAITED_OUT["LOADING"])}) as server:
        async with Queue(queue_name, redis_url=server.url, add_timeout_ms=600) as queue:
            with pytest.raises(ServerRefused, match="LOADING"):
                await asyncio.wait_for(queue.add("n", 1), 10)

        # One each 50 ms, the first and the last included.
        assert 2 <= server.count("EVALSHA") <= 14


@pytest.mark.parametrize(
    "text", [*WAITED_OUT.values(), *REDIALLED.values()], ids=[*WAITED_OUT, *REDIALLED]
)
async def test_a_probe_that_meets_trouble_finds_no_ability_missing(queue_name, text):
    answers = {
        name: (error(text), *([given] if isinstance(given, bytes) else given))
        for name, given in NEW.items()
        if name in ("XACKDEL", "XREADGROUP", "XCFGSET")
    }
    async with FakeServer(NEW | answers) as server:
        async with Queue(queue_name, redis_url=server.url) as queue:
            with pytest.raises(ServerRefused, match=text.split("-")[-1].split()[0]):
                await asyncio.wait_for(queue.add("n", 1), 5)

            await asyncio.wait_for(added_again(queue), 5)

        assert server.count("EVALSHA") == 0


async def added_again(queue):
    """A refused login is told again until the next dial is due."""
    while True:
        try:
            return await queue.add("n", 1)
        except ServerRefused as refused:
            if refused.code != "NOAUTH":
                raise
            await asyncio.sleep(0.01)


async def test_an_answer_that_nobody_understands_ends_its_own_add_only(queue_name):
    nonsense = b"*1\r\n:7\r\n"
    answers = OLD | {"EVALSHA": (MARKS, nonsense, MARKS), "EVAL": MARKS}
    async with FakeServer(answers) as server, Queue(queue_name, redis_url=server.url) as queue:
        await queue.add("n", 1)

        with pytest.raises(ValueError, match="7"):
            await asyncio.wait_for(queue.add("n", 2), 10)

        await asyncio.wait_for(queue.add("n", 3), 10)
        assert server.accept_count == 1


@pytest.mark.parametrize("text", REDIALLED.values(), ids=REDIALLED)
async def test_a_promoter_whose_bell_is_on_the_wrong_server_dials_anew(queue_name, text):
    rung = b"*2\r\n$4\r\nbell\r\n$1\r\n1\r\n"
    async with FakeServer({"CLIENT": OK, "BLPOP": (error(text), rung)}) as server:
        bell = ReconnectingConnection(ConnectionSettings(url=server.url))
        store = UpkeepStore(queue_name, bell, bell=bell)
        with pytest.raises(ServerRefused):
            await (await store.listen(1_000))

        assert await (await store.listen(1_000))
        assert server.accept_count == 2
        await store.close()
