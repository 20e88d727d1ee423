"""A logging set-up, an error object or a value that raises costs no job and stops no runner."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest

from chasquimq.engine.supervisor import Supervisor
from chasquimq.model.log import get_logger
from support.waiting import eventually

FOLLOWERS = 10
pytestmark = pytest.mark.takes_turns


class Refuses(Exception):
    """What the logging set-up of a user raises."""


class RaisingFilter(logging.Filter):
    def filter(self, record):
        raise Refuses(record.getMessage())


class CancellingFilter(logging.Filter):
    def filter(self, record):
        raise asyncio.CancelledError


class RaisingHandler(logging.Handler):
    def emit(self, record):
        raise Refuses(record.getMessage())


def fields_of_our_own(monkeypatch):
    """Every record carries the job id of a web framework, say."""
    make = logging.getLogRecordFactory()
    own = ("job_id", "job_name", "loop", "error", "listener", "reason")

    def factory(*args, **more):
        record = make(*args, **more)
        vars(record).update(dict.fromkeys(own, "the user's"))
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", factory)


def raising_factory(monkeypatch):
    def factory(name, *args, **more):
        if name.startswith("chasquimq"):
            raise Refuses(name)
        return logging.LogRecord(name, *args, **more)

    monkeypatch.setattr(logging, "_logRecordFactory", factory)


def with_filter(kind):
    def install(monkeypatch):
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("chasquimq"):
                logger = logging.getLogger(name)
                monkeypatch.setattr(logger, "filters", [kind()])

    install.__name__ = kind.__name__
    return install


def raising_handler(monkeypatch):
    logger = logging.getLogger("chasquimq")
    monkeypatch.setattr(logger, "handlers", [RaisingHandler()])


SETUPS = [
    fields_of_our_own, raising_factory, with_filter(RaisingFilter), with_filter(CancellingFilter),
    raising_handler,
]  # fmt: skip
every_setup = pytest.mark.parametrize("install", SETUPS, ids=lambda one: one.__name__)


class Nameless(type):
    """A class whose name cannot be asked for."""

    @property
    def __name__(cls):
        raise Refuses("no name")


def nameless():
    class NamelessError(Exception, metaclass=Nameless):
        def __str__(self):
            raise Refuses("no text")

    return NamelessError()


def cancels_when_read():
    class CancelsWhenRead(Exception):
        def __str__(self):
            raise asyncio.CancelledError

    return CancelsWhenRead()


def of_no_class():
    class OfNoClass(Exception):
        @property
        def __class__(self):
            raise Refuses("no class")

    return OfNoClass()


def fails_at_once(job):
    raise ValueError("a plain failure")


async def fails_later(job):
    await asyncio.sleep(0)
    raise ValueError("a failure of a handler that waits")


async def fails_before_it_waits(job):
    raise ValueError("a failure of a handler that never waits")


async def followers_run(queue, running_worker, culprit, **options):
    """A worker whose first job is the culprit's; all that follow are done."""
    done = set()

    async def follows(job):
        done.add(job.data)

    handlers = {"culprit": culprit, "follower": follows}
    running = await running_worker(handlers, concurrency=1, **options)
    await queue.add("culprit", None, attempts=1)
    await queue.add("nobody knows this name", None)
    await queue.add_bulk([{"name": "follower", "data": at} for at in range(FOLLOWERS)])
    await eventually(lambda: len(done) == FOLLOWERS, what="the followers' end")
    return running.worker


@every_setup
@pytest.mark.parametrize("culprit", [fails_before_it_waits, fails_later, fails_at_once])
async def test_a_log_call_that_raises_stops_no_runner(
    queue, raw, running_worker, monkeypatch, install, culprit
):
    install(monkeypatch)

    worker = await followers_run(queue, running_worker, culprit)

    await eventually(lambda: worker.health().buried == 1, what="the culprit's burial")
    assert worker.health().is_ok
    assert [entry[b"reason"] for entry in await raw.dlq()] == [b"retries_exhausted"]


@every_setup
async def test_hooks_listeners_and_sinks_that_raise_harm_nobody_where_logging_raises_too(
    queue, running_worker, monkeypatch, install
):
    def raises(*_):
        raise Refuses("a hook")

    hooks = dict.fromkeys(("on_completed", "on_failed", "on_dead"), raises)
    install(monkeypatch)

    worker = await followers_run(queue, running_worker, fails_later, redact=raises, **hooks)

    await eventually(lambda: worker.health().completed == FOLLOWERS, what="their acks")


@pytest.mark.parametrize("error", [nameless, cancels_when_read, of_no_class])
@pytest.mark.parametrize("is_waiting", [False, True], ids=["never_suspended", "suspended"])
async def test_an_error_that_nobody_can_describe_ends_its_job_and_no_runner(
    queue, raw, running_worker, error, is_waiting
):
    async def culprit(job):
        if is_waiting:
            await asyncio.sleep(0)
        raise error()

    worker = await followers_run(queue, running_worker, culprit)

    await eventually(lambda: worker.health().buried == 1, what="the culprit's burial")
    await eventually(lambda: worker.health().unconfirmed == 0, what="nothing held for nobody")
    assert len(await raw.dlq()) == 1


class CancelsWhenEncoded(dict):
    def items(self):
        raise asyncio.CancelledError


async def test_a_value_that_cancels_whoever_encodes_it_fails_its_own_job_alone(
    queue, raw, running_worker
):
    async def culprit(job):
        return CancelsWhenEncoded(a=1)

    worker = await followers_run(queue, running_worker, culprit, store_results=True)

    await eventually(lambda: worker.health().buried == 1, what="the culprit's burial")


class FailsTwice:
    """A loop that is well at its third run."""

    name = "fails-twice"

    def __init__(self, error):
        self._error = error
        self.runs = 0

    async def run(self):
        self.runs += 1
        if self.runs < 3:
            raise self._error

    def stop(self):
        raise AssertionError("nobody stops it")


@every_setup
@pytest.mark.parametrize("error", [ValueError, nameless, cancels_when_read])
async def test_a_loop_is_started_again_though_nobody_can_log_why(monkeypatch, install, error):
    install(monkeypatch)
    loop = FailsTwice(error())

    await asyncio.wait_for(Supervisor().keep(loop), 5)

    assert loop.runs == 3


def test_what_a_record_carries_begins_with_our_name(caplog):
    with caplog.at_level(logging.INFO, "chasquimq"):
        get_logger("chasquimq.test").info("a job of %s", "mine", extra={"job_id": "7"})

    (record,) = caplog.records
    assert (record.getMessage(), record.chasqui_job_id) == ("a job of mine", "7")
    assert not hasattr(record, "job_id")
    assert (record.name, record.funcName) == (
        "chasquimq.test", "test_what_a_record_carries_begins_with_our_name",
    )  # fmt: skip


def test_a_log_call_that_raises_is_told_on_stderr_once_and_without_its_words(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    logger = get_logger("chasquimq.test")
    monkeypatch.setattr(logging.getLogger("chasquimq.test"), "filters", [RaisingFilter()])

    for _ in range(3):
        logger.error("a secret is %s", "hunter2")

    (line,) = stderr.getvalue().splitlines()
    assert "Refuses" in line
    assert "chasquimq.test" in line
    assert "hunter2" not in line


def given(record: logging.LogRecord) -> dict:
    """What belongs to a record, as a formatter would dump it."""
    return {key: value for key, value in vars(record).items() if key.startswith("chasqui_")}


async def test_every_value_of_a_record_is_plain_so_that_json_can_carry_it(
    queue, running_worker, caplog
):
    caplog.set_level(logging.DEBUG, logger="chasquimq")

    def fail(job):
        raise ValueError(job.data)

    def told(job):
        raise RuntimeError("a hook")

    await queue.add_bulk([{"name": name, "data": 1} for name in ("fails", "unknown")])
    await queue.add("fails", "later", delay_ms=1)
    await running_worker({"fails": fail}, max_attempts=1, on_dead=told)
    await eventually(
        lambda: {"abilities", "it was its last", "no handler has the name", "hook"} <= words(caplog)
    )

    for record in caplog.records:
        if record.name.startswith("chasquimq"):
            assert json.loads(json.dumps(given(record))) == given(record)


async def test_the_record_of_the_abilities_names_each_of_them(queue, caplog):
    caplog.set_level(logging.DEBUG, logger="chasquimq")

    await queue.add("n", 1)

    (found,) = {tuple(given(one).items()) for one in caplog.records if "abilities" in one.msg}
    assert [key for key, _ in found] == [
        "chasqui_ack_delete", "chasqui_claim_on_read", "chasqui_idempotent_add",
    ]  # fmt: skip
    assert {type(value) for _, value in found} == {bool}


def words(caplog) -> set[str]:
    searched = ("abilities", "it was its last", "no handler has the name", "hook")
    return {word for word in searched if any(word in one.getMessage() for one in caplog.records)}
