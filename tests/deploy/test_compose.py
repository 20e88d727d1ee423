"""The services of the compose file run commands that exist, in time, with few rights."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chasquimq.server.launch import find_binary
from chasquimq.settings import WorkerSettings
from deploy.kit import COMPOSE, DEPLOY, EVERY_INTERFACE, ROOT, parsed, run
from support.command import PROGRAM
from support.waiting import eventually

DOCKER = DEPLOY / "docker"
SERVICES = COMPOSE["services"]
OURS = ["worker", "metrics"]
SCRAPE = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
SPARE_S_MIN = 10


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


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_ours_is_our_command_in_the_same_image(name):
    service = SERVICES[name]

    assert service["command"][0] == name
    assert service["image"] == SERVICES["worker"]["image"]
    assert "entrypoint" not in service
    # The image has one; it only needs to know the port.
    assert "healthcheck" not in service


def test_the_health_check_of_the_depths_asks_their_port():
    service = SERVICES["metrics"]

    assert int(service["environment"]["HEALTH_PORT"]) == parsed(service["command"])["port"]


def test_prometheus_scrapes_what_is_served_to_other_containers():
    targets = [job["static_configs"][0]["targets"] for job in SCRAPE["scrape_configs"]]
    worker, depths = (parsed(SERVICES[name]["command"]) for name in OURS)

    assert targets[:2] == [[f"worker:{worker['metrics_port']}"], [f"metrics:{depths['port']}"]]
    assert targets[2:] == [["exporter:9121"]]
    assert (worker["metrics_host"], depths["host"]) == (EVERY_INTERFACE, EVERY_INTERFACE)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_files_that_are_mounted_exist(name):
    mounts = [mount.split(":")[0] for mount in SERVICES[name].get("volumes", [])]

    named = [mount for mount in mounts if not mount.startswith(".")]
    assert [m for m in mounts if m.startswith(".") and not (DOCKER / m).exists()] == []
    assert set(named) <= COMPOSE["volumes"].keys()


def test_ports_are_open_to_this_machine_only():
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert published
    assert not any("ports" in SERVICES[name] for name in OURS)
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


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))
