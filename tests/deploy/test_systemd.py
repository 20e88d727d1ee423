"""The units run commands that exist, stop as workers want to be stopped, and pass systemd's look."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from deploy.kit import DEPLOY, parsed, unit, variables, words

WORKER, METRICS = "chasqui-worker@.service", "chasqui-metrics.service"
UPKEEP = "chasqui-upkeep.service"
UNITS = [WORKER, METRICS, UPKEEP]
EXAMPLES = {
    WORKER: "worker.env.example", METRICS: "metrics.env.example", UPKEEP: "upkeep.env.example",
}  # fmt: skip
SIZES = {"M": 1 << 20, "G": 1 << 30}
ANALYZE = shutil.which("systemd-analyze")
# «At the latest one second after the deadline», and room for a machine that is busy.
SPARE_S_MIN = 10
# Of a hundred, as systemd counts; 14 with systemd 252.
EXPOSURE_MAX = 15

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
each_unit = pytest.mark.parametrize("name", UNITS)


def command_of(name: str, environ: dict[str, str]) -> list[str]:
    (line,) = unit(name)["Service"]["ExecStart"]
    return words(line, environ)


def test_the_worker_is_given_options_that_it_takes():
    program, *args = command_of(WORKER, variables("worker.env.example"))
    options = parsed(args)

    assert Path(program).name == "chasqui"
    assert (options["queue_name"], options["target"]) == ("orders", "jobs:handlers")
    assert (options["metrics_host"], options["metrics_port"]) == ("127.0.0.1", 9470)


def test_the_depth_exporter_is_given_options_that_it_takes():
    program, *args = command_of(METRICS, variables("metrics.env.example"))
    options = parsed(args)

    assert (Path(program).name, args[0]) == ("chasqui", "metrics")
    assert options["queues"] == ("orders", "mails")
    assert (options["host"], options["port"]) == ("127.0.0.1", 9490)


def test_upkeep_is_given_queues_and_waits_for_the_server():
    program, *args = command_of(UPKEEP, variables(EXAMPLES[UPKEEP]))
    options = parsed(args)

    assert (Path(program).name, args[0]) == ("chasqui", "upkeep")
    assert options["queues"] == ("orders", "mails")
    assert options["wait_ms"] == float("inf")


@each_unit
def test_a_unit_is_bounded_in_memory_and_tasks_and_never_swaps(name):
    service = unit(name)["Service"]
    ((size, suffix),) = ((text[:-1], text[-1]) for text in service["MemoryMax"])

    assert 128 << 20 <= int(size) * SIZES[suffix] <= 2 << 30
    assert service["MemorySwapMax"] == ["0"]
    assert 32 <= int(service["TasksMax"][0]) <= 1024


@pytest.mark.parametrize("name", [WORKER, METRICS])
def test_an_address_that_was_left_empty_is_refused(name):
    _, *args = command_of(name, variables(EXAMPLES[name]) | {"CHASQUI_METRICS_HOST": ""})

    with pytest.raises(click.BadParameter, match="address"):
        parsed(args)


def test_systemd_waits_longer_than_the_deadline():
    options = parsed(command_of(WORKER, variables("worker.env.example"))[1:])
    (timeout_s,) = unit(WORKER)["Service"]["TimeoutStopSec"]

    assert int(timeout_s) * 1000 >= options["shutdown_deadline_ms"] + SPARE_S_MIN * 1000


def test_only_the_main_process_gets_the_signal():
    service = unit(WORKER)["Service"]

    assert service["KillMode"] == ["mixed"]
    assert service["KillSignal"] == ["SIGTERM"]


@each_unit
def test_a_service_comes_back_for_ever_but_not_after_wrong_usage(name):
    service = unit(name)["Service"]

    assert service["Restart"] == ["always"]
    assert service["RestartPreventExitStatus"] == ["2"]
    assert unit(name)["Unit"]["StartLimitIntervalSec"] == ["0"]


@each_unit
def test_a_missing_environment_file_is_an_error(name):
    (path,) = unit(name)["Service"]["EnvironmentFile"]

    assert not path.startswith("-")


@pytest.mark.parametrize("name", [WORKER, UPKEEP])
def test_a_program_without_a_server_is_refused_before_it_starts_and_stays_down(name):
    # RestartPreventExitStatus is about the main process; only a condition ends without a restart.
    assert "ExecStartPre" not in unit(name)["Service"]
    (line,) = unit(name)["Service"]["ExecCondition"]
    shell = words(line, {})

    def run(url: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shell, env={"CHASQUI_REDIS_URL": url}, capture_output=True, text=True, check=False
        )

    assert run("redis://127.0.0.1").returncode == 0
    refused = run("")
    assert (refused.returncode, "must be set" in refused.stderr) == (2, True)
    assert refused.returncode in range(1, 255)


@each_unit
def test_examples_hold_no_password_and_every_variable_that_is_used(name):
    text = (DEPLOY / "systemd" / EXAMPLES[name]).read_text()

    assert "@" not in text
    command_of(name, variables(EXAMPLES[name]))


@needs_systemd
@each_unit
def test_systemd_takes_the_unit(name, tmp_path):
    text = (DEPLOY / "systemd" / name).read_text()
    (tmp_path / name).write_text(text.replace("/srv/chasqui/venv/bin/chasqui", sys.executable))

    said = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", str(tmp_path / name)],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip

    assert (said.returncode, said.stderr) == (0, "")


@needs_systemd
@each_unit
def test_a_unit_exposes_little(name):
    said = subprocess.run(
        [
            str(ANALYZE), "security", "--offline=true", f"--threshold={EXPOSURE_MAX}",
            str(DEPLOY / "systemd" / name),
        ],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip

    assert said.returncode == 0, said.stdout[-300:]
