"""Handlers for tasks of Spark: each run of a job leaves a line, written by the process itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


async def note(job) -> None:
    """Start, work a little, end."""
    line("start", job.data["folder"], job.id)
    await asyncio.sleep(job.data.get("work_s", 0))
    line("end", job.data["folder"], job.id)


async def note_many(jobs) -> None:
    for job in jobs:
        line("end", job.data["folder"], job.id)


def line(event: str, folder: str, job_id: str) -> None:
    # One write to a file of its own: a kill never leaves half a line.
    path = Path(folder) / f"{os.getpid()}.lines"
    descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(descriptor, f"{event} {job_id}\n".encode())
    os.close(descriptor)
