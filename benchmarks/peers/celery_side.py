"""Measures Celery: one process with a pool of threads, nothing of a job kept unless asked for."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from celery import Celery
from measuring import Answer, Once, Plan, Runs, time_blocking_adds
from redis import Redis

package = "celery"


def add(plan: Plan) -> Answer:
    """It has no bulk: the jobs of a batch are sent one after the other, over one connection."""
    app, task = declared(plan, Runs(plan))

    def one() -> None:
        task.apply_async((plan["payload"],))

    def batch() -> None:
        with app.producer_or_acquire() as producer:
            for _ in range(plan["batch"]):
                task.apply_async((plan["payload"],), producer=producer)

    return time_blocking_adds(plan, one if plan["batch"] == 1 else batch)


def consume(plan: Plan) -> None:
    """Fill the queue, then run a worker until every job has run."""
    runs = Runs(plan)
    app, task = declared(plan, runs)
    delay_s = plan["work"]["delay_ms"] / 1000 or None
    with app.producer_or_acquire() as producer:
        for _ in range(plan["jobs"]):
            task.apply_async((plan["payload"],), countdown=delay_s, producer=producer)
    client = Redis.from_url(plan["url"])
    worker = app.Worker(
        pool_cls="threads", concurrency=plan["concurrency"], quiet=True,
        without_gossip=True, without_mingle=True, without_heartbeat=True,
    )  # fmt: skip
    runs.answer_when_done(client.dbsize, version=version(package), concurrency=worker.concurrency)
    worker.start()


def declared(plan: Plan, runs: Runs) -> tuple[Celery, Any]:
    keeps = plan["work"]["result"] is not None
    app = Celery("bench", broker=plan["url"], backend=plan["url"] if keeps else None)
    app.conf.update(
        task_ignore_result=not keeps,
        worker_prefetch_multiplier=4,
        task_acks_late=False,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="handler", bind=True, max_retries=1)
    def handler(self: Any, payload: dict[str, str]) -> str | None:
        try:
            return runs.ran(payload, is_retry=self.request.retries > 0)
        except Once as once:
            raise self.retry(exc=once, countdown=0) from None

    return app, handler
