"""The commands of the kit serve what the kit asks for, and the health check of the image sees it."""

from __future__ import annotations

import json
import re
import sys

import pytest

from chasquimq.telemetry.http import MetricsServer
from deploy.exported import SCRAPE_LABELS, exported, series
from deploy.kit import COMPOSE, DEPLOY, on_loopback

DOCKERFILE = (DEPLOY / "docker/Dockerfile").read_text()
HEALTH_CHECK = json.loads(re.search(r"HEALTHCHECK .*\\\n\s+CMD (\[.+\])\n", DOCKERFILE)[1])
COMMANDS = {name: COMPOSE["services"][name]["command"] for name in ("worker", "metrics")}
pytestmark = pytest.mark.takes_turns


@pytest.fixture
def served(chasqui, queue_name):
    """A service of the compose file, on the queue of the test."""

    def run(name: str, *more: str):
        words = [queue_name if word == "orders" else word for word in on_loopback(COMMANDS[name])]
        return chasqui(*words, *more)

    return run


@pytest.fixture
def checked(start):
    """The exit code of the image's health check."""

    async def run(port: int) -> int:
        command = [sys.executable, *HEALTH_CHECK[1:]]
        return await start(command, HEALTH_PORT=str(port), http_proxy="http://127.0.0.1:1").ended()

    return run


async def test_a_worker_exports_nothing_that_these_tests_do_not_know(served, get, queue):
    port = await served("worker", "--store-results").port()
    job = await queue.add("mail", 1)
    await job.wait_for_result(timeout=20)

    status, page = await get(port)

    assert status == 200
    assert_known(page, "chasquimq_worker_consuming")


async def test_the_depths_are_none_that_these_tests_do_not_know(served, get, queue):
    await queue.add("mail", 1, delay_ms=60_000)

    status, page = await get(await served("metrics").port())

    assert status == 200
    assert_known(page, "chasquimq_queue_delayed")


@pytest.mark.parametrize("name", sorted(COMMANDS))
async def test_the_health_check_passes_while_a_service_answers(served, checked, name):
    assert await checked(await served(name).port()) == 0


async def test_the_health_check_fails_when_nobody_answers_or_all_is_not_well(checked):
    sick = MetricsServer(bytes, is_healthy=lambda: False, is_ready=lambda: True)
    async with sick:
        port = sick.port
        assert await checked(port) == 1

    assert await checked(port) == 1


def assert_known(page: str, wanted: str) -> None:
    found = {name: labels for name, labels in series(page) if name.startswith("chasquimq_")}
    assert wanted in found
    assert found == {name: exported()[name] - SCRAPE_LABELS for name in found}
