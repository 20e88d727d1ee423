"""The JVM behind a session: one whose start is cut off must go, too."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from subprocess import Popen
from typing import Any


@contextmanager
def ended_if_not_started() -> Generator[None]:
    """End a JVM that was begun here and is cut off, by a signal or an error.

    Spark forgets it then: its folder is gone, so it never gets to the place where it would notice
    that nobody is there.
    """
    from pyspark import SparkContext

    java_gateway: Any = import_module("pyspark.java_gateway")
    begun: list[Popen[Any]] = []
    make = java_gateway.Popen

    def noted(*args: Any, **options: Any) -> Popen[Any]:
        begun.append(make(*args, **options))
        return begun[-1]

    java_gateway.Popen = noted
    try:
        yield
    except BaseException:
        # One that Spark knows serves the next session of this process.
        if SparkContext._gateway is None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            _end(begun)
        raise
    finally:
        java_gateway.Popen = make


def _end(processes: list[Popen[Any]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
