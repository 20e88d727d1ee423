"""Handlers to try the compose file with; put yours in their place."""
# ruff: noqa: INP001  a program, not a package

from __future__ import annotations

import asyncio
import random

from chasquimq import Job


async def charge(job: Job) -> str:
    """Wait as long as a payment would, and fail now and then, so that every panel moves."""
    await asyncio.sleep(random.uniform(0.01, 0.2))
    if random.random() < 0.05:
        raise TimeoutError("the bank does not answer")
    return f"charged {job.data}"


async def mail(job: Job) -> None:
    await asyncio.sleep(0.05)


handlers = {"charge": charge, "mail": mail}
