"""The JVM behind a session: one whose start is cut off must go, too."""

from __future__ import annotations

import signal
import threading
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
        with _signals_wait():
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


@contextmanager
def signals_left_alone() -> Generator[None]:
    """Let Spark change no answer to a signal.

    Its own answer to Ctrl+C talks to the JVM in the middle of another talk.
    """
    context: Any = import_module("pyspark.core.context")
    before, context.signal = context.signal, _NoSignals
    try:
        yield
    finally:
        context.signal = before


class _NoSignals:
    SIGINT = signal.SIGINT

    @staticmethod
    def signal(_number: int, _answer: object) -> None:
        """Change nothing."""


@contextmanager
def _signals_wait() -> Generator[None]:
    """Let signals wait until a process that was begun is known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {one: signal.signal(one, lambda number, _: heard.append(number)) for one in numbers}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
    for number in heard:
        signal.raise_signal(number)


def _end(processes: list[Popen[Any]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
