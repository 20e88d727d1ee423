"""Set-up installs the pinned files and nothing else; one sentence says what it refused."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from supply.pins import ROOT

HARMLESS = "def answer():\n    return 42\n"
HARMFUL = "import os\nos.abort()\n"
HEAD = "--only-binary :all:\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose only dependency is a tiny package in a directory of wheels."""
    checkout = tmp_path / "checkout"
    (checkout / "requirements").mkdir(parents=True)
    for part in ("chasqui", "tools", "src", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, checkout / part)
    for name in ("core.txt", "worker.txt", "run.txt"):
        (checkout / "requirements" / name).write_text(HEAD)
    return checkout


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def make_wheel(directory: Path, code: str = HARMLESS) -> str:
    """Write tiny 1.0 and return the hash of the file."""
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_record(text)},{len(text)}\n" for name, text in files.items())
    path = directory / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def make_source(directory: Path) -> str:
    """Write tiny 1.0 as source alone and return the hash of the file."""
    path = directory / "tiny-1.0.tar.gz"
    setup = directory / "setup.py"
    setup.write_text("from setuptools import setup\nsetup(name='tiny', version='1.0')\n")
    with tarfile.open(path, "w:gz") as source:
        source.add(setup, "tiny-1.0/setup.py")
    setup.unlink()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def set_up(tree: Path, wheels: Path, pins: str) -> subprocess.CompletedProcess[str]:
    (tree / "requirements" / "run.txt").write_text(HEAD + pins)
    local_only = {
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CACHE_DIR": str(wheels / "cache"),
    }
    return subprocess.run(
        [tree / "chasqui", "setup", "run"],
        env={**os.environ, **local_only},
        capture_output=True,
        text=True,
        check=False,
    )


def error_of(answer: subprocess.CompletedProcess[str], tree: Path) -> str:
    """The one sentence of a set-up that was refused and left nothing half done."""
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert not (tree / ".venv" / "chasqui-run.stamp").exists()
    assert list((tree / ".venv").rglob("tiny*")) == []
    (sentence,) = [line for line in answer.stderr.splitlines() if line.startswith("error: ")]
    return sentence


def test_a_wheel_that_has_its_hash_is_installed(tree: Path, wheels: Path):
    digest = make_wheel(wheels)

    answer = set_up(tree, wheels, f"tiny==1.0 --hash=sha256:{digest}\n")

    assert answer.returncode == 0, answer.stderr
    assert [path.name for path in (tree / ".venv").rglob("tiny.py")] == ["tiny.py"]


def test_a_wheel_that_was_changed_is_refused_by_name(tree: Path, wheels: Path):
    digest = make_wheel(wheels)
    assert make_wheel(wheels, HARMFUL) != digest

    answer = set_up(tree, wheels, f"tiny==1.0 --hash=sha256:{digest}\n")

    sentence = error_of(answer, tree)
    assert sentence.startswith("error: tiny==1.0 was refused: what came from file://")
    assert "tiny-1.0-py3-none-any.whl is not one of the files whose hashes" in sentence
    assert "pip cache purge" in sentence


def test_a_pin_without_a_hash_is_refused_by_name(tree: Path, wheels: Path):
    make_wheel(wheels)

    sentence = error_of(set_up(tree, wheels, "tiny==1.0\n"), tree)

    assert sentence.startswith("error: tiny==1.0 was refused: every package needs a pinned version")
    assert "run `make lock`" in sentence


def test_a_name_without_a_version_is_refused_by_name(tree: Path, wheels: Path):
    digest = make_wheel(wheels)

    sentence = error_of(set_up(tree, wheels, f"tiny>=1 --hash=sha256:{digest}\n"), tree)

    assert sentence.startswith("error: tiny>=1 was refused: every package needs a pinned version")


def test_source_is_not_built_although_its_hash_is_pinned(tree: Path, wheels: Path):
    digest = make_source(wheels)

    sentence = error_of(set_up(tree, wheels, f"tiny==1.0 --hash=sha256:{digest}\n"), tree)

    assert sentence.startswith("error: the packages could not be installed: no wheel of tiny==1.0")
    assert "try another Python" in sentence


def test_a_level_that_is_none_is_one_sentence(tree: Path):
    answer = subprocess.run(
        [tree / "chasqui", "setup", "everything"], capture_output=True, text=True, check=False
    )

    assert answer.returncode == 2
    assert answer.stderr == (
        "error: setup takes one of run, sql, spark, test, release, got everything\n"
    )
