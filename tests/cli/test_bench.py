"""`chasqui bench` measures, writes down what it measured, and says why when it cannot."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import server
from benchmarks.scenario import WHATS
from chasquimq.cli.app import main
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
SCENARIOS = ["add-concurrent", "add-bulk-50x8", "consume-100"]
# Three scenarios in processes of their own; a busy machine takes its time.
pytestmark = pytest.mark.timeout(240)
TINY = ["--rounds", "2", "--jobs", "2000", "--peer", "none"]


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], dict]:
    """A run of seconds, as a pipe sees it, and the document it wrote."""
    path = tmp_path_factory.mktemp("bench") / "run.json"
    command = [sys.executable, "-m", "chasquimq", "bench", *SCENARIOS, *TINY, "--json", str(path)]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done, json.loads(path.read_text())


def test_the_document_names_machine_server_versions_and_settings(tiny_run):
    _, document = tiny_run

    assert {"cpu", "cores", "system", "python"} <= document["machine"].keys()
    assert document["server"]["is_private"] is True
    assert {"chasquimq-py", "redis", "hiredis", "msgspec"} <= document["versions"].keys()
    assert document["settings"]["rounds"] == 2


def test_every_side_has_a_figure_for_every_round(tiny_run):
    _, document = tiny_run

    sides = {
        scenario["name"]: {side["side"]: len(side["rounds"]) for side in scenario["sides"]}
        for scenario in document["scenarios"]
    }
    assert sides == {
        "add-concurrent": {"ours": 2, "limit": 2, "redis-py": 2},
        "add-bulk-50x8": {"ours": 2, "limit": 2},
        "consume-100": {"ours": 2, "limit": 2},
    }


def test_every_measurement_did_all_its_jobs(tiny_run):
    _, document = tiny_run

    assert [scenario["jobs"] for scenario in document["scenarios"]] == [2000, 2000, 2000]


def test_the_table_shows_each_side_once_and_the_bars(tiny_run):
    done, _ = tiny_run

    lines = done.stdout.splitlines()
    assert sum(line.split()[:1] == ["limit"] for line in lines) == 3
    assert sum(line.startswith("bar ") for line in lines) == 3


def test_the_screen_says_what_was_measured_what_the_limit_is_and_who_wants(tiny_run):
    done, _ = tiny_run

    assert "100 callers side by side, one job a call" in done.stdout
    assert "limit: a bare client that replays the commands of our own run" in done.stdout
    assert "wanted: aims that this project set itself" in done.stdout


def test_the_help_says_of_each_scenario_what_it_measures(capsys):
    assert main(["bench", "--help"]) == 0

    shown = " ".join(capsys.readouterr().out.split())
    assert [name for name, what in WHATS.items() if f"{name} {what}" not in shown] == []


def test_how_busy_the_machine_is_comes_first_and_aside(tiny_run):
    done, document = tiny_run

    (line,) = done.stderr.splitlines()
    assert f"load average before the run: {document['machine']['load_average'][0]:.1f} on " in line


async def test_a_terminated_bench_takes_its_measuring_process_along():
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "chasquimq", "bench", "add", "--jobs", "500000"]
    command += ["--peer", "none"]
    bench = await asyncio.create_subprocess_exec(
        *command, env=environ, start_new_session=True, stderr=subprocess.DEVNULL
    )
    await eventually(lambda: "benchmarks.side" in commands_of(bench.pid), within_s=30)
    bench.terminate()

    assert await asyncio.wait_for(bench.wait(), 60) == 130
    await eventually(lambda: commands_of(bench.pid) == "")


def commands_of(session: int) -> str:
    """The command lines of every process of that session."""
    command = ["ps", "-ww", "-s", str(session), "-o", "args="]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_an_unknown_scenario_is_refused_by_name(capsys):
    assert main(["bench", "consume-9000"]) == 2

    said = capsys.readouterr().err
    assert "scenario must be one of add, " in said
    assert "got 'consume-9000'; did you mean consume-100?" in said


def test_an_unknown_peer_is_refused_by_name(capsys):
    assert main(["bench", "--scenario", "add", "--peer", "celeri"]) == 2

    assert "got 'celeri'; did you mean celery?" in capsys.readouterr().err


def test_two_servers_are_one_too_many(capsys):
    assert main(["bench", "--server", sys.executable, "--redis-url", "redis://localhost"]) == 2

    assert "choose one" in capsys.readouterr().err


def test_a_result_without_a_directory_is_refused_before_measuring(capsys, tmp_path):
    assert main(["bench", "--json", str(tmp_path / "nowhere" / "run.json")]) == 2

    assert "--json needs a directory that exists" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["", "sub"])
def test_a_place_that_cannot_be_written_to_is_refused_before_measuring(capsys, tmp_path, below):
    (tmp_path / "file").write_text("")
    out = Path("/proc/nope") if not below else tmp_path / "file" / below
    silent = f"unix://{tmp_path}/none.sock"

    assert main(["bench", "add", "--redis-url", silent, "--out", str(out)]) == 2

    (line,) = [said for said in capsys.readouterr().err.splitlines() if "--out" in said]
    assert f"--out needs a directory that can be made and written to, got {out}: " in line


def test_a_look_at_the_place_to_keep_things_leaves_nothing_in_it(capsys, tmp_path):
    out = tmp_path / "new"

    assert main(["bench", "add", "--redis-url", f"unix://{tmp_path}/x", "--out", str(out)]) == 1

    assert list(out.iterdir()) == []


def test_a_server_that_does_not_answer_ends_with_a_line(capsys, tmp_path):
    assert main(["bench", "add", "--redis-url", f"unix://{tmp_path}/none.sock"]) == 1

    said = capsys.readouterr().err
    assert said.startswith("error: a server must answer at unix:")
    assert len(said.splitlines()) == 1


def test_a_machine_without_a_server_is_told_the_remedies(capsys, monkeypatch):
    monkeypatch.setattr(server, "find_binary", lambda _environ: None)

    assert main(["bench", "add"]) == 1

    assert "--server" in capsys.readouterr().err
