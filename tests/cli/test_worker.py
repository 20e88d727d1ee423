"""`chasqui worker` runs a user's handlers, stops as it is asked to, and keeps its processes alive."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from chasquimq import Queue
from chasquimq.cli.worker import RESTART_MS_MAX, restart_ms
from chasquimq.model.stop_signals import ECHO_S
from support.command import PROGRAM
from support.waiting import eventually

SOURCES = Path(__file__).parents[2] / "src"
TASKS = """
import asyncio
import os
import time

from chasquimq import Queue, Worker
from chasquimq.telemetry.memory import InMemorySink


async def send(job):
    await asyncio.sleep(job.data if isinstance(job.data, float) else 0)
    return os.getpid()


def stuck(job):
    time.sleep(1_000)


async def die(job):
    os._exit(9)


def forgetful():
    return


handlers = {"send": send, "stuck": stuck, "die": die}
mixed = {"send": send, "forget": forgetful}
number = 5


class Mails:
    async def send(self, job):
        return "sent by an object"


mails = Mails()
ready_made = Worker(os.environ.get("QUEUE", "q"), send, redis_url=os.environ["CHASQUI_REDIS_URL"])
counted = InMemorySink()


def show_counts(worker):
    print("counted", counted.jobs_completed(), flush=True)


own_sink = Worker(os.environ.get("QUEUE", "q"), handlers, metrics=counted, on_shutdown=show_counts)
unnamed = Worker(os.environ.get("QUEUE", "q"), send, store_results=True)
next_step = Queue(os.environ.get("QUEUE", "q") + "-next")


async def pass_on(job):
    await next_step.add("next", job.data)
"""

TRACED = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import set_tracer_provider

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
set_tracer_provider(provider)


async def send(job):
    return
"""
pytestmark = pytest.mark.takes_turns


@pytest.fixture(autouse=True)
def tasks(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "broken.py").write_text("import json\njson.loads('{')\n")
    (tmp_path / "unfinished.py").write_text("def handler(:\n")
    (tmp_path / "needy.py").write_text("import no_such_thing\n")


async def test_a_function_runs_the_jobs_of_its_queue(running, queue, queue_name):
    worker = running("worker", "tasks:send", "--queue", queue_name, "--store-results")
    job = await queue.add("anything", 1)

    assert await job.wait_for_result(timeout=20) == worker.process.pid
    await worker.until_said("consuming queue")
    assert await worker.ended(signal.SIGTERM) == 0
    assert worker.out == ""


async def test_a_server_that_is_started_for_a_worker_is_a_warning(running, queue_name, tmp_path):
    nowhere = {"CHASQUI_REDIS_URL": "", "XDG_RUNTIME_DIR": "/tmp", "CHASQUI_SERVER_BIN": ""}
    (tmp_path / "plain.py").write_text("async def send(job): ...")
    worker = running("worker", "plain:send", "--queue", queue_name, **nowhere)
    await worker.until_said("consuming queue")
    stop = (*PROGRAM, "server", "stop")

    assert await worker.ended(signal.SIGTERM) == 0
    environ = os.environ | {"PYTHONPATH": str(SOURCES)} | nowhere
    folder = tmp_path / "running-0"
    await asyncio.to_thread(subprocess.run, stop, env=environ, cwd=folder, check=True)
    assert re.search(
        r"WARNING \S+: no server was named, started one for this project at unix://\S+; set "
        r"CHASQUI_REDIS_URL for production\n", worker.err,
    )  # fmt: skip


async def test_a_dict_and_an_attribute_of_an_object_are_handlers_too(running, queue, queue_name):
    running("worker", "tasks:handlers", "--queue", queue_name, "--store-results")
    running("worker", "tasks:mails.send", "--queue", f"{queue_name}-2", "--store-results")

    job = await queue.add("send", 1)

    assert isinstance(await job.wait_for_result(timeout=20), int)


async def test_a_ready_made_worker_brings_its_settings(running, queue, queue_name):
    worker = running("worker", "tasks:ready_made", QUEUE=queue_name)
    await worker.until_said("consuming")

    await queue.add("send", 1)

    await eventually(lambda: _is_done(queue), within_s=10)
    assert await worker.ended(signal.SIGINT) == 130


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_that_names_no_server_takes_the_one_that_is_found(
    running, queue, queue_name, processes
):
    worker = running("worker", "tasks:unnamed", "--processes", processes, QUEUE=queue_name)
    await worker.until_said("consuming")
    job = await queue.add("send", 1)

    assert isinstance(await job.wait_for_result(timeout=20), int)
    assert await worker.ended(signal.SIGTERM) == 0


async def test_a_worker_that_names_no_server_takes_the_one_that_is_given(
    running, queue, queue_name, url
):
    elsewhere = {"QUEUE": queue_name, "CHASQUI_REDIS_URL": "redis://127.0.0.1:1"}
    running("worker", "tasks:unnamed", "--redis-url", url, **elsewhere)
    job = await queue.add("send", 1)

    assert isinstance(await job.wait_for_result(timeout=20), int)


@pytest.mark.parametrize("more", [("--pool", "thread"), ("--processes", "2")], ids=["one", "two"])
async def test_a_queue_of_a_handler_that_names_no_server_takes_that_of_its_worker(
    running, queue, queue_name, url, more
):
    elsewhere = {"QUEUE": queue_name, "CHASQUI_REDIS_URL": "redis://127.0.0.1:1"}
    running(
        "worker", "tasks:pass_on", "--queue", queue_name, "--redis-url", url, *more, **elsewhere
    )
    await queue.add("first", 1)

    async with Queue(f"{queue_name}-next", redis_url=url) as passed_on:
        await eventually(lambda: _is_one_ready(passed_on), within_s=20)


async def _is_one_ready(queue) -> bool:
    return (await queue.counts()).ready == 1


@pytest.mark.parametrize("more", [(), ("--check",), ("--processes", "2")])
async def test_a_worker_that_names_its_server_is_not_told_another(bare_program, more):
    said = await bare_program("worker", "tasks:ready_made", "--redis-url", "unix:///x.sock", *more)

    assert (said.code, said.out) == (2, "")
    assert "'--redis-url'" in said.err
    assert "redis://me:***@127.0.0.1:1" in said.err
    assert "unix:///x.sock" in said.err
    assert said.err.count("\n") == 1


async def test_a_worker_may_be_told_the_server_that_it_names(bare_program):
    said = await bare_program(
        "worker", "tasks:ready_made", "--redis-url", "redis://me:canary@127.0.0.1:1", "--check"
    )

    assert said.code == 0


@pytest.mark.parametrize(
    ("target", "handlers"),
    [("tasks:handlers", "send, stuck, die"), ("tasks:mails.send", "mails.send")],
)
async def test_a_check_says_what_would_be_run(bare_program, target, handlers):
    said = await bare_program("worker", target, "--queue", "photos", "--check")

    assert (said.code, said.out) == (0, f"ok: {handlers} on queue photos\n")


async def test_spans_of_runs_are_handed_over_before_the_process_leaves(
    running, queue, queue_name, tmp_path
):
    (tmp_path / "traced.py").write_text(TRACED)
    worker = running("worker", "traced:send", "--queue", queue_name, "--tracing")
    await worker.until_said("consuming")
    job = await queue.add("mail", 1)
    await eventually(lambda: _is_done(queue), within_s=10)

    assert await worker.ended(signal.SIGTERM) == 0
    span = json.loads(worker.out)
    assert span["name"] == f"execute {queue_name}"
    assert span["attributes"]["messaging.message.id"] == job.id


async def _is_done(queue) -> bool:
    return (await queue.counts()).backlog == 0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tasks", "must be module:attribute"),
        ("nowhere:x", "there is no module 'nowhere'"),
        ("tasks:nothing", "has no 'nothing'"),
        ("tasks:number", "must be a function, a dict of functions by job name, or a Worker"),
        ("broken:x", "importing broken failed: JSONDecodeError"),
        ("unfinished:x", "unfinished.py:1"),
        ("needy:x", "No module named 'no_such_thing'"),
        ("tasks:ready_made", "is a Worker with settings of its own, so --queue other cannot"),
    ],
)
async def test_a_target_that_cannot_run_is_wrong_usage_in_one_line(bare_program, target, words):
    said = await bare_program("worker", target, "--queue", "other")

    assert (said.code, said.out) == (2, "")
    assert words in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("target", ["tasks:forgetful", "tasks:mixed"])
async def test_a_handler_that_takes_no_job_is_wrong_usage(bare_program, target):
    said = await bare_program("worker", target, "--queue", "q", "--check")

    assert (said.code, said.out) == (2, "")
    assert "must be a function that takes one argument, the job" in said.err
    assert said.err.endswith("; it takes ()\n")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--queue", "q", "--lease", "1ms"), "'--lease': claim_min_idle_ms must be at least 200"),
        (("--queue", ""), "'--queue': queue name must be 1 to 128 bytes"),
        (("--queue", "q", "--group", "{"), "'--group': group name must be free of"),
    ],
)
async def test_an_option_that_no_worker_takes_is_named(bare_program, words, sentence):
    said = await bare_program("worker", "tasks:send", *words, "--check")

    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


async def test_without_a_queue_a_function_is_wrong_usage(bare_program):
    said = await bare_program("worker", "tasks:send", "--check")

    assert said.code == 2
    assert "--queue says whose jobs to run" in said.err


async def test_a_server_that_is_not_there_is_code_1(bare_program):
    said = await bare_program("worker", "tasks:send", "--queue", "q")

    assert said.code == 1
    assert said.err.startswith("error: a server must answer at redis://me:***@127.0.0.1:1")


async def test_the_first_signal_lets_running_jobs_end(running, queue, queue_name, raw):
    worker = running("worker", "tasks:send", "--queue", queue_name)
    await worker.until_said("consuming")
    await queue.add("send", 1.0)
    await eventually(raw.pending, within_s=10)

    assert await worker.ended(signal.SIGTERM) == 0
    assert (await queue.counts()).backlog == 0
    assert "stopping when running jobs have ended" in worker.err


async def test_the_second_signal_gives_running_jobs_back_at_once(running, queue, queue_name, raw):
    worker = running("worker", "tasks:send", "--queue", queue_name)
    await worker.until_said("consuming")
    await queue.add("send", 1_000.0)
    await eventually(raw.pending, within_s=10)

    worker.process.send_signal(signal.SIGINT)
    await worker.until_said("stopping when")
    await asyncio.sleep(ECHO_S)
    assert await worker.ended(signal.SIGINT) == 130
    assert [row[1] for row in await raw.pending()] == [b"returned"]


async def test_a_stuck_thread_does_not_hold_the_process(running, queue, queue_name, raw):
    worker = running("worker", "tasks:stuck", "--queue", queue_name, "--deadline", "100ms")
    await worker.until_said("consuming")
    await queue.add("stuck", 1)
    await eventually(raw.pending, within_s=10)

    assert await worker.ended(signal.SIGTERM) == 0
    assert len(await raw.pending()) == 1


async def test_the_log_can_be_json_and_keeps_secrets(running, queue_name, environ):
    worker = running("worker", "tasks:send", "--queue", queue_name, "--json")
    await worker.until_said("consuming")
    await worker.ended(signal.SIGTERM)

    lines = [json.loads(line) for line in worker.err.splitlines()]
    first, *_, last = lines
    assert first["message"].startswith(f"consuming queue {queue_name} of ")
    assert "(CHASQUI_REDIS_URL is set): group default, concurrency 100, worker " in first["message"]
    assert (first["queue"], first["concurrency"]) == (queue_name, 100)
    assert last["message"].startswith(f"worker {first['worker']} of queue {queue_name} ended after")
    assert (last["completed"], last["left_behind"], last["worker"]) == (0, 0, first["worker"])
    assert sum("consuming" in line["message"] for line in lines) == 1
    assert {line["level"] for line in lines} == {"info"}


async def test_metrics_and_health_are_served(running, queue, queue_name):
    worker = running("worker", "tasks:send", "--queue", queue_name, "--metrics-port", "0")
    await worker.until_said("consuming")
    port = re.search(r"http://[\d.]+:(\d+)", worker.err)[1]
    await queue.add("mail", 1)
    await eventually(lambda: _is_done(queue), within_s=10)

    page = await _get(port, "/metrics")
    health, ready = await _get(port, "/healthz"), await _get(port, "/readyz")

    assert f'chasquimq_jobs_completed_total{{name="mail",queue="{queue_name}"}} 1' in page
    assert f'chasquimq_worker_consuming{{queue="{queue_name}"}} 1' in page
    assert (health, ready) == ("ok\n", "ok\n")


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_object_is_served_and_its_own_sink_counts_on(
    running, queue, queue_name, processes
):
    words = ("--metrics-port", "0", "--processes", processes)
    worker = running("worker", "tasks:own_sink", *words, QUEUE=queue_name)
    await worker.until_said("consuming queue", int(processes))
    ports = re.findall(r"http://[\d.]+:(\d+)", worker.err)
    await queue.add_bulk([{"name": "send", "data": 1}] * 3)
    await eventually(lambda: _is_done(queue), within_s=10)

    pages = [await _get(port, "/metrics") for port in ports]
    ready = [await _get(port, "/readyz") for port in ports]
    await worker.ended(signal.SIGTERM)

    assert ready == ["ok\n"] * int(processes)
    line = rf'chasquimq_jobs_completed_total{{name="send",queue="{queue_name}"}} (\d)'
    assert sum(int(count) for page in pages for count in re.findall(line, page)) == 3
    assert sum(int(count) for count in re.findall(r"counted (\d)", worker.out)) == 3


async def test_a_worker_object_with_a_prometheus_sink_of_its_own_is_served_once(
    running, queue, queue_name, tmp_path
):
    (tmp_path / "shown.py").write_text(
        "from chasquimq import Worker\n"
        "from chasquimq.telemetry.prometheus import PrometheusSink\n"
        "from prometheus_client import Counter\n"
        "from tasks import send\n"
        "Counter('mine', 'A number of the application.').inc()\n"
        f"worker = Worker({queue_name!r}, send, metrics=PrometheusSink())\n"
    )
    worker = running("worker", "shown:worker", "--metrics-port", "0")
    await worker.until_said("consuming queue")
    await queue.add("send", 1)
    await eventually(lambda: _is_done(queue), within_s=10)

    page = await _get(re.search(r"http://[\d.]+:(\d+)", worker.err)[1], "/metrics")

    samples = [line for line in page.splitlines() if not line.startswith("#")]
    done = [line for line in samples if line.startswith("chasquimq_jobs_completed_total")]
    assert done == [f'chasquimq_jobs_completed_total{{name="send",queue="{queue_name}"}} 1.0']
    assert "mine_total 1.0" in samples
    assert len(samples) == len(set(samples))


async def test_the_deadline_of_a_worker_object_may_be_given(running, queue, queue_name, raw):
    words = ("--deadline", "100ms")
    worker = running("worker", "tasks:own_sink", *words, QUEUE=queue_name)
    await worker.until_said("consuming queue")
    await queue.add("stuck", 1)
    await eventually(raw.pending, within_s=10)

    began_s = time.monotonic()
    assert await worker.ended(signal.SIGTERM) == 0
    assert time.monotonic() - began_s < 15
    assert "1 left behind" in worker.err


@pytest.mark.parametrize("own", ["", ", tracing=True"], ids=["off", "on already"])
async def test_runs_of_a_worker_object_have_one_span_each(
    running, queue, queue_name, tmp_path, own
):
    (tmp_path / "traced.py").write_text(
        f"{TRACED}\n\nfrom chasquimq import Worker\nworker = Worker({queue_name!r}, send{own})\n"
    )
    worker = running("worker", "traced:worker", "--tracing")
    await worker.until_said("consuming queue")
    await queue.add("mail", 1)
    await eventually(lambda: _is_done(queue), within_s=10)

    assert await worker.ended(signal.SIGTERM) == 0
    assert json.loads(worker.out)["name"] == f"execute {queue_name}"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--queue", "other"), "--queue other"),
        (("--concurrency", "5"), "--concurrency"),
        (("--max-attempts", "5", "--lease", "3s"), "--max-attempts and --lease"),
        (("--pool", "process", "--store-results"), "--pool and --store-results"),
        (("--group", "g"), "--group"),
    ],
)
async def test_options_about_jobs_are_refused_for_a_worker_object_by_name(
    bare_program, words, named
):
    said = await bare_program("worker", "tasks:unnamed", *words, "--check")

    assert (said.code, said.out) == (2, "")
    assert f"so {named} cannot be given here; " in said.err
    assert "where the Worker is made" in said.err
    assert said.err.count("\n") == 1


async def test_a_worker_object_may_be_told_the_queue_that_it_names(bare_program):
    said = await bare_program("worker", "tasks:unnamed", "--queue", "q", "--check")

    assert (said.code, said.err) == (0, "")


async def test_a_metrics_port_that_is_taken_is_code_1(program, running, queue_name):
    worker = running("worker", "tasks:send", "--queue", queue_name, "--metrics-port", "0")
    await worker.until_said("consuming")
    port = re.search(r"http://[\d.]+:(\d+)", worker.err)[1]

    said = await program("worker", "tasks:send", "--queue", queue_name, "--metrics-port", port)

    assert said.code == 1
    assert said.err.splitlines()[-1].startswith(f"error: --metrics-port {port} must be free")


async def test_pages_are_served_on_the_address_that_is_named_and_nowhere_else(running, queue_name):
    words = ("--metrics-port", "0", "--metrics-host", "127.0.0.2")
    worker = running("worker", "tasks:send", "--queue", queue_name, *words)
    await worker.until_said("consuming")
    port = re.search(r"http://127\.0\.0\.2:(\d+)", worker.err)[1]

    assert await _get(port, "/healthz", "127.0.0.2") == "ok\n"
    with pytest.raises(urllib.error.URLError):
        await _get(port, "/healthz", "127.0.0.1")


async def test_every_process_listens_on_the_address_and_has_a_port_of_its_own(running, queue_name):
    words = ("--metrics-port", "0", "--metrics-host", "127.0.0.2", "--processes", "2")
    fleet = running("worker", "tasks:send", "--queue", queue_name, *words)
    await fleet.until_said("consuming", 2)
    ports = re.findall(r"http://127\.0\.0\.2:(\d+)", fleet.err)

    assert [await _get(port, "/healthz", "127.0.0.2") for port in set(ports)] == ["ok\n"] * 2


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "a..b"])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_host_that_is_not_ours_is_code_1_in_one_line(program, queue_name, host, processes):
    words = ("--metrics-port", "0", "--metrics-host", host, "--processes", processes)

    said = await program("worker", "tasks:send", "--queue", queue_name, *words)

    assert said.code == 1
    assert said.err.startswith(f"error: --metrics-host {host} must be an address or a name of this")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [("--metrics-host", "127.0.0.1"), ("--metrics-port", "0", "--metrics-host", "")],
    ids=["without a port", "empty"],
)
async def test_a_host_that_says_nothing_is_wrong_usage(bare_program, words):
    said = await bare_program("worker", "tasks:send", "--queue", "q", *words, "--check")

    assert said.code == 2
    assert "--metrics-host" in said.err


async def test_processes_share_the_work_and_end_together(running, queue, queue_name):
    fleet = running("worker", "tasks:send", "--queue", queue_name, "--processes", "2")
    await fleet.until_said("consuming", 2)
    children = _children(fleet.process.pid)

    assert await fleet.ended(signal.SIGTERM) == 0
    assert len(children) == 2
    assert not any(map(_is_alive, children))
    assert fleet.err.count("stopping when running jobs have ended") == 2


async def test_a_process_that_dies_is_started_again(running, queue, queue_name):
    fleet = running("worker", "tasks:handlers", "--queue", queue_name, "--processes", "2")
    await fleet.until_said("consuming", 2)
    first, second = _children(fleet.process.pid)

    os.kill(first, signal.SIGKILL)
    await fleet.until_said("consuming", 3)

    assert "worker process 0 died with exit code -9, starting another in" in fleet.err
    assert second in _children(fleet.process.pid)
    assert await fleet.ended(signal.SIGINT) == 130


async def test_processes_leave_when_whoever_started_them_is_killed(running, queue_name):
    fleet = running("worker", "tasks:send", "--queue", queue_name, "--processes", "2")
    await fleet.until_said("consuming", 2)
    children = _children(fleet.process.pid)

    fleet.kill()

    await eventually(lambda: not any(map(_is_alive, children)), within_s=10)
    assert fleet.err.count("the process that started this worker is gone") == 2


async def test_a_target_that_cannot_run_is_told_once_for_all_processes(bare_program):
    said = await bare_program("worker", "nowhere:x", "--queue", "q", "--processes", "4")

    assert said.code == 2
    assert said.err.count("there is no module 'nowhere'") == 1


def test_restarts_come_ever_later_up_to_a_ceiling():
    waits_ms = [restart_ms(deaths) for deaths in range(1, 12)]

    assert waits_ms[:4] == [200, 400, 800, 1_600]
    assert waits_ms[-1] == restart_ms(10_000) == RESTART_MS_MAX


async def _get(port: str, path: str, host: str = "127.0.0.1") -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(get)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_second_group_is_one_line_and_code_1(
    program, queue_name, running_worker, processes
):
    await running_worker(print, group="first")

    words = ("worker", "--queue", queue_name, "--group", "second", "json:dumps")
    said = await program(*words, "--processes", processes)

    assert (said.code, said.out) == (1, "")
    (line,) = said.err.splitlines()
    assert line.startswith(f"error: one group must consume queue '{queue_name}', found 'first'")


async def test_processes_whose_worker_names_another_group_end_at_once(
    program, queue_name, running_worker, tmp_path
):
    """Who starts them does not know the group of a Worker; the first that is refused ends all."""
    module = "from chasquimq import Worker\nfrom tasks import send\n"
    (tmp_path / "second.py").write_text(
        f"{module}w = Worker({queue_name!r}, send, group='second')\n"
    )
    await running_worker(print, group="first")

    said = await program("worker", "second:w", "--processes", "2")

    lines = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert said.code == 1
    assert 1 <= len(lines) <= 2
    assert all("one group must consume queue" in line for line in lines)
    assert "starting another" not in said.err
    assert "did not end well" not in said.err
