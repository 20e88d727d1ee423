"""The image is made of files that exist, and the services run commands that exist, in time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from shutil import copy2, copytree
from typing import Any

import pytest
import yaml

from chasquimq.server.binary import find_binary
from chasquimq.settings import WorkerSettings
from deploy.kit import (
    COMPOSE,
    DEPLOY,
    EXPORTER_IN_IMAGE,
    PROBE_IN_IMAGE,
    ROOT,
    parsed,
    parsed_by_exporter,
)
from support.command import PROGRAM
from support.waiting import eventually

DOCKER = DEPLOY / "docker"
TEXT = (DOCKER / "Dockerfile").read_text()
STEPS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n\s*", "", TEXT).splitlines()
    if line and not line.startswith("#")
]
LAST_FROM = max(at for at, (word, *_) in enumerate(STEPS) if word == "FROM")
BUILD, FINAL = STEPS[:LAST_FROM], STEPS[LAST_FROM:]
COPIED = [
    source
    for word, rest in STEPS
    if word == "COPY" and "--from" not in rest
    for source in rest.split()[:-1]
]
IGNORE = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
KEPT = [line[1:] for line in IGNORE if line.startswith("!")]
SERVICES = COMPOSE["services"]
OURS = ["worker", "worker-pages", "metrics"]
SCRAPE = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
PIN = re.compile(r"^([\w.-]+)==([^;\s]+)", re.MULTILINE)
SPARE_S_MIN = 10


def final(word: str) -> str:
    (found,) = [rest for step, rest in FINAL if step == word]
    return found


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_exists_and_is_sent(source):
    assert (ROOT / source).exists()
    assert source in KEPT


def test_nothing_is_sent_that_is_not_copied():
    assert "*" in IGNORE
    assert sorted(KEPT) == sorted(COPIED)
    assert any(fnmatch("src/chasquimq/__pycache__", pattern) for pattern in IGNORE)


def test_the_image_is_small_and_runs_as_nobody_in_particular():
    assert [rest.split()[0] for word, rest in STEPS if word == "FROM"] == ["python:3.12-slim"] * 2
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final("USER"))


def test_the_signal_reaches_the_command_itself():
    assert final("STOPSIGNAL") == "SIGTERM"
    assert json.loads(final("ENTRYPOINT")) == ["chasqui"]


def test_the_health_check_asks_the_port_that_the_worker_serves():
    python, *_, program, port, path = json.loads(final("HEALTHCHECK").partition("CMD ")[2])

    assert (python, program, path) == ("python", PROBE_IN_IMAGE, "/healthz")
    assert int(port) == parsed(SERVICES["worker"]["command"])["metrics_port"]


def test_the_command_in_the_head_of_the_dockerfile_can_be_run():
    args = json.loads(re.search(r"^#   CMD (\[.*\])$", TEXT, re.MULTILINE)[1])

    assert parsed(args)["metrics_port"] == 9470


def test_programs_lie_where_the_image_calls_them():
    (programs,) = [r for w, r in FINAL if w == "COPY" and "--from" not in r]
    *sources, folder = programs.split()

    assert {folder + Path(source).name for source in sources} == {
        EXPORTER_IN_IMAGE,
        PROBE_IN_IMAGE,
    }


def test_the_extras_of_the_image_are_those_that_are_tested():
    tested = "".join((ROOT / "requirements" / f"{n}.txt").read_text() for n in ("run", "test"))
    extras = dict(PIN.findall((DOCKER / "extras.txt").read_text()))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [project["optional-dependencies"][extra] for extra in ("fast", "prometheus")]

    assert extras.items() <= dict(PIN.findall(tested)).items()
    assert set(extras) == {re.match(r"[\w-]+", name)[0] for names in wanted for name in names}


@pytest.mark.slow
def test_what_is_copied_makes_a_package_that_runs(tmp_path):
    checkout, wheels, site = (tmp_path / name for name in ("checkout", "wheels", "site"))
    for source in [s for w, r in BUILD if w == "COPY" for s in r.split()[:-1]]:
        put(ROOT / source, checkout / source)

    pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(checkout))
    (wheel,) = wheels.iterdir()
    pip("install", "--no-deps", "--target", str(site), str(wheel))

    scripts = {path.name for path in (ROOT / "src/chasquimq/store/scripts").glob("*.lua")}
    packed = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert scripts <= packed
    said = run([str(site / "bin/chasqui"), "--version"], PYTHONPATH=str(site))
    assert said.startswith("chasqui ")


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_ours_has_few_rights_and_comes_back(name):
    service = SERVICES[name]

    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"]
    assert service["restart"] == "unless-stopped"


def test_compose_waits_longer_than_the_deadline():
    options = parsed(SERVICES["worker"]["command"])

    grace_s = seconds(SERVICES["worker"]["stop_grace_period"])
    assert grace_s * 1000 >= options["shutdown_deadline_ms"] + SPARE_S_MIN * 1000
    assert options["shutdown_deadline_ms"] == WorkerSettings().shutdown_deadline_ms


def test_the_relay_shares_the_network_of_the_worker_and_shows_its_port():
    relay = SERVICES["worker-pages"]
    options = parsed_by_exporter(relay["command"])

    assert relay["network_mode"] == "service:worker"
    assert options["from_port"] == parsed(SERVICES["worker"]["command"])["metrics_port"]
    assert options["silent_s_max"]


@pytest.mark.parametrize("name", ["worker-pages", "metrics"])
def test_an_exporter_is_probed_on_its_own_port(name):
    service = SERVICES[name]
    port, path = service["healthcheck"]["test"][-2:]

    assert service["entrypoint"] == ["python", EXPORTER_IN_IMAGE]
    assert (int(port), path) == (parsed_by_exporter(service["command"])["port"], "/healthz")


def test_prometheus_scrapes_what_is_served():
    targets = [job["static_configs"][0]["targets"] for job in SCRAPE["scrape_configs"]]
    relay, depths = (
        parsed_by_exporter(SERVICES[name]["command"])["port"]
        for name in ("worker-pages", "metrics")
    )

    # The relay has no name of its own on the network: it is reached under the worker's.
    assert targets == [[f"worker:{relay}"], [f"metrics:{depths}"]]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_files_that_are_mounted_exist(name):
    mounts = [mount.split(":")[0] for mount in SERVICES[name].get("volumes", [])]

    named = [mount for mount in mounts if not mount.startswith(".")]
    assert [m for m in mounts if m.startswith(".") and not (DOCKER / m).exists()] == []
    assert set(named) <= COMPOSE["volumes"].keys()


def test_ports_are_open_to_this_machine_only():
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_no_password_has_a_default():
    given = SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]

    assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", given)


def test_grafana_finds_its_dashboard_and_prometheus():
    provisioning = DEPLOY / "grafana/provisioning"
    (source,) = read(provisioning / "datasources/chasquimq.yml")["datasources"]
    (provider,) = read(provisioning / "dashboards/chasquimq.yml")["providers"]
    mounts = SERVICES["grafana"]["volumes"]

    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == SCRAPE["global"]["scrape_interval"]
    assert any(f":{provider['options']['path']}/chasquimq.json:ro" in mount for mount in mounts)


def test_the_handlers_of_the_demo_can_be_run():
    args = SERVICES["worker"]["command"]

    run([*PROGRAM, *args, "--check"], cwd=DOCKER / "app", PYTHONPATH=str(ROOT / "src"))


def test_the_server_keeps_jobs_on_disk_and_evicts_none(compose_server):
    found = doctor(compose_server)

    assert found["eviction policy"] == "ok"
    assert found["persistence"] == "ok"


@pytest.fixture
def compose_server(tmp_path):
    """The URL of a server that was given the options of the compose file."""
    program, *args = SERVICES["valkey"]["command"]
    assert program == "valkey-server"
    binary = find_binary(os.environ)
    assert binary
    server = subprocess.Popen(
        [binary.path, *args, "--port", "0", "--unixsocket", "socket"],
        cwd=tmp_path, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    asyncio.run(eventually((tmp_path / "socket").exists))
    yield f"unix://{tmp_path}/socket"
    server.terminate()
    server.wait(10)


def doctor(url: str) -> dict[str, str]:
    """The level of each check."""
    said = subprocess.run(
        [*PROGRAM, "doctor", "--json", "--redis-url", url],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    return {check["check"]: check["level"] for check in json.loads(said.stdout)["checks"]}


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        copytree(source, target)
    else:
        copy2(source, target)


def pip(*args: str) -> None:
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *args])


def run(command: list[str], cwd: Path | None = None, **variables: str) -> str:
    said = subprocess.run(
        command, cwd=cwd, env=os.environ | variables,
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout
