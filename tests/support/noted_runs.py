"""What handlers noted, and the jobs they are given."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from chasquimq import Queue
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.workers.settings import HostSettings

HANDLERS = Path(__file__).parents[1] / "spark" / "workers"


def noted(folder: Path, event: str) -> Counter[str]:
    """How often each job had that event."""
    words = (text.split() for path in folder.glob("*.lines") for text in whole_lines(path))
    return Counter(job_id for found, job_id in words if found == event)


def whole_lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1]


def pids(folder: Path) -> list[int]:
    """The processes that ran jobs, the latest to write last."""
    files = sorted(folder.glob("*.lines"), key=lambda path: path.stat().st_mtime)
    return [int(path.stem) for path in files]


async def add_jobs(queue: Queue, count: int, folder: Path, *, work_s: float = 0.0) -> set[str]:
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    payload = {"folder": str(folder), "work_s": work_s}
    jobs = await queue.add_bulk([{"name": "note", "data": payload} for _ in range(count)])
    return {job.id for job in jobs}


def host(url: str, queue: str, target: str = "noting_handlers:note", **more) -> HostSettings:
    given = {"folder": str(HANDLERS), **more}
    return HostSettings(queue=queue, target=target, url=url, **given)


def connection(url: str, queue: str) -> ConnectionSettings:
    return ConnectionSettings(url=url, queue=queue)
