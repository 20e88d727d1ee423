"""A project has one server, however many start it, and it keeps what it was told."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from chasquimq.errors import ServerUnreachable, SettingsError
from chasquimq.server import ProjectServer, launch
from chasquimq.server.probe import free_port
from server.talk import add_entries, call, comes_true, is_alive, start_python

STARTER = """
import json, sys, time
from pathlib import Path
from chasquimq.server import ProjectServer
project = ProjectServer(sys.argv[1])
sys.stdin.readline()
status = project.start(Path(sys.argv[2]))
print(json.dumps([status.pid, status.url]), flush=True)
"""


def start_elsewhere(directory: Path, binary: Path, environ: dict[str, str]) -> int:
    """Start the project's server from a process that is gone when this returns."""
    with start_python(STARTER, str(directory), str(binary), environ=environ) as starter:
        answer, _ = starter.communicate("go\n", timeout=30)
    return json.loads(answer)[0]


def test_eight_racing_starters_start_one_server(
    project: ProjectServer, directory: Path, binary: Path, environ: dict[str, str]
):
    racers = [start_python(STARTER, str(directory), str(binary), environ=environ) for _ in range(8)]

    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = {racer.communicate(timeout=30)[0] for racer in racers}

    assert len(answers) == 1
    status = project.status()
    assert status is not None
    assert json.loads(answers.pop()) == [status.pid, status.url]


def test_a_running_server_is_reused_at_once(project: ProjectServer, bundled: Path):
    first = project.start(bundled)

    lasted_s = []
    for _ in range(10):
        began_s = time.perf_counter()
        assert project.start(bundled).pid == first.pid
        lasted_s.append(time.perf_counter() - began_s)

    assert min(lasted_s) < 0.1


def test_the_server_outlives_whoever_started_it(
    project: ProjectServer, directory: Path, binary: Path, environ: dict[str, str]
):
    pid = start_elsewhere(directory, binary, environ)

    status = project.status()
    assert status is not None
    assert status.pid == pid


def test_a_server_killed_with_9_comes_back_with_every_entry(project: ProjectServer, binary: Path):
    first = project.start(binary)
    add_entries(first.url, 20_000)

    os.kill(first.pid, signal.SIGKILL)
    assert comes_true(lambda: not is_alive(first.pid))
    second = project.start(binary)

    assert second.pid != first.pid
    assert call(second.url, "XLEN", "entries") == "20000"


def test_a_stopped_server_comes_back_with_its_data(project: ProjectServer, binary: Path):
    call(project.start(binary).url, "SET", "key", "value")

    assert project.stop()

    assert call(project.start(binary).url, "GET", "key") == "value"


def test_a_stopped_server_is_gone_when_stop_returns(project: ProjectServer, bundled: Path):
    pid = project.start(bundled).pid

    project.stop()

    assert project.status() is None
    assert comes_true(lambda: not is_alive(pid))


def test_stop_says_when_there_was_nothing_to_stop(project: ProjectServer):
    assert not project.stop()


def test_the_server_keeps_an_append_only_file_and_evicts_nothing(
    project: ProjectServer, binary: Path
):
    url = project.start(binary).url

    assert call(url, "CONFIG", "GET", "appendonly") == ["appendonly", "yes"]
    assert call(url, "CONFIG", "GET", "appendfsync") == ["appendfsync", "everysec"]
    assert call(url, "CONFIG", "GET", "maxmemory-policy") == ["maxmemory-policy", "noeviction"]


def test_nothing_listens_on_tcp_unless_it_was_asked_for(project: ProjectServer, bundled: Path):
    assert project.start(bundled).port == 0


def test_a_port_that_was_asked_for_is_on_loopback_only(project: ProjectServer, bundled: Path):
    port = free_port()

    status = project.start(bundled, port=port)

    assert status.port == port
    assert call(f"redis://127.0.0.1:{port}", "CONFIG", "GET", "bind") == ["bind", "127.0.0.1"]


def test_another_port_than_the_running_servers_is_refused(project: ProjectServer, bundled: Path):
    project.start(bundled)

    with pytest.raises(SettingsError, match="port must be that of the running server"):
        project.start(bundled, port=free_port())


def test_the_data_is_private_and_out_of_every_repository(
    project: ProjectServer, directory: Path, bundled: Path
):
    project.start(bundled)

    subprocess.run(["git", "init", "-q", str(directory)], check=True)
    status = subprocess.run(
        ["git", "-C", str(directory), "status", "--porcelain"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert status.stdout == ""
    assert project.data_dir.stat().st_mode & 0o777 == 0o700


def test_a_copied_project_does_not_take_the_servers_of_the_first_for_its_own(
    project: ProjectServer, directory: Path, bundled: Path, environ: dict[str, str], tmp_path: Path
):
    project.start(bundled)

    shutil.copytree(directory, tmp_path / "copy")

    assert ProjectServer(tmp_path / "copy", environ=environ).status() is None


def test_a_moved_project_finds_its_running_server(
    directory: Path, bundled: Path, environ: dict[str, str], tmp_path: Path
):
    pid = ProjectServer(directory, environ=environ).start(bundled).pid

    moved = ProjectServer(directory.rename(tmp_path / "moved"), environ=environ)

    status = moved.status()
    assert status is not None
    assert status.pid == pid
    assert moved.stop()


def test_another_login_with_another_runtime_directory_finds_the_same_server(
    project: ProjectServer, directory: Path, bundled: Path
):
    pid = project.start(bundled).pid

    other = ProjectServer(directory, environ={})

    assert other.start(bundled).pid == pid


def test_a_second_server_on_the_same_directory_is_refused(
    project: ProjectServer, bundled: Path, monkeypatch: pytest.MonkeyPatch
):
    project.start(bundled)
    url_path = project.data_dir / "server.url"
    url = url_path.read_text()
    monkeypatch.setattr(launch, "FORMER_SERVER_WAIT_S", 0.05)

    url_path.unlink()
    with pytest.raises(ServerUnreachable, match="another one holds it"):
        project.start(bundled)

    url_path.write_text(url)


def test_a_directory_that_cannot_be_written_is_a_sentence(
    directory: Path, bundled: Path, environ: dict[str, str]
):
    (directory / ".chasqui").write_text("a file is in the way")

    with pytest.raises(ServerUnreachable, match="cannot be written"):
        ProjectServer(directory, environ=environ).start(bundled)


def test_a_path_with_spaces_quotes_and_accents_is_a_path(
    tmp_path: Path, binary: Path, environ: dict[str, str]
):
    odd = tmp_path / "mi 'año' \"nuevo\""
    odd.mkdir()
    project = ProjectServer(odd, environ=environ)

    status = project.start(binary)

    assert Path(status.data_dir) == odd / ".chasqui"
    assert project.stop()
