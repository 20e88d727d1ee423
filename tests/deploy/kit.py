"""The files of the kit, read as those read them who run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from chasquimq.cli.app import COMMANDS, load_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yml").read_text())
Manifests = list[dict[str, Any]]
# A container is reached from outside of it; which of its ports is open is said elsewhere.
EVERY_INTERFACE = "0.0.0.0"


OVERLAYS = ("mails", "orders", "shared", "thumbnails")
RENDERED = Path(__file__).with_name("rendered")


@cache
def rendered(overlay: str) -> Manifests:
    """What an overlay renders to, as it was recorded; `test_kustomize.py` says whether it still is."""
    return list(yaml.safe_load_all((RENDERED / f"{overlay}.yaml").read_text()))


def one(manifests: Manifests, kind: str, name: str | None = None) -> dict[str, Any]:
    """The only manifest of this kind and name."""
    of_kind = [one for one in manifests if one["kind"] == kind]
    (found,) = [one for one in of_kind if name in (None, one["metadata"]["name"])]
    return found


def pod(overlay: str, name: str | None = None) -> dict[str, Any]:
    """What a Deployment runs."""
    return one(rendered(overlay), "Deployment", name)["spec"]["template"]["spec"]


def container(overlay: str, name: str | None = None) -> dict[str, Any]:
    """The only container of a Deployment, with the variables of its ConfigMap in its arguments."""
    (found,) = pod(overlay, name)["containers"]
    environ = {}
    if "envFrom" in found:
        ((source,),) = (list(one.values()) for one in found["envFrom"])
        environ = one(rendered(overlay), "ConfigMap", source["name"])["data"]
    return found | {"args": [_expanded(word, environ) for word in found["args"]]}


def _expanded(word: str, environ: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda name: environ[name[1]], word)


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
