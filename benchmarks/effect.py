"""Did a side do all of its work? One that lost jobs would look fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.child import BenchFailed, Side
from benchmarks.scenario import DELAYED, DLQ, EVENTS, HISTORY, STREAM
from benchmarks.target import ask

if TYPE_CHECKING:
    from benchmarks.scenario import Plan


def check_effect(url: str, side: Side, plan: Plan, jobs: int) -> None:
    """Look at the server for what the plan asked for.

    Other packages have books of their own; their programs count runs and results themselves.

    Raises:
        BenchFailed: jobs, results, events or history are missing, or jobs are left.
    """
    if side.peer is not None and not side.is_original:
        return
    _check_jobs(url, side, plan, jobs)
    work = plan.work
    if work.result is not None and ask(url, "DBSIZE") < jobs:
        raise BenchFailed(f"{side.name} must keep {jobs} results and did not")
    if work.events != "off" and not ask(url, "XLEN", EVENTS):
        raise BenchFailed(f"{side.name} must write events and wrote none")
    if work.has_history and side.name == "ours" and not ask(url, "XLEN", HISTORY):
        raise BenchFailed(f"{side.name} must keep a history and did not")


def _check_jobs(url: str, side: Side, plan: Plan, jobs: int) -> None:
    in_stream = ask(url, "XLEN", STREAM)
    if plan.act == "add":
        if in_stream < jobs:
            raise BenchFailed(f"{side.name} must add {jobs} jobs, {in_stream} are there")
        return
    left = in_stream + ask(url, "ZCARD", DELAYED) + ask(url, "XLEN", DLQ)
    if left > plan.left:
        raise BenchFailed(f"{side.name} left {left} jobs in the queue after {jobs}")
