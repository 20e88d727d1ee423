"""What a command of the pipeline needs before it begins; a sentence where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from chasquimq.cli.render import talk
from chasquimq.cli.signals import raise_if_terminated, unwound_in_silence
from chasquimq.cli.visit import run, unknown_queue
from chasquimq.errors import NotSupportedError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING = ("duckdb", "deltalake", "datasketches", "pyarrow", "numpy")
DRAWING = (*READING, "matplotlib")
RUNNING = (*READING, "pyspark", "pandas")
# What a condition on dead jobs needs; it reads no tables.
FILTERING = ("duckdb", "pyarrow")


def need(modules: Sequence[str], what: str = "the pipeline") -> None:
    """Refuse to begin where packages are missing, and name the smallest extra that brings them."""
    missing = missing_modules(modules)
    if missing:
        raise NotSupportedError(
            f"{what} needs {' and '.join(missing)}, not installed here; "
            f"pip install 'chasquimq-py[{_smallest_extra(modules)}]'"
        )


def _smallest_extra(modules: Sequence[str]) -> str:
    if set(modules) <= set(READING):
        return "sql"
    return "report" if set(modules) <= set(DRAWING) else "spark"


def missing_modules(modules: Sequence[str] = (*RUNNING, "matplotlib")) -> list[str]:
    """Those that cannot be imported."""
    return [name for name in modules if find_spec(name) is None]


def refuse_unknown_queues(url: str, queues: Sequence[str]) -> None:
    """Raise a sentence about the first queue that the server does not have."""
    for complaint in run(_complaints(url, queues)):
        raise StoreError(complaint)


def unknown_queues(url: str, queues: Sequence[str]) -> list[str]:
    """A sentence for each queue that the server does not have."""
    return run(_complaints(url, queues))


@contextmanager
def spark_session(
    master: str, conf: Mapping[str, str], *, is_told: bool = True
) -> Generator[SparkSession]:
    """A session that is gone afterwards; whoever waits is told what takes so long."""
    from chasquimq.cli.pipeline_talk import working
    from chasquimq.spark.jvm import find_java
    from chasquimq.spark.jvm_gone import hush_its_end, stop_session
    from chasquimq.spark.session import SessionSettings, open_session

    settings = SessionSettings(master=master, conf=conf)
    find_java()
    if is_told and not sys.stderr.isatty():
        talk("starting Spark …")
    with working("starting Spark"):
        session = open_session(settings)
    try:
        hush_its_end(session)
        raise_if_terminated()
        with unwound_in_silence():
            yield session
    finally:
        stop_session(session)


async def _complaints(url: str, queues: Sequence[str]) -> list[str]:
    from chasquimq.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        survey = await inspector.survey(list(queues))
        unknown = [one.queue for one in survey.snapshots if not one.exists]
        known = await inspector.queues() if unknown else []
    return [unknown_queue(name, known) for name in unknown]
