"""Workflows of the forge and hooks of git run what exists, with few rights and pinned actions."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from supply.pins import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
NAMES = [path.stem for path in WORKFLOWS]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
USES = re.compile(r"^\s*-? ?uses: (\S+)(.*)$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
# What a pull request of a stranger could start with rights, or name itself.
RISKY = ("pull_request_target", "workflow_run", "secrets.", "github.event", "write-all")
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in NAMES:
        yield from ((f"{name}.{job}", told) for job, told in workflow(name)["jobs"].items())


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs():
        yield from ((name, step) for step in job.get("steps", []))


def commands() -> list[str]:
    return [step["run"] for _, step in steps() if "run" in step]


def test_there_is_a_workflow_for_the_gate_the_tests_and_publishing():
    assert NAMES == ["gate", "publish", "test"]


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_may_read_the_repository_and_nothing_else(name: str):
    assert workflow(name)["permissions"] == {"contents": "read"}


def test_one_job_may_ask_for_a_token_and_it_runs_no_code_of_the_project():
    granted = {name: job["permissions"] for name, job in jobs() if "permissions" in job}
    publish = workflow("publish")["jobs"]["publish"]

    assert granted == {"publish.publish": {"id-token": "write"}}
    assert publish["environment"] == "release"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact", "pypa/gh-action-pypi-publish",
    ]  # fmt: skip


def test_nothing_is_published_before_the_gate_the_tests_and_the_files_are_there():
    told = workflow("publish")

    # YAML reads the word `on` as true.
    assert told[True] == {"push": {"tags": ["v*"]}}
    assert set(told["jobs"]["publish"]["needs"]) == {"gate", "test", "files"}
    assert all(
        True in workflow(name) and "workflow_call" in workflow(name)[True]
        for name in ("gate", "test")
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=NAMES)
def test_every_action_is_pinned_by_commit_and_says_its_tag(path: Path):
    loose = [
        uses for uses, comment in USES.findall(path.read_text())
        if not (PINNED.fullmatch(uses) and re.fullmatch(r" # v\d+\.\d+\.\d+", comment))
        and not (ROOT / uses).is_file()
    ]  # fmt: skip

    assert loose == []


def test_an_action_has_the_same_commit_everywhere():
    used = {step["uses"] for _, step in steps() if "uses" in step}

    assert len(used) == len({one.partition("@")[0] for one in used})


@pytest.mark.parametrize("path", WORKFLOWS, ids=NAMES)
def test_a_stranger_cannot_start_a_workflow_with_rights_or_write_its_commands(path: Path):
    text = path.read_text()

    assert [word for word in RISKY if word in text] == []
    assert {name.partition(".")[0] for run in commands() for name in EXPRESSION.findall(run)} <= {
        "matrix"
    }


def test_a_checkout_keeps_no_credentials_and_every_job_ends():
    checkouts = [
        step for _, step in steps() if step.get("uses", "").startswith("actions/checkout@")
    ]

    assert len(checkouts) == 4
    assert [one["with"]["persist-credentials"] for one in checkouts] == [False] * 4
    assert [name for name, job in jobs() if "steps" in job and "timeout-minutes" not in job] == []


def test_every_command_of_a_workflow_exists():
    for command in commands():
        program, *words = shlex.split(EXPRESSION.sub("3.11", command))
        if program == "make":
            done = subprocess.run(
                ["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
        else:
            assert (program, words) == ("./chasqui", ["test"])


def test_the_pythons_are_the_same_everywhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    lock = __import__("lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classified = re.findall(r":: (3\.\d+)", "\n".join(project["classifiers"]))

    assert workflow("test")["jobs"]["matrix"]["strategy"]["matrix"]["python"] == PYTHONS
    assert (classified, list(lock.PYTHONS)) == (PYTHONS, PYTHONS)
    assert f"PYTHONS ?= {' '.join(PYTHONS)}\n" in MAKEFILE


def test_the_matrix_names_tests_that_exist(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import matrix

    paths = [word.removeprefix("--ignore=") for word in matrix.TESTS]

    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_python_that_is_not_there_is_named_and_does_not_count_as_passed(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import matrix

    assert matrix.main(["3.99"]) == 1
    assert "Python 3.99: not found on this machine" in capsys.readouterr().out


def test_hooks_run_tools_of_the_project_and_fetch_nothing():
    (repo,) = HOOKS["repos"]
    entries = {hook["id"]: shlex.split(hook["entry"]) for hook in repo["hooks"]}

    assert repo["repo"] == "local"
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}
    assert entries["gate"] == ["./chasqui", "gate"]
    assert [entries[one][:4] for one in ("lint", "format")] == [
        [".venv/bin/python", "-m", "ruff", "check"], [".venv/bin/python", "-m", "ruff", "format"],
    ]  # fmt: skip


def test_hooks_refuse_what_is_not_used_and_mend_how_it_looks(tmp_path: Path):
    (repo,) = HOOKS["repos"]
    entries = {hook["id"]: shlex.split(hook["entry"]) for hook in repo["hooks"]}
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nx = {  'a':1 }\n")

    codes = {
        name: subprocess.run([*entries[name], bad], cwd=ROOT, capture_output=True, check=False).returncode
        for name in ("lint", "format")
    }  # fmt: skip

    assert codes == {"lint": 1, "format": 0}
    assert bad.read_text() == 'import os\n\nx = {"a": 1}\n'
