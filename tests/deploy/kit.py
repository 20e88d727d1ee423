"""The files of the kit, read as those read them who run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml

from chasquimq.cli.main import COMMANDS, load_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yml").read_text())
# A container is reached from outside of it; which of its ports is open is said elsewhere.
EVERY_INTERFACE = "0.0.0.0"


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def pod(name: str) -> dict[str, Any]:
    """What a Deployment runs."""
    return manifests(name)[0]["spec"]["template"]["spec"]


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """A unit's sections; a key that is given twice has two values."""
    text = (DEPLOY / "systemd" / name).read_text()
    _, *parts = re.split(r"^\[(\w+)\]\n", text, flags=re.MULTILINE)
    return {name: _settings(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _settings(body: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in body.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def variables(name: str) -> dict[str, str]:
    """What an environment file sets."""
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def words(command: str, environ: dict[str, str], instance: str = "orders") -> list[str]:
    """A command line of systemd: ${A} is one word, $A as many as it has."""
    found: list[str] = []
    for word in shlex.split(command.replace("%i", instance)):
        whole = re.fullmatch(r"\$(\w+)", word)
        if whole:
            found += environ[whole[1]].split()
        else:
            found.append(re.sub(r"\$\{(\w+)\}", lambda name: environ[name[1]], word))
    return found


def parsed(args: list[str]) -> dict[str, Any]:
    """The options that `chasqui` takes from these words; raises where it would refuse them."""
    command = load_command(COMMANDS[args[0]].target)
    return command.make_context(args[0], args[1:]).params


def on_loopback(args: list[str]) -> list[str]:
    """The same command for a test: on this machine alone, on any free port."""
    places = {"--host": "127.0.0.1", "--metrics-host": "127.0.0.1", "--port": "0"}
    places["--metrics-port"] = "0"
    found = [(option, args.index(option) + 1) for option in places if option in args]
    given = {at: places[option] for option, at in found}
    return [given.get(at, word) for at, word in enumerate(args)]


def run(command: list[str], cwd: Path | None = None, **variables: str) -> str:
    """What a command prints; it must end well."""
    said = subprocess.run(
        command, cwd=cwd, env=os.environ | variables,
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout
