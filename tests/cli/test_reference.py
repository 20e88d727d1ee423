"""The page of commands lists every command and every option, and none that is not there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from chasquimq.cli.app import COMMANDS, load_command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/cli.md").read_text()
# Told once, at the top of the page.
COMMON = {"--redis-url", "--redis-url-file", "--json", "--help"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def leaves() -> list[tuple[str, str, click.Command]]:
    """Every command that can be run: its section, its words and itself."""
    found = []
    for name in sorted(COMMANDS):
        command = load_command(COMMANDS[name].target)
        if isinstance(command, click.Group):
            found += [(name, f"{name} {sub}", one) for sub, one in commands_of(command)]
        else:
            found.append((name, name, command))
    return found


def commands_of(group: click.Group) -> list[tuple[str, click.Command]]:
    ctx = click.Context(group)
    found = [(name, group.get_command(ctx, name)) for name in group.list_commands(ctx)]
    return [(name, command) for name, command in found if command is not None]


def section(name: str) -> str:
    heading = f"\n## `chasqui {name}`\n"
    return heading + PAGE.partition(heading)[2].partition("\n## ")[0]


def options(command: click.Command) -> set[str]:
    shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return {name for option in shown for name in option.opts if name.startswith("--")}


@pytest.mark.parametrize(("name", "words", "command"), leaves(), ids=lambda value: str(value)[:30])
def test_a_command_is_on_the_page_with_its_options(name, words, command):
    text = section(name)

    assert f"`chasqui {words}" in text
    assert options(command) - COMMON - set(OPTION.findall(text)) == set()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_page_names_no_option_that_a_command_does_not_have(name):
    known = {option for top, _, command in leaves() if top == name for option in options(command)}

    assert set(OPTION.findall(section(name))) - COMMON <= known


def test_every_command_that_answers_can_do_so_in_json():
    silent = [words for _, words, command in leaves() if "--json" not in options(command)]

    assert silent == ["completion"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(shell):
    said = _run("completion", shell)

    assert "_CHASQUI_COMPLETE" in said


def test_words_are_completed():
    said = _run(_CHASQUI_COMPLETE="bash_complete", COMP_WORDS="chasqui dlq re", COMP_CWORD="2")

    assert said == "plain,replay\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script():
    checked = subprocess.run(
        ["bash", "-n"], input=_run("completion", "bash"), text=True, check=False
    )

    assert checked.returncode == 0


def _run(*args: str, **variables: str) -> str:
    command = [sys.executable, "-m", "chasquimq", *args]
    environ = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
