"""Runs the program of one peer: `python -I main.py PROGRAM PLAN`, in the peer's environment.

The plan is JSON. A program has `package`, `add(plan)` and `consume(plan)`; either may be a
coroutine function, and a consumer may never return but answer through `measuring.Runs`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))


def main(program: str, plan: dict[str, Any]) -> None:
    # The process that started this may be gone by then.
    signal.alarm(plan["wait_s"])
    # Some write a traceback for every job that fails, which is not what is measured.
    logging.disable(logging.CRITICAL)
    peer = importlib.import_module(program)
    if plan["processes"] > 1:
        importlib.import_module("arrivals").say_ready()
        sys.stdin.readline()
    measure = getattr(peer, plan["act"])
    answer = measure(plan)
    if inspect.iscoroutine(answer):
        answer = run_on(plan["loop"], answer)
    importlib.import_module("measuring").reply(plan, answer | {"version": version(peer.package)})


def run_on(loop: str, measuring: Any) -> Any:
    if loop == "asyncio":
        return asyncio.run(measuring)
    import uvloop

    return uvloop.run(measuring)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
