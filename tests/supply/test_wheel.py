"""The wheel holds the library and its commands: no benchmarks, and no failpoint that a worker reaches."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from supply.pins import ROOT

TOPS = {
    "chasquimq", "pyspark_chasqui.py", "pyspark_chasqui_events.py", "pyspark_chasqui_history.py",
}  # fmt: skip
LOADED = """
import asyncio, sys
from chasquimq import Queue, Worker

async def handle(job): pass

async def main(url, name):
    async with Queue(name, redis_url=url) as queue:
        await queue.add("n", 1)
        await Worker(name, handle, redis_url=url).run_until_idle()

asyncio.run(main(*sys.argv[1:]))
import chasquimq
print(chasquimq.__file__)
print([one for one in sys.modules if "testing" in one or "failpoint" in one or "bench" in one])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with what the wheel installs."""
    made, site = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", made],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = made.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    return site


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A Python that has the wheel and not the checkout."""
    return subprocess.run(
        [sys.executable, *words], cwd=site, env=os.environ | {"PYTHONPATH": str(site)},
        text=True, capture_output=True, timeout=50, check=False,
    )  # fmt: skip


def imports(path: Path) -> set[str]:
    """The dotted names of all that a file imports, anywhere in it."""
    tree = ast.walk(ast.parse(path.read_text()))
    nodes = [node for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {one.module or "" for one in nodes if isinstance(one, ast.ImportFrom)}
    names = {f"{getattr(one, 'module', '')}.{alias.name}" for one in nodes for alias in one.names}
    return modules | {name.lstrip(".") for name in names}


def test_the_wheel_holds_the_library_and_nothing_beside_it(site):
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == TOPS
    assert [path for path in site.rglob("*") if "benchmarks" in path.parts] == []
    assert [path.name for path in site.rglob("*") if path.suffix in (".mjs", ".png")] == []


def test_only_the_failpoints_know_of_failpoints(site):
    files = {path.relative_to(site / "chasquimq"): path for path in site.rglob("chasquimq/**/*.py")}
    production = {name: path for name, path in files.items() if name.parts[0] != "testing"}

    assert len(production) > 100
    assert {
        str(name) for name, path in production.items() if "failpoint" in path.read_text()
    } == set()
    assert {
        str(name) for name, path in production.items()
        if any(one.startswith("chasquimq.testing") for one in imports(path))
    } == set()  # fmt: skip


def test_a_worker_of_the_wheel_loads_neither(site, url, queue_name, monkeypatch):
    monkeypatch.setenv("CHASQUI_FAIL", "before_ack_sent:1:exit")

    done = run(site, "-c", LOADED, url, queue_name)

    assert done.returncode == 0, done.stderr
    file, loaded = done.stdout.splitlines()
    assert Path(file).is_relative_to(site)
    assert loaded == "[]"


@pytest.mark.parametrize("words", [(), ("--quick",), ("--help",), ("consume-100", "--rounds", "9")])
def test_the_bench_says_that_it_needs_a_checkout(site, words):
    done = run(site, "-m", "chasquimq", "bench", *words)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: chasqui bench needs a checkout of the project, and this is an installed package "
        "without the benchmarks; run ./chasqui bench in a checkout\n"
    )


def test_all_commands_are_listed_and_completed_without_the_benchmarks(site, monkeypatch):
    assert " bench " in run(site, "-m", "chasquimq", "--help").stdout

    monkeypatch.setenv("_CHASQUI_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "chasqui be")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "bench" in run(site, "-m", "chasquimq").stdout
