"""Which server is dialled where no URL was given: variable, project, default; and why is said."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

import chasquimq
from chasquimq import blocking
from chasquimq.errors import ServerUnreachable, SettingsError
from chasquimq.queue.inspector import Inspector
from chasquimq.server import ProjectServer, finder
from chasquimq.server.finder import resolve_server
from chasquimq.server.launch import bundled_binary
from chasquimq.store.net import address

SOURCE = Path(__file__).parents[2] / "src"
NOBODY = "redis://127.0.0.1:1"
STRANGER = 12_345
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch, tmp_path):
    """An empty directory, no variable, and nobody at the default address."""
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as runtime_dir:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime_dir)
        for name in ("CHASQUI_REDIS_URL", "REDIS_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(finder, "DEFAULT_URL", f"redis://127.0.0.1:{free_port()}")
        monkeypatch.setattr(address, "_logged", set())
        monkeypatch.chdir(tmp_path)
        yield


@pytest.fixture
def project(tmp_path):
    server = ProjectServer(tmp_path)
    yield server
    if server.data_dir.exists():
        server.data_dir.chmod(0o700)
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def started(project: ProjectServer) -> str:
    binary = bundled_binary()
    assert binary is not None
    return project.start(binary).url


async def add(name: str) -> None:
    async with chasquimq.Queue(name) as queue:
        await queue.add("job", 1)


async def add_without_a_loop(name: str) -> None:
    def call():
        with blocking.Queue(name) as queue:
            queue.add("job", 1)

    await asyncio.to_thread(call)


async def work(name: str) -> None:
    await chasquimq.Worker(name, take).run_until_idle()


async def wait_to_work(name: str) -> None:
    await chasquimq.Worker(name, take).wait_for_server(1_000)


async def wait_to_keep_up(name: str) -> None:
    await chasquimq.Upkeep(name).wait_for_server(1_000)


async def follow(name: str) -> None:
    async with chasquimq.QueueEvents(name, last_event_id="0", block_ms=1) as events:
        await events._fill()


async def follow_many(name: str) -> None:
    async with chasquimq.QueueEvents([name, "other"], last_event_id="0", block_ms=1) as events:
        await events._fill()


async def inspect(name: str) -> None:
    async with Inspector() as inspector:
        await inspector.snapshot(name)


async def add_bytes(name: str) -> None:
    producer = chasquimq.Producer(None, name)
    await producer.add(b"")
    await producer.shutdown()


async def take_bytes(name: str) -> None:
    consumer = chasquimq.Consumer(None, name)
    running = asyncio.ensure_future(consumer.run(take))
    await asyncio.sleep(0)
    consumer.shutdown()
    await running


async def take(job) -> None: ...


async def fire(name: str) -> None:
    scheduler = chasquimq.Scheduler(None, name)
    running = asyncio.ensure_future(scheduler.run())
    await asyncio.sleep(0)
    scheduler.shutdown()
    await running


NOUNS = [
    add, add_without_a_loop, work, wait_to_work, wait_to_keep_up, follow, follow_many, inspect,
    add_bytes, take_bytes, fire,
]  # fmt: skip


@pytest.mark.parametrize("use", NOUNS, ids=lambda use: use.__name__)
async def test_every_noun_dials_the_server_of_the_variable(use, url, queue_name, monkeypatch):
    monkeypatch.setenv("CHASQUI_REDIS_URL", url)

    await use(queue_name)


@pytest.mark.parametrize("use", NOUNS, ids=lambda use: use.__name__)
async def test_every_noun_says_which_server_it_was_and_why(use, queue_name, monkeypatch):
    monkeypatch.setenv("CHASQUI_REDIS_URL", "redis://me:canary@127.0.0.1:1")

    with pytest.raises(ServerUnreachable) as caught:
        await use(queue_name)

    said = str(caught.value)
    assert "redis://me:***@127.0.0.1:1 (CHASQUI_REDIS_URL is set), found none" in said
    assert "start it, or correct CHASQUI_REDIS_URL" in said
    assert "canary" not in said


async def test_the_variables_have_an_order_and_an_empty_one_is_not_set(
    url, queue_name, monkeypatch
):
    monkeypatch.setenv("CHASQUI_REDIS_URL", url)
    monkeypatch.setenv("REDIS_URL", NOBODY)
    await add(queue_name)

    monkeypatch.setenv("CHASQUI_REDIS_URL", " ")
    with pytest.raises(ServerUnreachable, match="REDIS_URL is set"):
        await add(queue_name)

    monkeypatch.setenv("REDIS_URL", url)
    await add(queue_name)


async def test_an_argument_comes_before_every_variable(url, queue_name, monkeypatch):
    monkeypatch.setenv("CHASQUI_REDIS_URL", NOBODY)

    async with chasquimq.Queue(queue_name, redis_url=url) as queue:
        await queue.add("job", 1)


@pytest.mark.parametrize("noun", [chasquimq.Queue, chasquimq.Upkeep, chasquimq.QueueEvents])
def test_an_empty_argument_is_refused(noun):
    with pytest.raises(SettingsError, match="redis_url must be"):
        noun("q", redis_url="")


async def test_the_server_of_the_project_is_found(project, queue_name):
    url = started(project)

    await add(queue_name)

    async with chasquimq.Queue(queue_name, redis_url=url) as queue:
        assert (await queue.counts()).ready == 1


async def test_without_any_server_the_default_address_is_dialled_and_says_so(tmp_path):
    with pytest.raises(ServerUnreachable) as caught:
        await add("q")

    assert str(caught.value).startswith(
        f"a server must answer at {finder.DEFAULT_URL} (no server was named: CHASQUI_REDIS_URL and "
        f"REDIS_URL are not set, and no project server runs for {tmp_path}), found none ("
    )
    assert str(caught.value).endswith(
        "; set CHASQUI_REDIS_URL or pass redis_url, or start one here with `chasqui server start`"
    )
    assert not (tmp_path / ".chasqui").exists()


async def test_a_server_at_the_default_address_is_used(url, queue_name, monkeypatch):
    monkeypatch.setattr(finder, "DEFAULT_URL", url)

    await add(queue_name)


def test_the_default_address_is_that_of_the_original():
    program = "from chasquimq.server.finder import DEFAULT_URL; print(DEFAULT_URL)"

    assert say(program) == "redis://127.0.0.1:6379"


async def test_the_default_address_by_name_is_a_name_like_any_other(monkeypatch):
    monkeypatch.setenv("CHASQUI_REDIS_URL", "redis://127.0.0.1:2")
    worker = chasquimq.Worker("q", take, redis_url=NOBODY)

    with pytest.raises(SettingsError, match="which this Worker names"):
        worker.use_server("redis://127.0.0.1:2")
    with pytest.raises(ServerUnreachable, match=r"at redis://127.0.0.1:1, found none"):
        await worker.run()
    assert worker.named_url == NOBODY


async def test_a_worker_that_names_no_server_takes_the_one_it_is_told(url, queue_name, monkeypatch):
    monkeypatch.setenv("CHASQUI_REDIS_URL", NOBODY)
    worker = chasquimq.Worker(queue_name, take)
    worker.use_server(NOBODY)
    worker.use_server(url)

    await worker.run_until_idle()

    assert worker.named_url is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("ftp://me:canary@host", "CHASQUI_REDIS_URL must be redis://"),
        ("redis://host:canary", "CHASQUI_REDIS_URL must be a URL whose port is a number"),
        ("rediss://h?ssl_cert_reqs=none", "CHASQUI_REDIS_URL must be a URL without ssl_cert_reqs"),
        ("rediss://h?ssl_ca_certs=/no/such", "CHASQUI_REDIS_URL must be a URL whose ssl_ca_certs"),
        ("redis+sentinel://h:1", "CHASQUI_REDIS_URL must be redis+sentinel://"),
        ("redis://h?nonsense=canary", "CHASQUI_REDIS_URL must be a URL whose options"),
    ],
)
@pytest.mark.parametrize("use", [add, add_without_a_loop, work, follow_many, inspect])
async def test_a_value_that_can_never_work_is_refused_by_the_name_of_its_variable(
    value, words, use, monkeypatch
):
    monkeypatch.setenv("CHASQUI_REDIS_URL", value)

    with pytest.raises(SettingsError) as caught:
        await use("q")

    assert str(caught.value).startswith(words)
    assert caught.value.name == "CHASQUI_REDIS_URL"
    if "nonsense" not in value:
        assert "canary" not in str(caught.value)


def test_making_a_noun_looks_at_nothing(monkeypatch):
    monkeypatch.setenv("CHASQUI_REDIS_URL", "ftp://nonsense")

    chasquimq.Queue("q")
    chasquimq.Worker("q", take)
    chasquimq.Upkeep("q")
    blocking.Queue("q")
    assert chasquimq.QueueEvents(["q", "r"], last_event_id="0-1").name == "q"


async def test_the_first_use_counts_not_the_making(url, queue_name, monkeypatch):
    queue = chasquimq.Queue(queue_name)
    monkeypatch.setenv("CHASQUI_REDIS_URL", url)

    await queue.add("job", 1)
    monkeypatch.setenv("CHASQUI_REDIS_URL", NOBODY)
    await queue.add("job", 2)

    assert (await queue.counts()).ready == 2
    await queue.close()


def test_another_event_loop_looks_for_itself(url, queue_name, monkeypatch):
    queue = chasquimq.Queue(queue_name)
    monkeypatch.setenv("CHASQUI_REDIS_URL", NOBODY)
    with pytest.raises(ServerUnreachable):
        asyncio.run(queue.add("job", 1))

    monkeypatch.setenv("CHASQUI_REDIS_URL", url)
    asyncio.run(queue.add("job", 1))


async def test_a_server_that_is_started_later_is_found_by_the_same_queue(project, queue_name):
    async with chasquimq.Queue(queue_name) as queue:
        with pytest.raises(ServerUnreachable):
            await queue.add("job", 1)

        url = started(project)
        await queue.add("job", 2)

    async with chasquimq.Queue(queue_name, redis_url=url) as queue:
        assert (await queue.counts()).ready == 1


async def test_a_worker_that_waits_finds_a_server_that_is_started_later(project, queue_name):
    worker = chasquimq.Worker(queue_name, take)
    waiting = asyncio.ensure_future(worker.wait_for_server(30_000))
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done

    await asyncio.to_thread(started, project)

    assert await waiting
    await worker.run_until_idle()


async def test_a_server_that_was_reached_is_kept(url, project, queue_name, monkeypatch):
    monkeypatch.setattr(finder, "DEFAULT_URL", url)
    async with chasquimq.Queue(queue_name) as queue:
        await queue.add("job", 1)
        await asyncio.to_thread(started, project)

        await queue.add("job", 2, durability="server")
        (connection,) = {id(store.connection) for store in queue._connections.all_stores()}
        await queue._store().connection.hang_up()
        await queue.add("job", 3)

        assert connection
        assert (await queue.counts()).ready == 3


async def test_the_answer_is_logged_once_and_without_the_password(
    url, queue_name, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "chasquimq")
    monkeypatch.setenv("CHASQUI_REDIS_URL", "redis://me:canary@127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(ServerUnreachable):
            await add(queue_name)
    monkeypatch.setenv("CHASQUI_REDIS_URL", "")
    monkeypatch.setenv("REDIS_URL", url)
    await add(queue_name)
    await work(queue_name)

    told = [one.getMessage() for one in caplog.records if "the server is" in one.getMessage()]
    assert told == [
        "the server is redis://me:***@127.0.0.1:1: CHASQUI_REDIS_URL is set",
        f"the server is {url}: REDIS_URL is set",
    ]


WORKER_PROGRAM = """
import asyncio, logging, sys
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
from chasquimq import Worker
async def take(job): ...
asyncio.run(Worker(sys.argv[1], take).run_until_idle())
"""


@pytest.mark.parametrize("source", ["CHASQUI_REDIS_URL", "REDIS_URL", "project"])
def test_a_worker_in_a_program_of_its_own_needs_no_url(source, url, project, queue_name):
    if source == "project":
        url, environ, why = started(project), {}, "it serves this project"
    else:
        environ, why = {source: url}, f"{source} is set"

    said = say(WORKER_PROGRAM, queue_name, **environ)

    assert f"consuming queue {queue_name} of {url} ({why}" in said
    assert f"of queue {queue_name} ended after" in said


def test_a_worker_in_a_program_of_its_own_says_that_no_server_is_there(queue_name):
    program = f"""
from chasquimq.server import finder
finder.DEFAULT_URL = {NOBODY!r}
from chasquimq.errors import ServerUnreachable
try:
    exec({WORKER_PROGRAM!r})
except ServerUnreachable as error:
    print(error)
"""

    said = say(program, queue_name)

    assert f"\na server must answer at {NOBODY} (no server was named: " in said
    assert "consuming" not in said


async def test_a_server_that_was_given_is_not_logged(url, queue_name, caplog):
    caplog.set_level(logging.INFO, "chasquimq")

    async with chasquimq.Queue(queue_name, redis_url=url) as queue:
        await queue.add("job", 1)

    assert "the server is" not in caplog.text


def test_a_forked_child_finds_the_server_of_its_parent(url, queue_name):
    program = """
import os, sys
from chasquimq.blocking import Queue
queue = Queue(sys.argv[1])
queue.add("job", 1)
child = os.fork()
queue.add("job", 2)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(queue.counts().ready)
"""
    assert say(program, queue_name, CHASQUI_REDIS_URL=url) == "3"


def test_a_directory_that_is_gone_has_no_server(tmp_path, monkeypatch):
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()

    found = resolve_server()

    assert found.url == finder.DEFAULT_URL
    assert "the current directory, which is gone" in found.reason


async def test_a_project_directory_that_everybody_may_write_to_leads_nowhere(project, url):
    project.data_dir.mkdir()
    project.data_dir.chmod(0o777)
    (project.data_dir / "server.url").write_text("unix:///tmp/somebody.sock")

    for use in NOUNS:
        with pytest.raises(SettingsError, match="mode 0777"):
            await use("q")


@NEEDS_ROOT
async def test_a_project_directory_of_another_user_leads_nowhere(project):
    project.data_dir.mkdir()
    (project.data_dir / "server.url").write_text("unix:///tmp/somebody.sock")
    os.chown(project.data_dir, STRANGER, STRANGER)

    for use in NOUNS:
        with pytest.raises(SettingsError, match=f"of user {STRANGER}"):
            await use("q")
    os.chown(project.data_dir, 0, 0)


HELPER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
place = socket.socket(socket.AF_UNIX)
place.bind(sys.argv[1])
place.listen()
print("listening", flush=True)
heard = b""
while True:
    link, _ = place.accept()
    try:
        while got := link.recv(4096):
            heard += got
            link.sendall(b"+OK\\r\\n" * got.count(b"*"))
    except OSError:
        pass
    print(b"canary" in heard, flush=True)
"""


@NEEDS_ROOT
@pytest.mark.parametrize("use", ["loop", "no loop"])
async def test_another_user_who_takes_the_place_of_the_projects_server_gets_no_job(
    project, queue_name, monkeypatch, use
):
    """The server was found and is gone; its socket is that of a stranger by the next dial."""
    found = resolve_server_of(started(project))
    monkeypatch.setattr(finder, "resolve_server", lambda: found)
    path = Path(found.url.removeprefix("unix://"))
    project.stop()

    with stranger_at(path) as listener:
        with pytest.raises(ServerUnreachable, match=f"found user {STRANGER}"):
            await dial_and_say_canary(use, queue_name)

        assert listener.readline() == "False\n"


@contextmanager
def stranger_at(path):
    """Another user who got at the socket of the server, and says what was heard."""
    folders = path.parent, path.parent.parent
    for folder in folders:
        folder.chmod(0o777)
    command = [sys.executable, "-c", HELPER, str(path), str(STRANGER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        try:
            yield listener.stdout
        finally:
            listener.kill()
    for folder in folders:
        folder.chmod(0o700)


async def dial_and_say_canary(use: str, queue_name: str) -> None:
    if use == "loop":
        async with chasquimq.Queue(queue_name) as queue:
            await queue.add("canary", 1)
        return
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.blocking import BlockingConnection

    connection = BlockingConnection(ConnectionSettings())
    await asyncio.to_thread(connection.call, "GET", "canary")


def resolve_server_of(url: str) -> finder.Found:
    found = resolve_server()
    assert (found.url, found.is_project) == (url, True)
    return found


def say(program: str, *words: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=os.environ | {"PYTHONPATH": str(SOURCE)} | environ,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
