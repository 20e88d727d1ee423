"""The image is made of files that exist, runs as nobody in particular and hears its signals."""

from __future__ import annotations

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

import pytest
from packaging.requirements import Requirement

from deploy.kit import COMPOSE, DEPLOY, EVERY_INTERFACE, ROOT, parsed, run
from supply.pins import pins_in

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
IMAGE = "${PYTHON_IMAGE}${PYTHON_DIGEST:+@$PYTHON_DIGEST}"
# Where a step of the build is at home in the image.
PLACES = ("/venv", "/builder", "/wheel")


def final(word: str) -> str:
    (found,) = [rest for step, rest in FINAL if step == word]
    return found


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_exists_and_is_sent(source):
    assert (ROOT / source).exists()
    assert source in KEPT


def test_nothing_is_sent_that_is_not_copied():
    assert "*" in IGNORE
    assert sorted(KEPT) == sorted(COPIED)
    assert any(fnmatch("src/chasquimq/__pycache__", pattern) for pattern in IGNORE)


def test_the_image_is_small_and_runs_as_nobody_in_particular():
    assert [rest.split()[0] for word, rest in STEPS if word == "FROM"] == [IMAGE] * 2
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final("USER"))


def test_the_base_image_is_one_exact_version_and_may_be_one_exact_digest():
    arguments = dict(rest.split("=", 1) for word, rest in STEPS[:2] if word == "ARG")

    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", arguments["PYTHON_IMAGE"])
    assert arguments["PYTHON_DIGEST"] == ""
    assert arguments["PYTHON_IMAGE"] in TEXT.split("ARG ")[0], "its look-up names the same image"


@pytest.mark.parametrize("command", [rest for word, rest in BUILD if "install" in rest])
def test_nothing_is_installed_that_has_no_pinned_hash(command):
    if "--no-index" in command:
        assert command.startswith("--network=none ")
    else:
        assert "--require-hashes --only-binary :all: -r requirements/" in command


def test_the_signal_reaches_the_command_itself():
    assert final("STOPSIGNAL") == "SIGTERM"
    assert json.loads(final("ENTRYPOINT")) == ["chasqui"]


def test_the_health_check_asks_the_port_that_the_worker_serves():
    python, *flags, program = json.loads(final("HEALTHCHECK").partition("CMD ")[2])
    (port,) = [value for word, value in FINAL if word == "ENV" and value.startswith("HEALTH_PORT")]

    assert (python, flags) == ("python", ["-I", "-S", "-c"])
    assert "/healthz" in program
    assert port == f"HEALTH_PORT={parsed(SERVICES['worker']['command'])['metrics_port']}"


def test_the_command_in_the_head_of_the_dockerfile_can_be_run():
    head = re.sub(r" \\\n#\s+", " ", TEXT)
    options = parsed(json.loads(re.search(r"^#   CMD (\[.*\])$", head, re.MULTILINE)[1]))

    assert (options["metrics_host"], options["metrics_port"]) == (EVERY_INTERFACE, 9470)


def test_the_image_has_nothing_but_what_was_built():
    assert [rest for word, rest in FINAL if word in ("COPY", "ADD")] == ["--from=build /venv /venv"]


def test_the_image_holds_what_the_documented_extras_of_a_worker_ask_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {Requirement(one).name for extra in ("fast", "prometheus") for one in extras[extra]}

    assert wanted <= {pin.name for pin in pins_in("worker.txt")}
    assert "requirements/worker.txt" in COPIED


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_steps_of_the_build_make_an_environment_that_runs(tmp_path):
    checkout = tmp_path / "build"
    checkout.mkdir()
    for word, rest in BUILD:
        if word == "COPY":
            *sources, _ = rest.split()
            for source in sources:
                put(ROOT / source, checkout / source)
        if word == "RUN":
            take_step(rest, tmp_path, checkout)

    (wheel,) = (tmp_path / "wheel").iterdir()
    scripts = {path.name for path in (ROOT / "src/chasquimq/store/scripts").rglob("*.lua")}
    assert scripts <= {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    python = str(tmp_path / "venv/bin/python")
    assert run([str(tmp_path / "venv/bin/chasqui"), "--version"]).startswith("chasqui ")
    run([python, "-c", "import uvloop, prometheus_client, chasquimq"])
    assert run([python, "-c", "import importlib.util as u; print(u.find_spec('pip'))"]) == "None\n"


def take_step(command: str, image: Path, checkout: Path) -> None:
    """Run a step of the build in a directory that stands for the image."""
    offline = {"PIP_NO_INDEX": "1", "HTTPS_PROXY": "http://127.0.0.1:1"}
    is_offline = command.startswith("--network=none ")
    line = command.removeprefix("--network=none ")
    for place in PLACES:
        line = re.sub(rf"(?<!\S){place}", str(image) + place, line)
    python = f"{sys.base_prefix}/bin/python3"
    line = re.sub(r"(?<!\S)python ", f"{python} ", line)
    line = re.sub(r"(?<!\S)pip ", f"{python} -m pip ", line)
    environ = {**os.environ, **(offline if is_offline else {})}
    subprocess.run(["sh", "-ec", line], cwd=checkout, env=environ, check=True)


def put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        copytree(source, target)
    else:
        copy2(source, target)
