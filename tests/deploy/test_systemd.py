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
UNITS = [WORKER, METRICS]
ANALYZE = shutil.which("systemd-analyze")
# «At the latest one second after the deadline», and room for a machine that is busy.
SPARE_S_MIN = 10
EXPOSURE_MAX = 20

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


@each_unit
def test_an_address_that_was_left_empty_is_refused(name):
    example = "worker.env.example" if name == WORKER else "metrics.env.example"
    _, *args = command_of(name, variables(example) | {"CHASQUI_METRICS_HOST": ""})

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


def test_a_worker_without_a_server_is_refused_before_it_starts_and_stays_down():
    # RestartPreventExitStatus is about the main process; only a condition ends without a restart.
    assert "ExecStartPre" not in unit(WORKER)["Service"]
    (line,) = unit(WORKER)["Service"]["ExecCondition"]
    shell = words(line, {})

    def run(url: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shell, env={"CHASQUI_REDIS_URL": url}, capture_output=True, text=True, check=False
        )

    assert run("redis://127.0.0.1").returncode == 0
    refused = run("")
    assert (refused.returncode, "must be set" in refused.stderr) == (2, True)
    assert refused.returncode in range(1, 255)


@pytest.mark.parametrize("name", ["worker.env.example", "metrics.env.example"])
def test_examples_hold_no_password_and_every_variable_that_is_used(name):
    text = (DEPLOY / "systemd" / name).read_text()
    used = WORKER if name.startswith("worker") else METRICS

    assert "@" not in text
    command_of(used, variables(name))


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
