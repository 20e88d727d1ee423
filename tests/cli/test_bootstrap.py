"""A fresh copy of the tree sets itself up, once, wherever it is and however it is called."""

import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("chasqui", "tools", "requirements", "src", "pyproject.toml")
# Stands where the bootstrap stands, and tells what the stub handed over.
ECHO_BOOTSTRAP = "import sys; print(sys.executable); print(*sys.argv[1:], sep='|')"


@pytest.fixture
def stamps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import stamps

    return stamps


@pytest.fixture
def environment(stamps: ModuleType) -> ModuleType:
    import environment

    return environment


@pytest.fixture
def bootstrap(stamps: ModuleType) -> ModuleType:
    import bootstrap

    return bootstrap


@pytest.fixture
def pinned_tree(tmp_path: Path) -> Path:
    """Pins and an empty .venv: all that a stamp is about."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / ".venv").mkdir()
    return tmp_path


@pytest.fixture
def stub_tree(tmp_path: Path) -> Path:
    """The real stub before a bootstrap that only echoes, in a path with spaces."""
    tree = tmp_path / "a path with spaces"
    (tree / "tools").mkdir(parents=True)
    shutil.copy2(ROOT / "chasqui", tree)
    (tree / "tools" / "bootstrap.py").write_text(ECHO_BOOTSTRAP)
    return tree


@pytest.fixture
def fresh_tree(tmp_path: Path) -> Path:
    """The whole tree without its .venv, in a path with spaces."""
    tree = tmp_path / "fresh tree"
    tree.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, tree / part)
    return tree


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def write_stamp(stamps: ModuleType, tree: Path, level: str, version: str = "3.11") -> None:
    Path(stamps.stamp_path(str(tree), level)).write_text(
        stamps.wanted_stamp(str(tree), level, version)
    )


def put_on_path(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def test_the_tools_of_a_release_have_an_environment_of_their_own(stamps: ModuleType):
    assert stamps.venv_path("tree", "release") != stamps.venv_path("tree", "test")
    assert set(stamps.RELEASE_PINS).isdisjoint(stamps.PINS["test"])


def test_an_empty_environment_is_not_ready(stamps: ModuleType, pinned_tree: Path):
    assert not stamps.is_ready(str(pinned_tree), "run", "3.11")


def test_a_stamped_environment_is_ready(stamps: ModuleType, pinned_tree: Path):
    write_stamp(stamps, pinned_tree, "run")

    assert stamps.is_ready(str(pinned_tree), "run", "3.11")


def test_another_python_version_is_another_environment(stamps: ModuleType, pinned_tree: Path):
    write_stamp(stamps, pinned_tree, "run")

    assert not stamps.is_ready(str(pinned_tree), "run", "3.12")


def test_a_changed_pin_asks_for_a_new_set_up(stamps: ModuleType, pinned_tree: Path):
    write_stamp(stamps, pinned_tree, "run")

    with (pinned_tree / "requirements" / "core.txt").open("a") as pins:
        pins.write("another==1.0\n")

    assert not stamps.is_ready(str(pinned_tree), "run", "3.11")


def test_the_tools_of_tests_are_not_installed_for_a_demo(stamps: ModuleType, pinned_tree: Path):
    write_stamp(stamps, pinned_tree, "run")

    assert not stamps.is_ready(str(pinned_tree), "test", "3.11")


def test_spark_is_not_installed_for_what_does_not_need_it(stamps: ModuleType, pinned_tree: Path):
    write_stamp(stamps, pinned_tree, "run")

    assert not stamps.is_ready(str(pinned_tree), "spark", "3.11")


def test_what_tests_need_holds_all_that_spark_needs(stamps: ModuleType):
    levels = list(stamps.PINS.values())

    assert [set(less) < set(more) for less, more in pairwise(levels)] == [True] * 3
    assert (ROOT / "requirements" / "test.txt").read_text().count("-r spark.txt\n") == 1


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("demo", "spark"),
        ("demo --jobs 1000", "spark"),
        ("demo --quick", "run"),
        ("demo --jobs 1000 --no-spark", "run"),
        ("pipeline once", "spark"),
        ("pipeline --help", "run"),
        ("pipeline sql SELECT", "sql"),
        ("pipeline status", "sql"),
        ("pipeline report", "spark"),
        ("dlq triage orders", "run"),
        ("dlq replay orders --where true", "sql"),
        ("dlq triage orders --where=true", "sql"),
        ("dlq replay --help --where", "run"),
        ("dlq outcome orders", "sql"),
        ("dlq triage orders --lake lake", "sql"),
        ("setup", "test"),
        ("setup sql", "sql"),
        ("spark worker", "spark"),
        ("--json --redis-url redis://a pipeline once", "spark"),
        ("--redis-url=redis://a inspect demo", "run"),
        ("inspect demo", "run"),
        ("--version", "run"),
        ("", "run"),
        ("test", "test"),
        ("gate", "test"),
    ],
)
def test_a_command_asks_for_what_it_needs(bootstrap: ModuleType, words: str, level: str):
    assert bootstrap.level_of(*bootstrap.command_of(words.split())) == level


def test_what_would_lead_pip_out_of_the_environment_is_left_out(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "file:///mirror")

    passed = environment._environment()

    assert "/elsewhere" not in passed.values()
    assert passed["PIP_INDEX_URL"] == "file:///mirror"


def test_the_stub_hands_over_its_arguments_as_they_are(stub_tree: Path, tmp_path: Path):
    answer = run(stub_tree / "chasqui", "one", "two words", "*", "", cwd=tmp_path)

    assert answer.stdout.splitlines()[1] == "one|two words|*|"


def test_the_stub_can_be_called_through_a_link(stub_tree: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(stub_tree / "chasqui")

    assert run(tmp_path / "link", "hello", cwd=Path("/")).stdout.endswith("hello\n")


def test_the_stub_can_be_called_by_name_from_its_own_directory(stub_tree: Path):
    assert run("sh", "chasqui", "hello", cwd=stub_tree).stdout.endswith("hello\n")


@pytest.mark.parametrize("way", ["path", "link", "PATH"])
def test_the_launcher_of_the_environment_is_the_stub(
    environment: ModuleType, stub_tree: Path, tmp_path: Path, way: str
):
    bin_dir = stub_tree / ".venv" / "bin"
    bin_dir.mkdir(parents=True)
    environment.write_launcher(str(stub_tree))
    (tmp_path / "link").symlink_to(bin_dir / "chasqui")
    words = {"path": bin_dir / "chasqui", "link": tmp_path / "link", "PATH": "chasqui"}

    search = f"{bin_dir}:{os.environ['PATH']}"
    answer = run(words[way], "one", "two words", "", cwd=tmp_path, PATH=search)

    assert answer.stdout.splitlines()[1:] == ["one|two words|"]


def test_pages_of_workers_can_be_served_by_what_a_run_installs():
    assert "prometheus-client==" in (ROOT / "requirements" / "worker.txt").read_text()
    assert "-r worker.txt\n" in (ROOT / "requirements" / "run.txt").read_text()


def test_a_python_that_is_too_old_is_passed_over(stub_tree: Path, tmp_path: Path):
    bin_dir = tmp_path / "bin"
    put_on_path(bin_dir, "python3", "exit 1")
    put_on_path(bin_dir, "python3.12", f'exec "{sys.executable}" "$@"')

    answer = run(stub_tree / "chasqui", "hello", cwd=tmp_path, PATH=str(bin_dir))

    assert answer.stdout.splitlines()[1] == "hello"


def test_without_a_python_there_is_one_sentence_with_a_remedy(stub_tree: Path, tmp_path: Path):
    (tmp_path / "bin").mkdir()

    answer = run(stub_tree / "chasqui", cwd=tmp_path, PATH=str(tmp_path / "bin"))

    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: Python 3.11 or newer is needed")
    assert answer.stderr.count("\n") == 1


def test_packages_that_cannot_be_fetched_are_one_sentence_and_no_traceback(
    fresh_tree: Path, tmp_path: Path
):
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path)}

    answer = run(fresh_tree / "chasqui", "--version", cwd=tmp_path, **offline)

    assert answer.returncode == 1
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("error: the packages could not be installed")
    assert "run the same command again" in last
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_fresh_tree_sets_itself_up_once_for_two_callers_and_heals_after_a_kill(
    fresh_tree: Path, tmp_path: Path
):
    command = [str(fresh_tree / "chasqui"), "--version"]

    # Killed while it installs: the next call must not trust what is there.
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as killed:
        assert killed.stderr is not None
        assert any("installing" in line for line in killed.stderr)
        time.sleep(1)
        os.killpg(killed.pid, signal.SIGKILL)
    assert not (fresh_tree / ".venv" / "chasqui-run.stamp").exists()

    pair = [
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    told = [caller.communicate() for caller in pair]

    assert [caller.returncode for caller in pair] == [0, 0]
    assert [out for out, _ in told] == ["chasqui 0.1.0\n"] * 2
    assert sum("installing" in err for _, err in told) == 1

    warm = run(*command, cwd=tmp_path)
    assert (warm.stdout, warm.stderr) == ("chasqui 0.1.0\n", "")

    launched = run(fresh_tree / ".venv" / "bin" / "chasqui", "--version", cwd=tmp_path)
    assert (launched.stdout, launched.stderr) == ("chasqui 0.1.0\n", "")

    moved = fresh_tree.rename(tmp_path / "moved tree")
    after_move = run(moved / "chasqui", "--version", cwd=tmp_path)
    assert (after_move.stdout, after_move.stderr) == ("chasqui 0.1.0\n", "")


# Fails as often as it is told to, over all runs of a tree.
MOODY_TEST = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_moody(number):
    runs = pathlib.Path(f"runs-{{number}}")
    runs.write_text(runs.read_text() + "." if runs.exists() else ".")
    assert len(runs.read_text()) > {failures}
"""


@pytest.mark.parametrize(
    ("tests", "failures", "exit_code", "runs", "told"),
    [
        (1, 0, 0, 1, ""),
        (5, 1, 0, 2, "PASSED ONLY ALONE (5)"),
        (1, 2, 1, 2, "FAILED TWICE (1)"),
        (6, 1, 1, 1, ""),
    ],
    ids=["passed", "passed alone", "failed twice", "a heap failed"],
)
def test_a_test_that_failed_beside_others_is_looked_at_again_alone(
    bootstrap: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    tests: int,
    failures: int,
    exit_code: int,
    runs: int,
    told: str,
):
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "test_moody.py").write_text(MOODY_TEST.format(tests=tests, failures=failures))
    monkeypatch.setattr(bootstrap, "ROOT", str(tmp_path))
    monkeypatch.setattr(bootstrap, "PARALLEL_TESTS", ("-n", "1"))
    # The others take seconds to be imported, in each of these processes.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    monkeypatch.chdir(tmp_path)

    assert bootstrap.run_tests([]) == exit_code
    assert (tmp_path / "runs-0").read_text() == "." * runs
    said = capsys.readouterr().out.splitlines()
    assert told in "\n".join(said)
    assert said[-1:] == ([f"   test_moody.py::test_moody[{tests - 1}]"] if told else [])
