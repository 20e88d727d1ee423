"""A project server writes into a directory of its own user alone, and follows no link out of it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chasquimq.cli.demo import report as demo_tables
from chasquimq.errors import SettingsError
from chasquimq.server import ProjectServer, find_server
from chasquimq.server.files import project_socket_path
from chasquimq.server.launch import LOG_BYTES_MAX
from chasquimq.server.probe import Address, identify

PRECIOUS = "somebody's work\n"
STRANGER = 12_345
# All files that the library itself opens there.
OWN_FILES = [".gitignore", "server.url", "server.log", "start.lock", "data.lock"]
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text(PRECIOUS)
    return path


@pytest.fixture
def data_dir(directory: Path) -> Path:
    path = directory / ".chasqui"
    path.mkdir(mode=0o700)
    return path


def refused(project: ProjectServer, binary: Path) -> str:
    """What is said; nothing may have been started."""
    with pytest.raises(SettingsError) as caught:
        project.start(binary)
    return str(caught.value)


@pytest.mark.parametrize("name", OWN_FILES)
@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_file_that_is_a_link_is_refused_and_what_it_leads_to_stays(
    project: ProjectServer, data_dir: Path, bundled: Path, precious: Path, name: str, kind: str
):
    link = data_dir / name
    link.symlink_to(precious) if kind == "link" else link.hardlink_to(precious)

    said = refused(project, bundled)

    assert said.startswith(f"the file {link} must be ")
    assert "remove it" in said
    assert (precious.read_text(), stat.S_IMODE(precious.stat().st_mode)) == (PRECIOUS, 0o644)
    link.unlink()


@pytest.mark.parametrize("name", OWN_FILES)
@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_refused_in_one_sentence(
    project: ProjectServer, data_dir: Path, bundled: Path, name: str, kind: str
):
    path = data_dir / name
    os.mkfifo(path) if kind == "pipe" else path.mkdir()

    assert refused(project, bundled).startswith(f"the file {path} must be a plain file")

    path.unlink() if kind == "pipe" else path.rmdir()


def test_a_log_that_cannot_be_put_aside_stops_no_server(
    project: ProjectServer, data_dir: Path, bundled: Path
):
    (data_dir / "server.log").write_text("x" * (LOG_BYTES_MAX + 1))
    (data_dir / "server.log.old").mkdir()

    assert project.start(bundled).is_ready


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_link_to_nowhere_creates_nothing(
    project: ProjectServer, data_dir: Path, bundled: Path, tmp_path: Path, name: str
):
    nowhere = tmp_path / "nowhere"
    (data_dir / name).symlink_to(nowhere)

    refused(project, bundled)

    assert not nowhere.exists()
    (data_dir / name).unlink()


@pytest.mark.parametrize("name", ["appendonlydir", "dump.rdb", "temp-1.aof"])
def test_a_link_that_the_server_program_would_follow_is_refused(
    project: ProjectServer, data_dir: Path, bundled: Path, tmp_path: Path, name: str
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (data_dir / name).symlink_to(elsewhere)

    assert str(data_dir / name) in refused(project, bundled)
    assert list(elsewhere.iterdir()) == []
    (data_dir / name).unlink()


def test_a_link_inside_the_append_only_directory_is_refused(
    project: ProjectServer, data_dir: Path, bundled: Path, precious: Path
):
    folder = data_dir / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.1.incr.aof").symlink_to(precious)

    assert "appendonly.aof.1.incr.aof" in refused(project, bundled)
    assert precious.read_text() == PRECIOUS


def test_a_data_directory_that_is_a_link_is_refused(
    project: ProjectServer, directory: Path, bundled: Path, tmp_path: Path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (directory / ".chasqui").symlink_to(elsewhere)

    assert refused(project, bundled).startswith(f"the directory {project.data_dir} must be ")
    assert list(elsewhere.iterdir()) == []
    (directory / ".chasqui").unlink()


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_data_directory_that_everybody_may_write_to_is_refused(
    project: ProjectServer, data_dir: Path, bundled: Path, mode: int
):
    data_dir.chmod(mode)

    said = refused(project, bundled)

    assert f"mode {mode & 0o777:04o}" in said
    assert list(data_dir.iterdir()) == []
    data_dir.chmod(0o700)


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_a_data_directory_that_was_made_with_a_usual_mask_is_taken(
    project: ProjectServer, data_dir: Path, bundled: Path, tmp_path: Path, mode: int
):
    data_dir.chmod(mode)
    (tmp_path / "large disk").mkdir()
    (data_dir / "lake").symlink_to(tmp_path / "large disk")

    assert project.start(bundled).is_ready


@NEEDS_ROOT
def test_a_data_directory_of_another_user_is_refused(
    project: ProjectServer, data_dir: Path, bundled: Path
):
    os.chown(data_dir, STRANGER, STRANGER)

    assert f"user {STRANGER}" in refused(project, bundled)
    assert list(data_dir.iterdir()) == []
    os.chown(data_dir, 0, 0)


@NEEDS_ROOT
@pytest.mark.parametrize("name", OWN_FILES)
def test_a_file_of_another_user_is_refused(
    project: ProjectServer, data_dir: Path, bundled: Path, name: str
):
    (data_dir / name).write_text(PRECIOUS)
    os.chown(data_dir / name, STRANGER, STRANGER)

    refused(project, bundled)

    assert (data_dir / name).read_text() == PRECIOUS
    (data_dir / name).unlink()


def test_nobody_looks_for_a_server_in_a_directory_that_is_not_safe(
    project: ProjectServer, data_dir: Path, directory: Path, environ: dict[str, str]
):
    (data_dir / "server.url").write_text("unix:///tmp/somebody.sock")
    data_dir.chmod(0o777)

    with pytest.raises(SettingsError, match="mode 0777"):
        project.status()
    with pytest.raises(SettingsError, match="mode 0777"):
        find_server(environ=environ, cwd=directory)
    data_dir.chmod(0o700)


def test_a_gitignore_of_ones_own_is_left_as_it_is(
    project: ProjectServer, data_dir: Path, bundled: Path
):
    (data_dir / ".gitignore").write_text("*.aof\n")

    project.start(bundled)

    assert (data_dir / ".gitignore").read_text() == "*.aof\n"


def test_what_the_library_writes_is_for_its_user_alone(project: ProjectServer, bundled: Path):
    project.start(bundled)

    assert stat.S_IMODE(project.data_dir.stat().st_mode) == 0o700
    modes = {name: stat.S_IMODE((project.data_dir / name).stat().st_mode) for name in OWN_FILES}
    assert modes == dict.fromkeys(OWN_FILES, 0o600)


LISTENER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
place = socket.socket(socket.AF_UNIX)
place.bind(sys.argv[1])
place.listen()
print("listening", flush=True)
link, _ = place.accept()
heard = link.recv(4096)
print(len(heard), flush=True)
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="all-", dir="/tmp") as path:
        Path(path).chmod(0o777)
        yield Path(path)


@NEEDS_ROOT
@pytest.mark.parametrize(("user", "is_heard"), [(STRANGER, False), (0, True)])
def test_nothing_is_said_to_a_socket_of_another_user(open_to_all: Path, user: int, is_heard: bool):
    path = open_to_all / "s.sock"
    command = [sys.executable, "-c", LISTENER, str(path), str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"

        assert identify(Address(socket_path=path), timeout_s=0.5) is None

        assert (int(listener.stdout.readline()) > 0) is is_heard


def test_a_runtime_directory_where_others_may_swap_files_is_passed_by(
    open_to_all: Path, directory: Path
):
    path = project_socket_path(directory, {"XDG_RUNTIME_DIR": str(open_to_all)})

    assert open_to_all not in path.parents
    assert list(open_to_all.iterdir()) == []


def test_a_demo_leaves_what_a_link_leads_to_alone(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "demo").mkdir(parents=True)
    (elsewhere / "demo" / "precious").write_text(PRECIOUS)
    (directory / ".chasqui").symlink_to(elsewhere)
    monkeypatch.chdir(directory)

    folder = demo_tables._fresh_folder()

    assert (elsewhere / "demo" / "precious").read_text() == PRECIOUS
    assert not (elsewhere / ".gitignore").exists()
    assert folder.resolve() not in (elsewhere / "demo", elsewhere)
    folder.rmdir()
