"""What a worker logs: every death, every take-over, both ends of its life, and no job that is well."""

from __future__ import annotations

import asyncio
import logging
import re
import threading

import pytest

from chasquimq import Queue, RetryLater, UnrecoverableError, Worker
from chasquimq.engine import failure_log
from chasquimq.settings import AbilitySettings, RetrySettings
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.payload import encode_payload
from support.faultproxy import FaultProxy
from support.waiting import eventually

SOON = RetrySettings(initial_backoff_ms=1, max_backoff_ms=1, jitter_ms=0)
SECRET = "hunter2"


class SmtpError(Exception):
    pass


@pytest.fixture(autouse=True)
def everything_logged(caplog):
    caplog.set_level(logging.DEBUG, "chasquimq")


def lines(caplog, words: str, level: str = "WARNING") -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if words in one.getMessage() and one.levelname == level
    ]


async def fails(job):
    raise SmtpError(f"no answer for {job.data}")


async def done(job):
    return


# Burials


async def test_a_dead_job_is_a_warning_that_names_it_and_what_to_try(
    queue, queue_name, running_worker, caplog
):
    running = await running_worker(fails, max_attempts=2, retry=SOON)
    job = await queue.add("send", 7)
    await eventually(lambda: running.worker.health().buried == 1)

    (line,) = lines(caplog, "is buried")
    assert line == (
        f"job {job.id} (send) of queue {queue_name} is buried as retries_exhausted after run 2: "
        f"SmtpError: no answer for 7; `chasqui dlq peek {queue_name}` shows it"
    )
    (record,) = [one for one in caplog.records if one.getMessage() == line]
    assert (record.chasqui_job_id, record.chasqui_reason, record.chasqui_run_number) == (
        job.id, "retries_exhausted", 2,
    )  # fmt: skip


async def test_every_reason_of_a_burial_is_logged(queue, queue_name, raw, running_worker, caplog):
    async def handler(job):
        raise UnrecoverableError("card refused")

    retry = RetrySettings(unknown_name_for_ms=1, unknown_name_retry_ms=1)
    await raw("XADD", raw.keys.stream, "*", "d", b"\xc1", "n", "broken")
    await raw("XADD", raw.keys.stream, "*", "x", "y")
    envelope = encode_envelope("job-9", encode_payload(None), 1, 5)
    await raw("XADD", raw.keys.stream, "*", "d", envelope, "n", "charge")
    await queue.add("late", 1, expires_ms=1)
    await queue.add("big", "x" * 2_000)
    await asyncio.sleep(0.05)
    running = await running_worker(
        {"charge": handler}, retry=retry, max_attempts=5, max_payload_bytes=1_000
    )
    await queue.add_bulk([{"name": "charge", "data": 1}, {"name": "nobody", "data": 1}])
    await eventually(lambda: running.worker.health().buried == 7)

    # The warning about an unknown name says what it will be buried as, too.
    told = lines(caplog, f"of queue {queue_name} is buried as")
    assert {re.search(r"is buried as (\w+)", line)[1] for line in told} == {
        "decode_failed", "malformed", "retries_exhausted", "expired", "oversize_payload",
        "unrecoverable", "unknown_name",
    }  # fmt: skip
    assert len(told) == 7


async def test_a_delayed_entry_that_cannot_be_read_is_a_warning(
    queue, queue_name, raw, running_worker, caplog
):
    await running_worker(done)
    await raw("ZADD", raw.keys.delayed, 1, b"\x01")

    await eventually(lambda: lines(caplog, "malformed_delayed"))
    assert lines(caplog, "malformed_delayed")[0].startswith(
        f"1 delayed entries of queue {queue_name} cannot be read and are buried"
    )


async def test_a_flood_of_delayed_entries_that_cannot_be_read_has_sums_that_add_up(
    raw, running_worker, caplog, monkeypatch
):
    monkeypatch.setattr(failure_log, "_SUM_AFTER_S", 0.3)
    running = await running_worker(done)
    for at in range(30):
        await raw("ZADD", raw.keys.delayed, 1, b"\x01" + bytes([at]))
        await eventually(lambda at=at: dlq_has(raw, at + 1))
    await running.stop()

    counts = [int(re.match(r"\d+", one)[0]) for one in lines(caplog, "malformed_delayed")]
    assert len(lines(caplog, "cannot be read and are buried as")) == 10
    assert 10 < len(counts) < 30
    assert sum(counts) == 30


async def dlq_has(raw, count: int) -> bool:
    return await raw("XLEN", raw.keys.dlq) == count


async def test_a_thousand_burials_are_ten_lines_and_sums_that_add_up(
    queue, running_worker, caplog, monkeypatch
):
    monkeypatch.setattr(failure_log, "_SUM_AFTER_S", 0.2)
    running = await running_worker(fails, max_attempts=1)
    for at in range(10):
        name = "send" if at % 4 else "resize"
        await queue.add_bulk([{"name": name, "data": at} for at in range(100)])
        await asyncio.sleep(0.1)
    await eventually(lambda: running.worker.health().buried == 1_000)
    await running.stop()

    sums = [re.match(r"([\d,]+) more jobs? .* (?:was|were) buried in the last", line)
            for line in lines(caplog, "buried in the last")]  # fmt: skip
    full = lines(caplog, "is buried as")
    assert len(full) == 10
    assert 1 < len(sums) <= 20
    assert sum(int(one[1].replace(",", "")) for one in sums) + len(full) == 1_000
    kinds = re.findall(r"([\d,]+) (send|resize) \(SmtpError\)", "".join(lines(caplog, "buried in")))
    assert sum(int(count.replace(",", "")) for count, _ in kinds) == 990
    assert {name for _, name in kinds} == {"send", "resize"}


async def test_what_is_summed_up_is_logged_when_the_worker_stops(queue, running_worker, caplog):
    running = await running_worker(fails, max_attempts=1)
    await queue.add_bulk([{"name": "send", "data": at} for at in range(12)])
    await eventually(lambda: running.worker.health().buried == 12)
    assert lines(caplog, "buried in the last") == []

    await running.stop()

    (line,) = lines(caplog, "buried in the last")
    assert line.startswith("2 more jobs of queue ")
    assert "were buried in the last 1 s: 2 send (SmtpError); `chasqui dlq triage" in line


async def test_a_line_about_a_dead_job_is_one_line_without_redacted_words(
    queue, running_worker, caplog
):
    async def handler(job):
        raise ValueError(f"password {SECRET}\nrefused " + "x" * 1_000)

    running = await running_worker(
        handler, max_attempts=1, redact=lambda _, text: text.replace(SECRET, "***")
    )
    await queue.add("log\nin", 1)
    await eventually(lambda: running.worker.health().buried == 1)

    (line,) = lines(caplog, "is buried")
    assert "\n" not in line
    assert len(line) < 700
    assert "password *** refused xxx" in line
    assert SECRET not in caplog.text


# Failed runs


async def test_failures_of_a_kind_have_one_traceback_and_a_sum(queue, running_worker, caplog):
    running = await running_worker(fails, max_attempts=5, retry=SOON)
    await queue.add_bulk([{"name": "send", "data": at} for at in range(3)])
    await eventually(lambda: running.worker.health().buried == 3)
    await running.stop()

    (first,) = lines(caplog, "Traceback")
    assert re.match(r"run 1 of job \w+ \(send\) failed, it runs again in 0\.0 s: SmtpError", first)
    (rest,) = lines(caplog, "more runs")
    assert rest.startswith("14 more runs of queue ")
    assert rest.endswith("without tracebacks here: 14 send (SmtpError)")


async def test_the_last_run_of_a_job_says_that_it_was_its_last(queue, running_worker, caplog):
    running = await running_worker(fails, max_attempts=1)
    await queue.add("send", 1)
    await eventually(lambda: running.worker.health().buried == 1)

    assert re.match(
        r"run 1 of job \w+ \(send\) failed, it was its last: S", lines(caplog, "run 1")[0]
    )


# Take-overs and leases


async def abandon(raw, *, holder: str = "dead-worker", count: int = 3) -> None:
    """Leave jobs in the hands of a worker that nobody hears of any more."""
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    for at in range(count):
        envelope = encode_envelope(f"job-{at}", encode_payload(None), 1, 0)
        await raw("XADD", raw.keys.stream, "*", "d", envelope, "n", "send")
    await raw("XREADGROUP", "GROUP", "default", holder, "STREAMS", raw.keys.stream, ">")


@pytest.mark.parametrize("claims_on_read", [None, False])
async def test_a_take_over_says_how_many_from_whom_and_since_when(
    raw, queue_name, running_worker, caplog, claims_on_read
):
    await abandon(raw)
    await asyncio.sleep(0.4)
    running = await running_worker(
        done, claim_min_idle_ms=300, abilities=AbilitySettings(claim_on_read=claims_on_read)
    )
    await eventually(lambda: running.worker.health().completed == 3)

    (line,) = await eventually(lambda: lines(caplog, "took over"))
    found = re.fullmatch(
        rf"took over 3 jobs of queue {queue_name} from worker dead-worker, not renewed for "
        r"(.+) s: it died, stood still or lost the server", line,
    )  # fmt: skip
    assert found, line
    assert 0.3 <= float(found[1]) < 30


async def test_jobs_that_a_worker_hands_back_are_no_take_over(queue, raw, running_worker, caplog):
    gate = asyncio.Event()
    leaver = await running_worker(
        waits_for(gate), concurrency=1, read_count=8, claim_min_idle_ms=3_000
    )
    await queue.add_bulk([{"name": "send", "data": at} for at in range(8)])
    await eventually(lambda: leaver.worker.health().waiting == 7)
    heir = await running_worker(done, claim_min_idle_ms=3_000)
    leaver.worker.request_stop()
    await eventually(lambda: heir.worker.health().completed == 7)
    gate.set()
    await leaver.task

    assert lines(caplog, "took over") == []


def waits_for(gate):
    async def waits(job):
        await gate.wait()

    return waits


async def test_a_lost_lease_names_its_job(queue, queue_name, raw, running_worker, caplog):
    gate = asyncio.Event()
    running = await running_worker(waits_for(gate), claim_min_idle_ms=600)
    job = await queue.add("send", 1)
    ((entry_id, *_),) = await eventually(raw.pending)

    await raw("XCLAIM", raw.keys.stream, "default", "thief", 0, entry_id, "JUSTID")

    (line,) = await eventually(lambda: lines(caplog, "lost its lease"))
    gate.set()
    assert line.startswith(f"job {job.id} (send) of queue {queue_name} lost its lease in run 1: ")
    assert running.worker.health().leases_lost == 1


# The server


async def test_an_outage_has_a_line_at_both_ends_with_the_error_in_it(url, queue_name, caplog):
    async with FaultProxy(url) as proxy, Queue(queue_name, redis_url=proxy.url) as queue:
        await queue.add("send", 1)
        proxy.refuse()
        proxy.cut()
        adding = asyncio.ensure_future(queue.add("send", 2))
        (gone,) = await eventually(lambda: lines(caplog, "does not answer, dialling again"))
        await proxy.accept()
        await asyncio.wait_for(adding, 15)

    assert re.search(r"the server at \S+ does not answer, dialling again: \w+", gone)
    assert len(lines(caplog, "connected to")) == 1


# Begin and end


async def test_the_line_that_a_worker_consumes_says_where_and_as_whom(
    url, queue_name, running_worker, caplog
):
    running = await running_worker(done, concurrency=7)

    (line,) = lines(caplog, "consuming queue", "INFO")
    assert line == (
        f"consuming queue {queue_name} of {url}: group default, concurrency 7, "
        f"worker {running.worker.consumer_id}"
    )


async def test_a_password_is_not_in_that_line(url, raw, queue_name, caplog):
    await raw("ACL", "SETUSER", queue_name, "on", f">{SECRET}", "~*", "&*", "+@all")
    named = url.replace("://", f"://{queue_name}:{SECRET}@")
    await Worker(queue_name, done, redis_url=named).run_until_idle()
    await raw("ACL", "DELUSER", queue_name)

    (line,) = lines(caplog, "consuming queue", "INFO")
    assert f"{queue_name}:***@" in line
    assert SECRET not in caplog.text


async def test_the_closing_line_has_the_sums_of_the_counters(
    queue, queue_name, running_worker, caplog
):
    async def send(job):
        if job.data == "fails":
            raise SmtpError("no")
        if job.data == "later" and not job.redelivered and job.state.setdefault("n", 0) == 0:
            job.state["n"] = 1
            raise RetryLater(1)

    gate = threading.Event()

    def hangs(job):
        gate.wait(30)

    running = await running_worker(
        {"send": send, "hangs": hangs, "waits": waits_for(asyncio.Event())},
        max_attempts=3, retry=SOON, shutdown_deadline_ms=200,
    )  # fmt: skip
    await queue.add_bulk(
        [{"name": "send", "data": data} for data in ("ok", "ok", "fails", "later")]
        + [{"name": "hangs", "data": 1}, {"name": "waits", "data": 1}]
    )
    health = running.worker.health
    await eventually(lambda: (health().completed, health().buried, health().running) == (3, 1, 2))
    await running.stop()
    gate.set()

    (line,) = lines(caplog, "ended after")
    counts = health()
    assert (counts.failed, counts.retried, counts.handed_back) == (3, 3, 1)
    assert re.fullmatch(
        rf"worker {re.escape(running.worker.consumer_id)} of queue {queue_name} ended after "
        r"0:00:\d\d: 3 jobs completed, 3 runs failed, 3 jobs will be retried, 1 are dead, 1 were "
        r"given back, 1 left behind and run elsewhere after the lease of 30 s: job \w+ \(hangs\)",
        line,
    ), line


async def test_a_job_that_is_well_is_no_line_above_debug(queue, running_worker, caplog):
    running = await running_worker(done)
    await queue.add_bulk([{"name": "send", "data": at} for at in range(200)])
    await eventually(lambda: running.worker.health().completed == 200)
    await running.stop()

    said = [one for one in caplog.records if one.levelno > logging.DEBUG]
    assert [one.getMessage().split()[0] for one in said] == ["consuming", "worker"]
    assert [one.levelname for one in said] == ["INFO", "INFO"]
