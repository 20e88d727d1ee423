"""Runs measuring processes and reads their one line of figures."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from benchmarks.peer import last_line
from benchmarks.peers.arrivals import READY
from benchmarks.peers.measuring import digest
from benchmarks.scenario import CONCURRENCY, Figures, LoopKind, Plan
from chasquimq.errors import ChasquiError

if TYPE_CHECKING:
    from benchmarks.peer import Peer

Kind = TypeVar("Kind")
_CHECKOUT = Path(__file__).parents[1]


class BenchFailed(ChasquiError):
    """Read the line: one of our own sides ended without figures."""


@dataclass(frozen=True, slots=True)
class Side:
    """Who is measured, by which command line and on which event loop."""

    name: str
    command: list[str]
    loop: LoopKind
    peer: Peer | None = None

    @property
    def is_original(self) -> bool:
        return self.peer is not None and self.peer.is_original

    @property
    def concurrency(self) -> int:
        return self.peer.concurrency if self.peer else CONCURRENCY


def own_command(side: str) -> list[str]:
    return [sys.executable, "-P", "-m", "benchmarks.side", side]


def measure(side: Side, plan: Plan) -> Figures:
    """The figures of one process, or of several that began together, added up.

    Raises:
        BenchFailed: one of them gave no figures, or measured something else than the plan says.
    """
    plan = msgspec.structs.replace(plan, loop=side.loop)
    with ExitStack() as stack:
        children = [stack.enter_context(Child(side, plan)) for _ in range(plan.processes)]
        if plan.processes > 1:
            begin_together(children)
        figures = [_checked(side, plan, child.figures()) for child in children]
    return figures[0] if plan.processes == 1 else _summed(figures)


class Child:
    """One measuring process; it is ended with the block, whatever happened."""

    def __init__(self, side: Side, plan: Plan) -> None:
        self.name = side.name
        self._wait_s = plan.wait_s
        self._until_s = time.monotonic() + plan.wait_s
        self._process = subprocess.Popen(
            [*side.command, msgspec.json.encode(plan).decode()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=_environment(),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def until_ready(self) -> None:
        assert self._process.stdout is not None, "it was asked for"
        if self._process.stdout.readline().strip() != READY:
            raise self._failed(self._process.communicate()[1])

    def send(self, word: str) -> None:
        assert self._process.stdin is not None, "it was asked for"
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(self._process.communicate()[1]) from None

    def figures(self) -> Figures:
        return self.answer(Figures)

    def answer(self, kind: type[Kind]) -> Kind:
        try:
            said, complaints = self._process.communicate(
                timeout=max(0.1, self._until_s - time.monotonic())
            )
        except subprocess.TimeoutExpired:
            raise BenchFailed(
                f"{self.name} must give figures within {self._wait_s} s and did not"
            ) from None
        try:
            return msgspec.json.decode(last_line(said), type=kind)
        except msgspec.DecodeError:
            raise self._failed(complaints) from None

    def _failed(self, complaints: str) -> BenchFailed:
        return BenchFailed(f"{self.name} must give figures and ended with: {last_line(complaints)}")


def begin_together(children: Sequence[Child]) -> None:
    """Interpreters take their time to start, each another."""
    for child in children:
        child.until_ready()
    for child in children:
        child.send("go")


def _checked(side: Side, plan: Plan, figures: Figures) -> Figures:
    """A side that ran something else would be fast for another reason."""
    if figures.payload_digest != digest(plan.payload):
        raise BenchFailed(f"{side.name} must handle the payload of the plan and had another")
    if plan.act == "consume" and figures.concurrency != min(plan.concurrency, side.concurrency):
        raise BenchFailed(
            f"{side.name} must run {plan.concurrency} jobs at once, it ran {figures.concurrency}"
        )
    return figures


def _summed(figures: Sequence[Figures]) -> Figures:
    began_s = min(one.began_s for one in figures)
    ended_s = max(one.began_s + one.seconds for one in figures)
    return msgspec.structs.replace(
        figures[0],
        jobs=sum(one.jobs for one in figures),
        began_s=began_s,
        seconds=ended_s - began_s,
        cpu_seconds=sum(one.cpu_seconds for one in figures),
    )


def _environment() -> dict[str, str]:
    # The measuring processes import the packages of this checkout, whatever is installed.
    own = (str(_CHECKOUT), str(_CHECKOUT / "src"))
    paths: Iterator[str] = filter(None, (*own, os.environ.get("PYTHONPATH")))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
