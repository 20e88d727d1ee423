"""A peer runs in an environment of its own, or is missing for a reason that can be read."""

import subprocess

import pytest

from benchmarks.peer import ORIGINALS, PeerMissing
from benchmarks.server import Target

ORIGINAL = ORIGINALS[0]


def target(kind: str, version: str) -> Target:
    return Target(url="redis://localhost", kind=kind, version=version, is_private=True)


@pytest.mark.parametrize(
    ("kind", "version"), [("valkey", "9.1.2"), ("redis", "7.2.4"), ("redis", "8.4.0")]
)
def test_the_original_needs_a_server_it_can_run_on(kind, version, tmp_path):
    with pytest.raises(PeerMissing, match=r"needs Redis 8\.6 or newer, this is .* \d"):
        ORIGINAL.command(target(kind, version), {"XDG_CACHE_HOME": str(tmp_path)})


def test_a_ready_environment_is_used_again(tmp_path):
    home = tmp_path / "chasqui" / "bench" / "chasquimq-1.3.0"
    home.mkdir(parents=True)
    (home / "ready").touch()

    python, *rest = ORIGINAL.command(target("redis", "8.6.2"), {"XDG_CACHE_HOME": str(tmp_path)})

    assert python == str(home / "bin" / "python")
    assert rest[0] == "-I"


def test_a_failed_installation_gives_its_last_word_and_no_stamp(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "trying\nERROR: no such package\n")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: failed)

    with pytest.raises(PeerMissing, match="could not be installed: ERROR: no such package"):
        ORIGINAL.command(target("redis", "8.6.2"), {"XDG_CACHE_HOME": str(tmp_path)})

    assert not list(tmp_path.rglob("ready"))
