"""A release is the same bytes for the same tree, says what it installs, and admits what it cannot ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from supply.pins import ROOT, pins_with

PARTS = (
    "src", "benchmarks", "tests", "deploy", "requirements", "tools", "chasqui", "Makefile", "LICENSE",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml",
)  # fmt: skip
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
EPOCH = "1763400000"


@pytest.fixture
def stamps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import stamps

    return stamps


@pytest.fixture
def release(stamps: ModuleType):
    """Run tools/release.py in the environment of a release, where that is set up."""
    python = stamps.venv_python(str(ROOT), stamps.RELEASE)
    if not stamps.is_ready(str(ROOT), stamps.RELEASE, "{}.{}".format(*sys.version_info)):
        pytest.skip("needs ./chasqui setup release")

    def run(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, ROOT / "tools" / "release.py", *words],
            env={**os.environ, **environ}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def build_in(place: Path, mask: int) -> dict[str, bytes]:
    """The files that a copy of the tree makes; the copy has its own clock, path and modes."""
    place.mkdir()
    before = os.umask(mask)
    try:
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
            copy(ROOT / part, place / part)
    finally:
        os.umask(before)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", "made"],
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH}, cwd=place, check=True, capture_output=True,
    )  # fmt: skip
    return {path.name: path.read_bytes() for path in (place / "made").iterdir()}


@pytest.mark.slow
def test_the_same_tree_makes_the_same_wheel_and_sdist(tmp_path: Path):
    first = build_in(tmp_path / "one", 0o022)
    second = build_in(tmp_path / "another place", 0o027)

    assert set(first) == {
        f"chasquimq_py-{VERSION}-py3-none-any.whl",
        f"chasquimq_py-{VERSION}.tar.gz",
    }
    assert {name: first[name] == second[name] for name in first} == dict.fromkeys(first, True)


@pytest.mark.slow
def test_a_release_is_built_by_what_is_pinned_and_without_network(release, tmp_path: Path):
    offline = {"PIP_NO_INDEX": "1", "HTTPS_PROXY": "http://127.0.0.1:1"}

    done = release("build", "--output", tmp_path / "dist", **offline)

    assert done.returncode == 0, done.stderr
    wheel, sdist = map(Path, done.stdout.split())
    assert any(name.endswith(".lua") for name in zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as packed:
        assert f"chasquimq_py-{VERSION}/requirements/core.txt" in packed.getnames()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_sbom_lists_every_pinned_package_with_its_hashes(release, tmp_path: Path):
    done = release("sbom", "--output", tmp_path, HTTPS_PROXY="http://127.0.0.1:1")

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 5
    for name in ("core", "worker", "run", "sql", "spark"):
        bom = json.loads((tmp_path / f"chasquimq-py-{VERSION}-{name}.cdx.json").read_text())
        listed = {one["name"].lower(): one for one in bom["components"]}
        pins = {pin.name: pin for pin in pins_with(f"{name}.txt")}
        assert (bom["bomFormat"], bom["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
        assert {n: one["version"] for n, one in listed.items()} == {
            n: pin.version for n, pin in pins.items()
        }
        for package, pin in pins.items():
            (reference,) = listed[package]["externalReferences"]
            assert {one["content"] for one in reference["hashes"]} == pin.hashes


def test_an_audit_that_reaches_nobody_says_so_and_is_no_success(release):
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}

    done = release("audit", **nowhere, **{name.lower(): url for name, url in nowhere.items()})

    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith(
        "error: nothing was audited, no advisory service answered (pypi: "
    )
    assert done.stderr.count("\n") == 1


def test_a_place_that_cannot_be_written_to_is_one_sentence(release, tmp_path: Path):
    (tmp_path / "file").write_text("")

    done = release("build", "--output", tmp_path / "file")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"error: {tmp_path / 'file'} cannot be written to"
    )
    assert "Traceback" not in done.stderr


def test_a_known_weakness_is_named_with_the_version_that_mends_it(stamps: ModuleType, capsys):
    import release

    weakness = {"id": "PYSEC-1", "fix_versions": ["1.1"]}
    code = release._tell([{"name": "tiny", "version": "1.0", "vulns": [weakness]}])

    assert code == release.EXIT_FOUND
    assert capsys.readouterr().out.splitlines()[0] == "tiny==1.0: PYSEC-1, fixed in 1.1"
