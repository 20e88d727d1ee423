"""What needs no Spark: masters, figures of a run, paces, and words that are refused early."""

from __future__ import annotations

import pytest

from chasquimq.cli.app import main
from chasquimq.cli.spark.worker import _host
from chasquimq.errors import SettingsError
from chasquimq.spark.workers.board import Board, Record, stop_runs
from chasquimq.spark.workers.hosting import RESTART_MS_MAX, new_worker, restart_ms
from chasquimq.spark.workers.run import RESUBMIT_MS_MAX, resubmit_ms
from chasquimq.spark.workers.settings import RunSettings, workers_conf, workers_master
from chasquimq.spark.workers.tally import ALIVE_S, FORGET_S, Tally
from support.noted_runs import HANDLERS, connection, host


@pytest.mark.parametrize(
    ("master", "made"),
    [
        ("local[*]", "local[3,10000]"),
        ("local[4]", "local[4,10000]"),
        ("local[4,2]", "local[4,2]"),
        ("spark://here:7077", "spark://here:7077"),
        ("local-cluster[2,1,512]", "local-cluster[2,1,512]"),
    ],
)
def test_a_local_master_has_a_slot_for_each_task_and_starts_tasks_again(master, made):
    assert workers_master(master, 3) == made


@pytest.mark.parametrize("master", ["local", "local[2]", "local[2,8]"])
def test_a_master_without_a_slot_for_each_task_is_refused(master):
    with pytest.raises(SettingsError, match=r"local\[3\]"):
        workers_master(master, 3)


def test_a_setting_of_spark_that_was_given_wins():
    conf = workers_conf({"spark.task.maxFailures": "3"})

    assert conf["spark.task.maxFailures"] == "3"
    assert conf["spark.speculation"] == "false"


def test_fewer_than_one_task_is_refused(queue_name):
    with pytest.raises(SettingsError, match="tasks"):
        RunSettings(host=host("redis://127.0.0.1:1", queue_name), tasks=0)


def test_a_silent_task_counts_as_dead_and_keeps_its_figures():
    tally = Tally(2, 0.0)
    silent, other = record(1, completed=10, buried=2), record(2, partition=1, completed=5)
    tally.note([silent, other], 1.0)
    tally.note([silent, record(2, partition=1, beat=1, completed=7)], ALIVE_S + 2)

    progress = tally.progress(ALIVE_S + 2)

    assert (progress.alive, progress.starts, progress.completed, progress.buried) == (1, 2, 17, 2)
    assert progress.seconds == ALIVE_S + 2


def test_figures_of_forgotten_attempts_stay_in_the_sums():
    tally = Tally(1, 0.0)
    tally.note([record(1, completed=10)], 1.0)
    tally.note([record(2, completed=3)], FORGET_S)

    forgotten = tally.over(FORGET_S + 2)

    assert [one.attempt for one in forgotten] == [1]
    assert tally.progress(FORGET_S + 2).completed == 13


def test_an_attempt_that_ended_is_forgotten_while_its_note_still_hangs_there():
    tally = Tally(1, 0.0)
    for now_s in range(1, int(FORGET_S) + 3):
        tally.note([record(1, has_ended=True, completed=4)], float(now_s))

    assert [one.attempt for one in tally.over(FORGET_S + 2)] == [1]
    assert tally.progress(FORGET_S + 2).completed == 4


def test_a_task_that_was_started_again_counts_once_and_keeps_all_figures():
    tally = Tally(2, 0.0)
    tally.note([record(1, completed=10, running=3), record(2, partition=1, running=4)], 1.0)
    tally.note([record(3, completed=5, running=2)], 2.0)

    progress = tally.progress(2.0)

    assert (progress.alive, progress.starts, progress.completed) == (2, 3, 15)
    assert progress.running == 6


def test_an_ended_task_is_not_alive():
    tally = Tally(1, 0.0)
    tally.note([record(1, has_ended=True)], 1.0)

    assert tally.progress(1.0).alive == 0


def test_paces_grow_and_have_a_bound():
    assert [restart_ms(deaths) for deaths in range(4)] == [0, 200, 400, 800]
    assert [resubmit_ms(failures) for failures in (1, 2, 3)] == [1_000, 2_000, 4_000]
    assert (restart_ms(99), resubmit_ms(99)) == (RESTART_MS_MAX, RESUBMIT_MS_MAX)


async def test_notes_of_a_run_expire_and_its_flag_is_its_own(url, queue_name, raw):
    ours, other = (Board(queue_name, connection(url, queue_name), run) for run in ("a", "b"))
    ours.open()
    other.open()
    other.stop()

    assert ours.note(record(1, completed=4)) is False
    assert other.note(record(1)) is True
    assert ours.records() == [record(1, completed=4)]
    assert min([await raw("TTL", key) for key in await raw("KEYS", f"*{queue_name}*")]) > 0
    ours.clear()
    assert stop_runs(queue_name, connection(url, queue_name)) == ["b"]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--handler", "no_such_module:run"], 2, "there is no module 'no_such_module'"),
        (["--handler", "noting_handlers:nobody"], 2, "has no 'nobody'"),
        (["--handler", "noting_handlers:note", "--tasks", "0"], 2, "whole number from 1"),
        (["--handler", "noting_handlers:note", "--master", "sc://here"], 2, "Spark Connect"),
        (["--handler", "noting_handlers:note", "--master", "local[1]"], 2, "local[2]"),
        (["--handler", "noting_handlers:note", "--py-files", "nowhere.zip"], 1, "must be there"),
        (
            ["--handler", "noting_handlers:note", "--lease", "1ms"],
            2,
            "'--lease': claim_min_idle_ms",
        ),
        (["--handler", "noting_handlers:note"], 1, "127.0.0.1:1"),
    ],
    ids=["module", "function", "tasks", "connect", "slots", "files", "lease", "server"],
)
def test_what_cannot_run_is_refused_before_spark_starts(
    monkeypatch, capsys, queue_name, words, code, sentence
):
    monkeypatch.chdir(HANDLERS)
    monkeypatch.syspath_prepend(str(HANDLERS))
    nobody = ["--queue", queue_name, "--redis-url", "redis://127.0.0.1:1"]

    assert main(["spark", "worker", *nobody, *words]) == code

    told = capsys.readouterr().err
    assert sentence in told
    assert "starting Spark" not in told


READY_MADE = """
from chasquimq import Worker

async def note(job):
    return

unnamed = Worker("{queue}", note)
named = Worker("{queue}", note, redis_url="redis://me:canary@127.0.0.1:2")
patient = Worker("{queue}", note, shutdown_deadline_ms=90_000)
"""


@pytest.fixture
def ready_made(tmp_path, monkeypatch, queue_name):
    """A folder with Workers, in a module that no other test has imported."""
    module = f"ready_{queue_name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(READY_MADE.format(queue=queue_name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


async def test_the_url_travels_to_a_worker_that_names_none(ready_made, url, queue, queue_name):
    worker = new_worker(host(url, queue_name, f"{ready_made}:unnamed"), "c")
    await queue.add("note", 1)

    await worker.run_until_idle()

    assert (await queue.counts()).backlog == 0


def test_a_worker_that_names_its_server_keeps_it_in_tasks(ready_made, url, queue_name):
    worker = new_worker(host(url, queue_name, f"{ready_made}:named"), "c")

    assert worker.named_url == "redis://me:canary@127.0.0.1:2"


@pytest.mark.parametrize(("given_ms", "deadline_ms"), [(None, 90_000), (5_000, 5_000)])
def test_a_run_waits_as_long_as_its_worker_unless_it_is_told_how_long(
    ready_made, url, queue_name, given_ms, deadline_ms
):
    made = f"{ready_made}:patient"

    settings = _host(queue_name, made, {}, given_ms, url)

    assert settings.options == {"shutdown_deadline_ms": deadline_ms}
    assert new_worker(settings, "c").shutdown_deadline_ms == deadline_ms


def test_an_option_about_jobs_is_refused_for_a_worker_by_its_name(capsys, ready_made, queue_name):
    words = ["--queue", queue_name, "--handler", f"{ready_made}:unnamed", "--max-attempts", "3"]

    assert main(["spark", "worker", *words]) == 2

    assert "so --max-attempts cannot be given here; leave it out" in capsys.readouterr().err


def test_a_worker_that_names_its_server_is_not_told_another(capsys, ready_made, url, queue_name):
    words = ["--queue", queue_name, "--handler", f"{ready_made}:named", "--redis-url", url]

    assert main(["spark", "worker", *words]) == 2

    told = capsys.readouterr().err
    assert "'--redis-url'" in told
    assert "redis://me:***@127.0.0.1:2, which this Worker names" in told
    assert "starting Spark" not in told


def test_the_server_that_a_worker_names_is_the_one_that_is_checked(capsys, ready_made, queue_name):
    words = ["--queue", queue_name, "--handler", f"{ready_made}:named"]

    assert main(["spark", "worker", *words]) == 1

    assert "127.0.0.1:2" in capsys.readouterr().err


def test_stop_says_when_nothing_runs(capsys, url, queue_name):
    assert main(["spark", "stop", "--queue", queue_name, "--redis-url", url]) == 1

    assert f"no workers of {queue_name} run on Spark" in capsys.readouterr().err


def record(attempt: int, partition: int = 0, **figures) -> Record:
    return Record(partition=partition, attempt=attempt, **figures)
