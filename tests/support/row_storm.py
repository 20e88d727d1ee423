"""Rows that Spark writes under harm: in another order each run, stopped in the middle, counted after."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.payload import decode_payload
from support.feed import Feed
from support.servers import server_kinds

ROWS = 6_000
PARTITIONS = 3
_ROWS_BEFORE_A_STOP = 700
_TESTS = Path(__file__).parents[1]
_PROGRAM = _TESTS / "spark" / "queues" / "storm_program.py"
# Spark's own Python processes must find the program's sources, too.
_PATHS = os.pathsep.join(map(str, (_TESTS.parent / "src", _PROGRAM.parent, _TESTS)))

# The server, the form of the ids, and (id, number) of each job that is there.
Found = dict[tuple[str, str], list[tuple[str, int]]]


def shuffled(table: pa.Table, seed: int) -> Iterator[pa.RecordBatch]:
    """The rows as after an unlucky shuffle, another one for each seed."""
    places = list(range(table.num_rows))
    random.Random(seed).shuffle(places)
    yield from table.take(places).combine_chunks().to_batches(max_chunksize=100)


def stopping(
    batches: Iterator[pa.RecordBatch], stop: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """The rows, with a call when some of them were sent and some were not."""
    passed = 0
    for batch in batches:
        yield batch
        passed += batch.num_rows
        if passed == _ROWS_BEFORE_A_STOP:
            stop()


def write_everywhere(
    source: str, master: str, queue: str, *, within_s: float, **environ: str
) -> tuple[Found, dict[str, dict[str, int]]]:
    """Write the rows to every kind of server; what is there then, and the copies that Spark ran."""
    sessions = {kind.label: kind.session().start() for kind in server_kinds()}
    try:
        targets = [f"{session.url}|{queue}" for session in sessions.values()]
        copies = _run([source, master, *targets], environ, within_s)
        found = {
            (label, ids): _jobs(session.url, f"{queue}-{ids}")
            for label, session in sessions.items()
            for ids in ("content", "own")
        }
    finally:
        for session in sessions.values():
            session.stop()
    return found, copies


def refuse_doubles_and_gaps(found: Found) -> None:
    """Every row must be one job, with its own id where rows have one."""
    for (label, ids), seen in found.items():
        assert len(seen) == len({job_id for job_id, _ in seen}) == ROWS, (label, ids)
        assert Counter(n for _, n in seen) == dict.fromkeys(range(ROWS // 2), 2), (label, ids)
        if ids == "own":
            assert {job_id for job_id, _ in seen} == {f"o-{at}" for at in range(ROWS)}, label


def _run(args: list[str], environ: dict[str, str], within_s: float) -> dict[str, dict[str, int]]:
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), *args], env=os.environ | {"PYTHONPATH": _PATHS} | environ,
        capture_output=True, text=True, timeout=within_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


def _jobs(url: str, queue: str) -> list[tuple[str, int]]:
    feed = Feed(url, queue)
    entries = feed.call("XRANGE", feed.keys.stream, "-", "+")
    feed.close()
    read = [decode_envelope(fields[1]) for _, fields in entries]
    return [(job.id, decode_payload(job.payload)["n"]) for job in read]
