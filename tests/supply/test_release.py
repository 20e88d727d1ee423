"""A release is the same bytes for the same tree, says what it installs, and admits what it cannot ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import chasquimq
from supply.pins import ROOT, pins_with

PARTS = (
    "src", "benchmarks", "tests", "deploy", "requirements", "tools", "chasqui", "Makefile", "LICENSE",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml",
)  # fmt: skip
VERSION = chasquimq.version()
EPOCH = "1763400000"
SECTION = f"## {VERSION} (2026-11-19)\n"


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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed copy of the project whose changelog has a section of this version."""
    place = tmp_path / "tree"
    place.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "results")
    for part in (*PARTS, ".gitignore"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, place / part, ignore=ignored)
        else:
            shutil.copyfile(ROOT / part, place / part)
    changes = (place / "CHANGELOG.md").read_text()
    (place / "CHANGELOG.md").write_text(changes.replace("## Unreleased\n", SECTION, 1))
    git(place, "init", "--quiet")
    for name, value in (("user.name", "A tester"), ("user.email", "tester@example.org")):
        git(place, "config", name, value)
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message", "feat: all of it")
    return place


@pytest.fixture
def release_of(stamps: ModuleType, tree: Path):
    """Run tools/release.py of the copy in the environment of a release, where that is set up."""
    python = stamps.venv_python(str(ROOT), stamps.RELEASE)
    if not stamps.is_ready(str(ROOT), stamps.RELEASE, "{}.{}".format(*sys.version_info)):
        pytest.skip("needs ./chasqui setup release")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, tree / "tools/release.py", *words], capture_output=True, text=True, check=False
        )

    return run


def git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", place, *words], capture_output=True, text=True, check=True)
    return done.stdout


def refusal(done: subprocess.CompletedProcess[str], tree: Path) -> str:
    """The one sentence of a release that was refused before anything was built."""
    assert (done.returncode, done.stdout) == (1, "")
    assert not (tree / "dist").exists()
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_release_is_built_tried_and_tagged_with_what_changed(release_of, tree: Path):
    checked = release_of("check")

    assert checked.returncode == 0, checked.stderr
    assert git(tree, "tag") == ""
    made = [Path(line).name for line in checked.stdout.splitlines()]
    assert f"chasquimq_py-{VERSION}-py3-none-any.whl" in made
    assert f"release-notes-{VERSION}.md" in made
    assert len([name for name in made if name.endswith(".cdx.json")]) == 5
    assert "running the demo of the wheel" in checked.stderr

    released = release_of("release")

    assert released.returncode == 0, released.stderr
    assert git(tree, "cat-file", "-t", f"v{VERSION}") == "tag\n"
    message = git(tree, "tag", "--list", "--format=%(contents)", f"v{VERSION}")
    assert message.startswith(f"ChasquiMQ for Python {VERSION}\n\n### Changed\n")
    notes = (tree / f"dist/release-notes-{VERSION}.md").read_text()
    assert notes.strip() in message
    assert git(tree, "status", "--porcelain") == ""


@pytest.mark.parametrize("command", ["check", "release"])
def test_a_tree_with_changes_is_not_released(release_of, tree: Path, command: str):
    (tree / "src/chasquimq/stray.py").write_text("")

    assert refusal(release_of(command), tree) == (
        "error: the tree must be committed, and 1 files are not, such as src/chasquimq/stray.py; "
        "commit or remove them, then try again"
    )


def test_a_version_is_not_tagged_twice(release_of, tree: Path):
    git(tree, "tag", f"v{VERSION}")

    assert refusal(release_of("release"), tree) == (
        f"error: a version is tagged once, and the tag v{VERSION} is there already; "
        "raise the version in src/chasquimq/model/version.py"
    )


@pytest.mark.parametrize("title", ["## Unreleased", f"## {VERSION}1", f"## {VERSION}\n\n## 0.0.1"])
def test_a_version_that_the_changelog_does_not_know_is_not_released(release_of, tree: Path, title):
    changes = (tree / "CHANGELOG.md").read_text()
    (tree / "CHANGELOG.md").write_text(changes.replace(SECTION, f"{title}\n", 1))
    git(tree, "commit", "--all", "--quiet", "--message", "docs: another title")

    assert refusal(release_of("release"), tree) == (
        f"error: CHANGELOG.md must have a section ## {VERSION} that says what changed, and has "
        "none; rename the section Unreleased, or write one"
    )


def test_a_directory_without_history_is_not_released(release_of, tree: Path):
    shutil.rmtree(tree / ".git")

    assert "not a git repository" in refusal(release_of("check"), tree)


@pytest.mark.parametrize("tag", ["v99.0.0", VERSION, ""])
def test_files_are_not_made_for_the_tag_of_another_version(release_of, tree: Path, tag: str):
    assert refusal(release_of("files", "--tag", tag), tree) == (
        f"error: the tag of this version must be v{VERSION}, got {tag or 'none'}; "
        "correct the tag, or the version in src/chasquimq/model/version.py"
    )


def test_files_are_not_made_from_another_commit_than_that_of_the_tag(release_of, tree: Path):
    git(tree, "tag", f"v{VERSION}")
    git(tree, "commit", "--allow-empty", "--quiet", "--message", "docs: later")

    assert refusal(release_of("files", "--tag", f"v{VERSION}"), tree) == (
        f"error: HEAD must be the commit of v{VERSION}; check that tag out, then try again"
    )


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
        # A name of its own for each, so that the same pins make the same bytes.
        assert {one["bom-ref"] for one in bom["components"]} == {
            f"{one['name']}=={one['version']}" for one in bom["components"]
        }
        assert {one["ref"] for one in bom["dependencies"]} == {
            "root-component",
            *(one["bom-ref"] for one in bom["components"]),
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
