"""A session server is a whole server that leaves nothing behind."""

import os
import signal
from pathlib import Path

import pytest

from chasquimq.errors import ServerUnreachable, SettingsError
from chasquimq.server import SessionServer, launch
from server.talk import add_entries, call, comes_true, is_alive, start_python

OWNER = """
import sys, time
from chasquimq.server import SessionServer
server = SessionServer().start()
print(server.pid, server.data_dir.parent, flush=True)
sys.stdin.read()
"""

FORKING_OWNER = """
import os, sys, time
from chasquimq.server import SessionServer
server = SessionServer().start()
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
print(server.pid, child, flush=True)
sys.stdin.read()
"""

STOPPING_CHILD = """
import os
from chasquimq.server import SessionServer
from chasquimq.server.probe import identify
from chasquimq.server.probe import unix_address
with SessionServer() as server:
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    os.waitpid(child, 0)
    print(identify(unix_address(server.url)) is not None)
"""


def test_a_session_server_answers_on_a_unix_socket_by_default(binary: Path):
    with SessionServer(binary=binary) as server:
        assert server.url.startswith("unix:///")
        assert call(server.url, "PING") == "PONG"


def test_a_unix_socket_is_the_only_way_in_by_default(binary: Path):
    with SessionServer(binary=binary) as server:
        assert call(server.url, "CONFIG", "GET", "port") == ["port", "0"]


def test_port_zero_asks_for_a_free_loopback_port(binary: Path):
    with SessionServer(binary=binary, port=0) as one, SessionServer(binary=binary, port=0) as two:
        assert one.url.startswith("redis://127.0.0.1:")
        assert call(one.url, "PING") == call(two.url, "PING") == "PONG"
        assert one.url != two.url


def test_the_pid_is_the_servers_own(binary: Path):
    with SessionServer(binary=binary) as server:
        about = call(server.url, "INFO", "server")

        assert f"process_id:{server.pid}" in str(about)


def test_a_server_never_evicts_a_job(binary: Path):
    with SessionServer(binary=binary, args=("--maxmemory", "64mb")) as server:
        policy = call(server.url, "CONFIG", "GET", "maxmemory-policy")

        assert policy == ["maxmemory-policy", "noeviction"]


def test_a_restart_after_kill_9_keeps_address_and_entries(binary: Path):
    with SessionServer(binary=binary, aof="everysec", port=0) as server:
        url, first_pid = server.url, server.pid
        add_entries(url, 20_000)

        server.restart()

        assert server.url == url
        assert server.pid != first_pid
        assert call(url, "XLEN", "entries") == "20000"


def test_a_server_without_aof_forgets_when_it_is_restarted(bundled: Path):
    with SessionServer(binary=bundled) as server:
        call(server.url, "SET", "key", "value")

        server.restart()

        assert call(server.url, "GET", "key") is None


def test_stop_writes_the_data_of_a_directory_that_stays(bundled: Path, tmp_path: Path):
    with SessionServer(binary=bundled, aof="everysec", directory=tmp_path) as server:
        call(server.url, "SET", "key", "value")

    with SessionServer(binary=bundled, aof="everysec", directory=tmp_path) as server:
        assert call(server.url, "GET", "key") == "value"


def test_a_killed_server_is_gone_when_kill_returns(binary: Path):
    with SessionServer(binary=binary) as server:
        pid = server.pid

        server.kill()

        assert not is_alive(pid)
        assert not server.is_running


def test_a_frozen_server_can_be_stopped(bundled: Path):
    server = SessionServer(binary=bundled).start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)

    server.stop()

    assert not is_alive(pid)


def test_stop_leaves_no_file_behind(bundled: Path):
    server = SessionServer(binary=bundled).start()
    scratch = server.data_dir.parent

    server.stop()

    assert not scratch.exists()


def test_start_and_stop_may_be_called_twice(bundled: Path):
    server = SessionServer(binary=bundled).start()
    pid = server.pid

    assert server.start().pid == pid
    server.stop()
    server.stop()


def test_ctrl_c_in_the_owners_terminal_does_not_reach_the_server(bundled: Path):
    with SessionServer(binary=bundled) as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_session_server_dies_with_an_owner_that_was_killed():
    with start_python(OWNER, environ=os.environ) as owner:
        assert owner.stdout is not None
        pid, scratch = owner.stdout.readline().split()
        assert is_alive(int(pid))

        owner.kill()

        assert comes_true(lambda: not is_alive(int(pid)))
        assert comes_true(lambda: not Path(scratch).exists())


def test_a_forked_child_does_not_keep_the_server_alive():
    with start_python(FORKING_OWNER, environ=os.environ) as owner:
        assert owner.stdout is not None
        pid, child = map(int, owner.stdout.readline().split())

        owner.kill()

        assert comes_true(lambda: not is_alive(pid))
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_cannot_stop_the_server():
    with start_python(STOPPING_CHILD, environ=os.environ) as owner:
        answer, _ = owner.communicate(timeout=30)

    assert answer == "True\n"


def test_two_servers_cannot_share_a_data_directory(
    bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launch, "FORMER_SERVER_WAIT_S", 0.05)

    with (
        SessionServer(binary=bundled, directory=tmp_path),
        pytest.raises(ServerUnreachable, match="another one holds it"),
    ):
        SessionServer(binary=bundled, directory=tmp_path).start()


def test_a_server_that_refuses_its_arguments_is_quoted(binary: Path):
    with pytest.raises(ServerUnreachable, match=r"the last line of its log: .*(wrong|aborting)"):
        SessionServer(binary=binary, args=("--no-such-option", "1")).start()


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(ServerUnreachable, match=r"/no/such/server.*not found"):
        SessionServer(binary="/no/such/server").start()


def test_a_taken_port_is_a_sentence(bundled: Path):
    with SessionServer(binary=bundled, port=0) as server:
        taken = int(server.url.rpartition(":")[2])

        with pytest.raises(ServerUnreachable, match="ended while starting"):
            SessionServer(binary=bundled, port=taken).start()


def test_an_unknown_aof_mode_is_refused(bundled: Path):
    with pytest.raises(SettingsError, match="aof must be"):
        SessionServer(binary=bundled, aof="sometimes").start()  # pyright: ignore[reportArgumentType]


def test_a_server_that_was_not_started_says_so():
    with pytest.raises(ServerUnreachable, match="call start"):
        _ = SessionServer().url
    with pytest.raises(ServerUnreachable, match="call start"):
        _ = SessionServer().pid
