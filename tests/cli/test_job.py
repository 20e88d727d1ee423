"""`chasqui job show` tells where a job is, what it carries and what became of it."""

from __future__ import annotations

import pytest

from chasquimq import Worker

pytestmark = pytest.mark.takes_turns


async def test_a_waiting_job_shows_its_data(chasqui, queue, queue_name):
    job = await queue.add("mail", {"to": "a", "raw": b"\xff"})

    said = await chasqui("job", "show", queue_name, job.id, "--json")

    assert (said.json["state"], said.json["name"]) == ("ready", "mail")
    assert said.json["data"] == {"to": "a", "raw": {"$base64": "/w=="}}


async def test_a_delayed_job_shows_when_it_is_due(chasqui, queue, queue_name):
    job = await queue.add("mail", {"to": "\x1b[2J"}, delay_ms=60_000)

    said = await chasqui("job", "show", queue_name, job.id)

    shown = dict(line.split("  ", 1) for line in said.out.splitlines())
    assert shown["state"].strip() == "delayed"
    assert shown["due"].strip().endswith("Z")
    assert shown["data"].strip() == r'{"to": "\u001b[2J"}'


async def test_a_dead_job_shows_why(chasqui, queue, queue_name, grave):
    await grave(("charge", 7))
    (letter,) = await queue.peek_dlq()

    facts = (await chasqui("job", "show", queue_name, letter["job_id"], "--json")).json

    assert (facts["state"], facts["reason"], facts["data"]) == ("dead", "unrecoverable", 7)
    assert facts["error"] == "UnrecoverableError: card 7 refused"


async def test_a_dead_job_shows_where_it_failed(chasqui, queue, queue_name, grave):
    await grave(("charge", {"card": 7}))
    (letter,) = await queue.peek_dlq()

    said = await chasqui("job", "show", queue_name, letter["job_id"])
    facts = (await chasqui("job", "show", queue_name, letter["job_id"], "--json")).json

    table, traceback = said.out.split("\n\n", 1)
    assert traceback.startswith("Traceback (most recent call last):\n  File ")
    assert traceback.splitlines()[-1].endswith("UnrecoverableError: card {'card': 7} refused")
    assert facts["traceback"] + "\n" == traceback
    shown = dict(line.split("  ", 1) for line in table.splitlines())
    assert (shown["name"].strip(), shown["attempt"].strip()) == ("charge", "1")
    assert shown["finished"].strip().endswith("Z")
    assert shown["duration"].strip().endswith(" ms")


@pytest.mark.parametrize("stored", [True, False], ids=["with results", "without"])
async def test_a_completed_job_shows_its_name_and_its_times(
    chasqui, queue, queue_name, url, stored
):
    async def handler(job) -> str:
        return "sent"

    job = await queue.add("mail", 1)
    worker = Worker(queue_name, handler, redis_url=url, store_results=stored, consumer_id="w1")
    await worker.run_until_idle()

    said = await chasqui("job", "show", queue_name, job.id, "--json")

    facts = said.json
    assert (said.code, facts["state"], facts["name"], facts["attempt"]) == (
        0,
        "completed",
        "mail",
        1,
    )
    assert (facts["worker"], facts["has_result"]) == ("w1", stored)
    assert facts["source"] == ("outcome" if stored else "history")
    assert facts["duration_us"] >= 0
    times = [facts[f"{one}_at_ms"] for one in ("ready", "started", "finished")]
    assert all(isinstance(one, int) for one in times)


async def test_a_completed_job_shows_its_result(chasqui, queue, queue_name, url):
    async def handler(job) -> str:
        return "sent"

    job = await queue.add("mail", 1)
    await Worker(queue_name, handler, redis_url=url, store_results=True).run_until_idle()

    facts = (await chasqui("job", "show", queue_name, job.id, "--json")).json

    assert (facts["state"], facts["result"]) == ("completed", "sent")


@pytest.mark.parametrize("more", [[], ["--json"]])
async def test_a_job_nobody_knows_is_code_1(chasqui, queue, queue_name, more):
    await queue.add("mail", 1)

    said = await chasqui("job", "show", queue_name, "nobody", *more)

    assert said.code == 1
    assert "unknown" in said.out


async def test_data_that_was_never_encoded_is_shown_as_bytes(chasqui, queue_name, raw):
    # An envelope whose payload is the byte 0xc1, which no MessagePack value begins with.
    envelope = b"\x94\xa2j1\xc4\x01\xc1\x00\x00"
    await raw("XADD", raw.keys.stream, "*", "d", envelope)

    facts = (await chasqui("job", "show", queue_name, "j1", "--json")).json

    assert facts["payload"] == {"$base64": "wQ=="}
