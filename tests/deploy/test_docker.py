"""The image is made of files that exist, runs as nobody in particular and hears its signals."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from shutil import copy2, copytree

import pytest

from deploy.kit import COMPOSE, DEPLOY, EVERY_INTERFACE, ROOT, parsed, run

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
PIN = re.compile(r"^([\w.-]+)==([^;\s]+)", re.MULTILINE)


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
    assert [rest.split()[0] for word, rest in STEPS if word == "FROM"] == ["python:3.12-slim"] * 2
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final("USER"))


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

    scripts = {path.name for path in (ROOT / "src/chasquimq/store/scripts").rglob("*.lua")}
    packed = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert scripts <= packed
    said = run([str(site / "bin/chasqui"), "--version"], PYTHONPATH=str(site))
    assert said.startswith("chasqui ")


def put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        copytree(source, target)
    else:
        copy2(source, target)


def pip(*args: str) -> None:
    # A checkout's own environment is filled from outside, and has no pip.
    python = str(Path(sys.base_prefix) / "bin" / "python3")
    run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", *args])
