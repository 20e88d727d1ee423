"""Rows to jobs in processes of their own: the command as a person types it, and a plain program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import PROGRAM

SOURCES = Path(__file__).parents[3] / "src"
# A session of its own takes half a minute to start on a busy machine.
RUN_S_MAX = 200
QUERY = "select id, concat('to ', id) text from input where id is null or id < '5'"


@pytest.mark.timeout(RUN_S_MAX + 30)
@pytest.mark.takes_turns
def test_rows_of_a_query_over_files_become_jobs(url, queue_name, ready, tmp_path):
    lines = [json.dumps({"id": str(at)}) for at in range(10)] + ['{"id": null}']
    (tmp_path / "rows.json").write_text("\n".join(lines))

    done = subprocess.run(
        [*PROGRAM, "spark", "enqueue", "--queue", queue_name, "--json-lines", "rows.json",
         "--sql", QUERY, "--id-column", "id", "--name", "mail", "--on-error", "skip",
         "--master", "local[1]", "--redis-url", url, "--json"],
        env=os.environ | {"PYTHONPATH": str(SOURCES)}, cwd=tmp_path, capture_output=True,
        text=True, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    said = json.loads(done.stdout)
    assert (said["rows"], said["added"], said["faults"]) == (6, 5, {"no id": 1})
    assert sorted(ready()) == [(f"{at}", "mail", {"text": f"to {at}"}) for at in range(5)]


@pytest.mark.timeout(RUN_S_MAX + 30)
@pytest.mark.takes_turns
def test_a_program_with_a_plain_session_and_another_python_on_its_path_fills_a_queue(
    url, queue_name, ready, tmp_path
):
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    other.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    env |= {"PATH": f"{tmp_path}:{env['PATH']}", "PYTHONPATH": str(SOURCES)}

    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("plain_program.py")), url, queue_name],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["added"] == len(ready()) == 3
