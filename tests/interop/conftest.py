"""The original's own package in an environment of its own, on servers that it can run on."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.peer import ORIGINALS, PeerMissing
from support.servers import ServerKind, server_kinds

ORIGINAL_REDIS_MIN = (8, 6)


def suits_the_original(kind: ServerKind) -> bool:
    """Whether the server has every command that the original needs."""
    if kind.binary is None:
        return False
    said = subprocess.run([kind.binary, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"Redis server v=(\d+)\.(\d+)", said.stdout)
    return found is not None and tuple(map(int, found.groups())) >= ORIGINAL_REDIS_MIN


ORIGINAL_KINDS = [kind for kind in server_kinds() if suits_the_original(kind)]


@pytest.fixture(scope="session")
def original_python() -> Path:
    """The interpreter that has the original installed; made once and kept between runs."""
    try:
        return ORIGINALS[0].python(os.environ)
    except PeerMissing as missing:
        return pytest.fail(f"the original 1.3.0 must be there to compare with: it {missing}")


@pytest.fixture(autouse=True)
def path_of_their_own(monkeypatch):
    """A Spark session of this process leaves our sources in PYTHONPATH; theirs are not there."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="session", params=ORIGINAL_KINDS, ids=lambda kind: kind.label)
def shared_url(request) -> str:
    """A server for both; the original reaches it by TCP only."""
    with request.param.session(port=0) as session:
        yield session.url


def pytest_collection_modifyitems(config, items) -> None:
    """Without a server for the original there is nothing to say about it."""
    if ORIGINAL_KINDS:
        return
    left_out = [item for item in items if "shared_url" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
