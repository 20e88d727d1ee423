"""A project's socket lives where nobody else can reach it, under a name the system accepts."""

import os
from pathlib import Path

import pytest

from chasquimq.errors import SettingsError
from chasquimq.server.files import SOCKET_PATH_BYTES_MAX, ensure_private, project_socket_path


def test_the_socket_is_in_a_private_directory(directory: Path, environ: dict[str, str]):
    path = project_socket_path(directory, environ)

    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.is_relative_to(environ["XDG_RUNTIME_DIR"])


def test_two_projects_have_two_sockets(tmp_path: Path, environ: dict[str, str]):
    paths = {project_socket_path(tmp_path / name, environ) for name in ("one", "two")}

    assert len(paths) == 2


def test_a_project_has_the_same_socket_through_a_link(
    tmp_path: Path, directory: Path, environ: dict[str, str]
):
    (tmp_path / "link").symlink_to(directory)

    through_link = project_socket_path(tmp_path / "link", environ)

    assert through_link == project_socket_path(directory, environ)


@pytest.mark.parametrize(
    "runtime_dir",
    ["", "relative/path", "/no/such/directory", "long"],
    ids=["unset", "relative", "missing", "too long"],
)
def test_without_a_usable_runtime_directory_the_socket_is_under_tmp(
    directory: Path, tmp_path: Path, runtime_dir: str
):
    long = tmp_path / ("x" * 100)
    long.mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(long) if runtime_dir == "long" else runtime_dir}

    path = project_socket_path(directory, environ)

    assert path.parent == Path(f"/tmp/chasqui-{os.getuid()}")
    assert len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


def test_a_directory_others_may_enter_is_refused_with_a_remedy(tmp_path: Path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)

    with pytest.raises(SettingsError) as refused:
        ensure_private(tmp_path / "open")

    assert "with mode 0755" in str(refused.value)
    assert "remove it, or set XDG_RUNTIME_DIR" in str(refused.value)


def test_a_link_to_a_private_directory_is_refused(tmp_path: Path):
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")

    with pytest.raises(SettingsError, match="file or link"):
        ensure_private(tmp_path / "link")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65_534, 65_534)

    with pytest.raises(SettingsError, match="of user 65534"):
        ensure_private(tmp_path / "theirs")
