"""Measures RQ: one worker that runs jobs in its own process, one after the other, as it can."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any

from measuring import Answer, Plan, Runs, time_blocking_adds
from redis import Redis
from rq import Queue, Retry, SimpleWorker, get_current_job
from rq.timeouts import BaseDeathPenalty

package = "rq"
JOBS_PER_FILL = 500
_runs: list[Runs] = []


class NoPenalty(BaseDeathPenalty):
    """No alarm around each job: nothing here takes long."""

    def setup_death_penalty(self) -> None: ...

    def cancel_death_penalty(self) -> None: ...


class BareWorker(SimpleWorker):
    death_penalty_class = NoPenalty


def handler(payload: dict[str, str]) -> str | None:
    """Found by its name, as RQ wants it."""
    (runs,) = _runs
    return runs.ran(payload, is_retry=runs.fails_once and _is_retry())


def add(plan: Plan) -> Answer:
    """A batch leaves in one pipeline."""
    queue = Queue("bench", connection=Redis.from_url(plan["url"]))

    def one() -> None:
        queue.enqueue(handler, plan["payload"], result_ttl=0)

    def batch() -> None:
        queue.enqueue_many([prepared(plan) for _ in range(plan["batch"])])

    return time_blocking_adds(plan, one if plan["batch"] == 1 else batch)


def consume(plan: Plan) -> None:
    """Fill the queue, then run a worker until every job has run."""
    client = Redis.from_url(plan["url"])
    queue = Queue("bench", connection=client)
    fill(plan, queue)
    runs = Runs(plan)
    _runs.append(runs)
    runs.answer_when_done(client.dbsize, version=version(package), concurrency=1)
    worker = BareWorker([queue], connection=client)
    worker.work(with_scheduler=bool(plan["work"]["delay_ms"]), logging_level="ERROR")


def fill(plan: Plan, queue: Queue) -> None:
    """Add the jobs; nothing of this is measured."""
    delay_ms = plan["work"]["delay_ms"]
    if delay_ms:
        for _ in range(plan["jobs"]):
            delay = timedelta(milliseconds=delay_ms)
            queue.enqueue_in(delay, handler, plan["payload"], result_ttl=0)
        return
    for start in range(0, plan["jobs"], JOBS_PER_FILL):
        size = min(JOBS_PER_FILL, plan["jobs"] - start)
        queue.enqueue_many([prepared(plan) for _ in range(size)])


def prepared(plan: Plan) -> Any:
    work = plan["work"]
    return Queue.prepare_data(
        handler,
        (plan["payload"],),
        result_ttl=500 if work["result"] is not None else 0,
        retry=Retry(max=1) if work["fails_once"] else None,
    )


def _is_retry() -> bool:
    job = get_current_job()
    return job is not None and job.retries_left == 0
