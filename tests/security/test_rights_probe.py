"""Rights are asked for before they are used: one error names all that are missing."""

from __future__ import annotations

import asyncio
import re
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chasquimq import BackoffSpec, Queue, RepeatPattern, Upkeep, Worker, store
from chasquimq.errors import ServerRefused
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net import abilities as rights
from chasquimq.store.net.connect import open_connection
from chasquimq.wire.keys import QueueKeys
from security.test_least_privilege import EVERYWHERE, MANY_SET, NEWER, PAGE, REMOVAL
from support.waiting import eventually
from support.workers import RunningWorker

SCRIPTS = sorted((Path(store.__file__).parent / "scripts").glob("*.lua"))
ROLES = [one for one in vars(rights).values() if isinstance(one, rights.Role)]
ROLES += rights.PRODUCER.values()
DIALLING = ["client|setinfo", "client|setname"]
WORKING = [rights.WORKER, rights.RESULTS, rights.PROMOTER, rights.SCHEDULER]
# Rows of Spark, the doctor and looks at a queue: their first command says what is missing.
UNASKED_SCRIPTS = {
    "add_rows", "add_run_rows", "pace", "count_ghosts", "measure", "missing_rights", "remove_group",
}  # fmt: skip
PASSWORD = "canary-77"


@pytest.fixture
async def limited(raw, queue_name, url):
    """The URL of a user that may run these commands on the keys of this queue."""
    keys = f"~{raw.keys.stream.removesuffix('stream')}*"

    async def make(commands, fence: str = keys) -> str:
        grants = [f"+{command}" for command in commands]
        await raw("ACL", "SETUSER", queue_name, "reset", "on", f">{PASSWORD}", fence, *grants)
        parts = urlsplit(url)
        return parts._replace(netloc=f"{queue_name}:{PASSWORD}@{parts.netloc}").geturl()

    yield make
    await raw("ACL", "DELUSER", queue_name)


def of(*roles: rights.Role) -> set[str]:
    return set().union(*map(rights.needs, roles), DIALLING)


async def noop(job):
    return


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_command_of_a_script_is_seen_and_has_a_form_that_changes_nothing(path):
    text = re.sub(r"--.*", "", path.read_text("utf-8"))
    calls = re.findall(r"\b(?:p?call|try)\((?!redis\.acl_check_cmd)(.*)", text)

    assert [call for call in calls if not re.match("'[A-Z]+'", call)] == []
    assert rights.commands_of(text) <= rights.FORMS.keys() | rights.WAKING


def test_every_script_belongs_to_a_role():
    run_by = {name for role in ROLES for name in role.scripts.split()}

    assert run_by | UNASKED_SCRIPTS == {path.stem for path in SCRIPTS}


def test_the_page_grants_what_the_roles_need_and_a_form_is_no_stranger():
    needed = set().union(*map(rights.needs, ROLES))
    assert needed <= {*EVERYWHERE}
    on_page = {*EVERYWHERE, *NEWER, *MANY_SET, *REMOVAL, *re.findall(r"\+([a-z|]+)", PAGE)}
    assert rights.FORMS.keys() | rights.WAKING <= on_page
    assert {*NEWER, *MANY_SET} == rights.OPTIONAL


async def test_trying_every_command_changes_nothing_and_answers_as_the_access_list_does(
    raw, url, limited, queue_name
):
    granted = {"eval", "evalsha", "xadd", "get", "time", "xgroup|create"}
    wanted = sorted(rights.FORMS.keys() - rights.OPTIONAL)
    role = rights.Role("everything", " ".join(wanted))
    user = await open_connection(ConnectionSettings(url=await limited(granted)))

    by_script = await rights.missing_rights(user, raw.keys, [role])
    by_trial = await rights._tried(user, raw.keys, wanted)
    as_admin = await rights._tried(raw.connection, raw.keys, wanted)
    await user.close()

    assert by_script == by_trial.keys() == set(wanted) - granted
    assert as_admin == {}
    assert await raw("KEYS", f"*{queue_name}*") == []


@pytest.mark.parametrize("lacking", [("eval",), ("eval", "evalsha")], ids=" ".join)
async def test_who_may_run_no_script_still_hears_of_everything(limited, queue_name, lacking):
    url = await limited(of(*WORKING) - {*lacking, "xack", "zadd"})

    with pytest.raises(ServerRefused) as caught:
        await asyncio.wait_for(Worker(queue_name, noop, redis_url=url).run(), 10)

    assert set(re.findall(r"\+([a-z|]+)", str(caught.value))) == {*lacking, "xack", "zadd"}


def test_a_key_of_a_role_is_checked_with_a_command_of_the_role():
    keys = QueueKeys("q")
    for role in ROLES:
        for name, _, command in (key.partition(":") for key in role.keys.split()):
            assert command in rights.needs(role)
            assert getattr(keys, name)


@pytest.mark.parametrize("place", ["delayed", "dlq", "promoter:lock", "repeat", "scheduler:lock"])
async def test_a_worker_does_not_start_where_a_key_of_its_queue_is_closed_to_it(
    limited, raw, queue_name, place
):
    prefix = raw.keys.stream.removesuffix("stream")
    await raw("XADD", raw.keys.dlq, "*", "reason", "an entry of before")
    url = await limited(of(*WORKING), f"~{prefix}stream")
    places = {"delayed", "dlq", "promoter:*", "repeat*", "scheduler:*", "dix", "janitor:*"}
    places |= {"claim:*", "wake", "events", "history", "uniq:*", "result:*", "outcome:*"}
    shut = {one for one in places if fnmatch(place, one)}
    await raw("ACL", "SETUSER", queue_name, *(f"~{prefix}{one}" for one in places - shut))

    with pytest.raises(ServerRefused, match="must be allowed to use the keys of queue"):
        await asyncio.wait_for(Worker(queue_name, noop, redis_url=url).run(), 10)

    assert await raw("XLEN", raw.keys.dlq) == 1
    await raw("ACL", "SETUSER", queue_name, *(f"~{prefix}{one}" for one in shut))
    running = RunningWorker(Worker(queue_name, noop, redis_url=url))
    await running.until_consuming()
    await running.stop()


async def test_a_worker_does_not_start_without_a_right_and_names_all_that_are_missing(
    limited, raw, queue_name
):
    url = await limited(of(*WORKING) - {"xack", "xgroup|delconsumer", "zremrangebyrank"})

    with pytest.raises(ServerRefused) as caught:
        await asyncio.wait_for(Worker(queue_name, noop, redis_url=url).run(), 10)

    assert caught.value.code == "NOPERM"
    assert str(caught.value) == (
        f"the user '{queue_name}' must be allowed to run XACK, XGROUP DELCONSUMER and "
        "ZREMRANGEBYRANK and is not (NOPERM), which a worker and promotion need; "
        f"grant them with ACL SETUSER {queue_name} +xack +xgroup|delconsumer +zremrangebyrank"
    )
    assert await raw("KEYS", f"*{queue_name}*") == []


@pytest.mark.parametrize("whoami", [[], ["acl|whoami"]], ids=["not allowed", "allowed"])
async def test_a_worker_without_its_keys_hears_of_user_queue_and_pattern(
    limited, queue_name, whoami
):
    url = await limited({*of(*WORKING), *whoami}, fence="~other")

    with pytest.raises(ServerRefused) as caught:
        await asyncio.wait_for(Worker(queue_name, noop, redis_url=url).run(), 10)

    assert caught.value.code == "NOPERM"
    assert str(caught.value) == (
        f"the user '{queue_name}' must be allowed to use the keys of queue '{queue_name}' and is "
        "not (NOPERM), which a worker, promotion and the scheduler need; "
        f"grant them with ACL SETUSER {queue_name} ~{{chasqui:{queue_name}}}:*"
    )


async def test_a_producer_without_its_keys_hears_of_user_queue_and_pattern(limited, queue_name):
    commands = {*of(*rights.PRODUCER.values(), rights.NATIVE_ADD), "xinfo|stream"}
    url = await limited(commands, fence="~other")

    async with Queue(queue_name, redis_url=url) as queue:
        with pytest.raises(ServerRefused) as caught:
            await queue.add("n", 1, delay_ms=1_000)

    assert f"of queue '{queue_name}' and is not (NOPERM), which adding delayed jobs needs" in str(
        caught.value
    )


async def test_a_loop_that_is_switched_off_needs_no_right(limited, queue_name):
    url = await limited(of(rights.WORKER))
    worker = Worker(
        queue_name, noop, redis_url=url, delayed_enabled=False, run_scheduler=False,
        events="off", history=False,
    )  # fmt: skip
    running = RunningWorker(worker)

    await running.until_consuming()
    await running.stop()


async def test_rights_that_only_events_and_history_need_are_a_warning(limited, queue_name, caplog):
    running = RunningWorker(Worker(queue_name, noop, redis_url=await limited(of(*WORKING))))

    await running.until_consuming()
    await running.stop()

    assert "must be allowed to run MEMORY USAGE and XTRIM" in caplog.text


async def test_the_rights_of_its_roles_are_all_that_a_worker_needs(limited, queue, queue_name, raw):
    url = await limited(of(*WORKING, rights.EVENTS, rights.HISTORY))
    await queue.upsert_repeatable_job("tick", 1, repeat=RepeatPattern.every(100), limit=1)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(5)])
    await queue.add("later", 1, delay_ms=50)
    await queue.add("dead", 1)
    await queue.add("again", 1, attempts=2, backoff=BackoffSpec.fixed(1, 0))

    async def handle(job):
        if job.name == "dead" or (job.name == "again" and job.attempt == 0):
            raise ValueError("no")
        return 1

    worker = Worker(
        queue_name, handle, redis_url=url, store_results=True, max_attempts=1,
        scheduler_tick_ms=50, claim_min_idle_ms=600,
    )  # fmt: skip
    running = RunningWorker(worker)
    await eventually(lambda: worker.health().completed == 8 and worker.health().buried == 1)
    await worker._session.pipeline.upkeep.janitor.run_once()
    await running.stop()
    assert worker.health().loops_down == {}


async def test_upkeep_does_not_start_without_a_right(limited, queue_name):
    url = await limited(of(rights.PROMOTER, rights.SCHEDULER) - {"zadd", "hdel"})

    with pytest.raises(ServerRefused, match="must be allowed to run HDEL and ZADD and is not"):
        await asyncio.wait_for(Upkeep(queue_name, redis_url=url).run(), 10)


async def test_a_producer_may_add_with_few_rights_and_hears_what_more_takes(
    limited, raw, queue_name
):
    url = await limited([*rights.needs(rights.PRODUCER["add"]), *DIALLING])
    async with Queue(queue_name, redis_url=url) as queue:
        await queue.add("n", 1)
        await queue.add("n", 1, job_id="mine")
        with pytest.raises(ServerRefused) as caught:
            await queue.add("n", 1, delay_ms=1_000)
        said = str(caught.value)
        assert "which adding delayed jobs needs" in said
        missing = rights.needs(rights.PRODUCER["schedule"]) - rights.needs(rights.PRODUCER["add"])
        assert set(re.findall(r"\+([a-z|]+)", said)) == missing
        assert await raw("XLEN", raw.keys.stream) == 2

        await raw("ACL", "SETUSER", queue_name, *(f"+{command}" for command in missing))
        assert await queue.add("n", 1, delay_ms=1_000)


async def test_a_producer_that_sends_once_needs_one_command(limited, queue_name):
    url = await limited(["xadd", *DIALLING])
    async with Queue(queue_name, redis_url=url, resend=False) as queue:
        assert await queue.add("n", 1)
        assert await queue.add_bulk([{"name": "n", "data": 1}])


async def test_who_only_looks_needs_no_right_to_add(limited, queue, queue_name):
    await queue.add("n", 1)
    url = await limited(["xlen", "xpending", "zcard", *DIALLING])

    async with Queue(queue_name, redis_url=url) as looking:
        assert (await looking.counts()).ready == 1


@pytest.mark.parametrize("right", ["xreadgroup", "xack"])
async def test_a_worker_whose_right_is_taken_says_so_and_recovers_when_it_is_given_back(
    limited, raw, queue, queue_name, caplog, right
):
    runs: list[int] = []

    async def handle(job):
        runs.append(job.data)

    # Without native acks every completion needs XACK.
    url = await limited([*EVERYWHERE])
    worker = Worker(queue_name, handle, redis_url=url)
    running = RunningWorker(worker)
    await running.until_consuming()
    await raw("ACL", "SETUSER", queue_name, f"-{right}")
    await queue.add("n", 1)

    await eventually(lambda: not worker.health().is_ok and worker.health().loops_down, within_s=20)

    (said,) = set(worker.health().loops_down.values())
    assert f"must be allowed to run {right.upper()} and is not" in said
    await eventually(lambda: right.upper() in _errors(caplog), within_s=10)
    await raw("ACL", "SETUSER", queue_name, f"+{right}")
    await eventually(lambda: worker.health().completed == 1 and worker.health().is_ok, within_s=10)
    await running.stop()
    assert runs == [1]


async def test_a_worker_that_dials_again_asks_for_its_rights_again(limited, raw, queue_name, url):
    worker = Worker(queue_name, noop, redis_url=await limited([*EVERYWHERE]))
    running = RunningWorker(worker)
    await running.until_consuming()
    await raw("ACL", "SETUSER", queue_name, "-zadd", "-xclaim")
    await raw("CLIENT", "KILL", "USER", queue_name)

    await eventually(lambda: worker.health().loops_down, within_s=20)

    assert "must be allowed to run XCLAIM and ZADD" in str(worker.health().loops_down)
    assert not worker.health().is_ok
    await raw("ACL", "SETUSER", queue_name, "+zadd", "+xclaim")
    await eventually(lambda: worker.health().is_ok, within_s=10)
    await running.stop()


def _errors(caplog) -> str:
    return "\n".join(one.getMessage() for one in caplog.records if one.levelname == "ERROR")
