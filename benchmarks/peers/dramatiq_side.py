"""Measures dramatiq: one worker with as many threads as jobs may run at once."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import threading
from importlib.metadata import version
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage, Retries
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from measuring import Answer, Plan, Runs, time_blocking_adds
from redis import Redis

package = "dramatiq"


def add(plan: Plan) -> Answer:
    """It has no bulk: the jobs of a batch are sent one after the other."""
    _, actor = declared(plan, Runs(plan))

    def batch() -> None:
        for _ in range(plan["batch"]):
            actor.send(plan["payload"])

    return time_blocking_adds(plan, batch)


def consume(plan: Plan) -> None:
    """Fill the queue, then run a worker until every job has run."""
    runs = Runs(plan)
    broker, actor = declared(plan, runs)
    delay_ms = plan["work"]["delay_ms"] or None
    for _ in range(plan["jobs"]):
        actor.send_with_options(args=(plan["payload"],), delay=delay_ms)
    client = Redis.from_url(plan["url"])
    worker = dramatiq.Worker(broker, worker_threads=plan["concurrency"])
    threads = worker.worker_threads
    runs.answer_when_done(client.dbsize, version=version(package), concurrency=threads)
    worker.start()
    threading.Event().wait()


def declared(plan: Plan, runs: Runs) -> tuple[RedisBroker, Any]:
    work = plan["work"]
    broker = RedisBroker(url=plan["url"], middleware=middleware(plan))
    dramatiq.set_broker(broker)
    options: dict[str, Any] = {"store_results": True} if work["result"] is not None else {}
    if work["fails_once"]:
        options |= {"max_retries": 1, "min_backoff": 1, "max_backoff": 1}

    def handler(payload: dict[str, str]) -> str | None:
        message = CurrentMessage.get_current_message() if work["fails_once"] else None
        return runs.ran(payload, is_retry=bool(message and message.options.get("retries")))

    return broker, dramatiq.actor(handler, actor_name="handler", broker=broker, **options)


def middleware(plan: Plan) -> list[Any]:
    """Only what the work needs: time limits, ages and prefetch counts cost something each."""
    work = plan["work"]
    wanted: list[Any] = []
    if work["fails_once"]:
        wanted += [Retries(), CurrentMessage()]
    if work["result"] is not None:
        wanted.append(Results(backend=RedisBackend(url=plan["url"])))
    return wanted
