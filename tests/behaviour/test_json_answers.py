"""What a queue, a worker or an inspector answers can be returned by a web framework as it is."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import suppress
from typing import Any

import pytest

import chasquimq
from chasquimq import RepeatPattern, Worker, blocking, json_value
from chasquimq.job import DeliveredJob
from chasquimq.model.json_value import ToDict
from chasquimq.queue.inspector import Inspector

PLAN = RepeatPattern.cron("0 9 * * *", tz="America/Lima")
JOB_KEYS = {
    "id", "name", "data", "attempt", "created_at_ms", "is_duplicate", "error", "reason",
}  # fmt: skip


async def answers(queue, url) -> dict[str, Any]:
    """One of each kind, from a queue that has something of everything."""
    seen: dict[str, Any] = {}

    async def fail(job):
        seen["handed"] = job
        if job.name == "bad":
            raise chasquimq.UnrecoverableError("no")

    await queue.add("bad", {"user": 1, "picture": b"\xff\x00"})
    later = await queue.add("later", 1, delay_ms=60_000)
    await queue.add("good", [1, 2.5, None, True, "text"])
    await queue.upsert_repeatable_job("plan", 1, repeat=PLAN)
    worker = Worker(queue.name, fail, redis_url=url)
    await worker.run_until_idle()
    async with Inspector(redis_url=url) as inspector:
        inspected = {
            "snapshot": await inspector.snapshot(queue.name),
            "survey": await inspector.survey([queue.name]),
            "workers": await inspector.workers(queue.name),
            "groups": await inspector.groups(queue.name),
            "delayed": await inspector.delayed(queue.name),
            "findings": await inspector.diagnose_queue(queue.name),
        }
    async with chasquimq.QueueEvents(queue.name, redis_url=url, last_event_id="0") as events:
        event = await anext(events)
    return inspected | {
        "counts": await queue.counts(),
        "job": await queue.get_job(later.id),
        "added": later,
        "bulk": await queue.add_bulk([{"name": "n", "data": 1}]),
        "handed": seen["handed"],
        "plans": await queue.get_repeatable_jobs(),
        "dead": await queue.peek_dlq(),
        "replayed": await queue.replay_dlq(dry_run=True),
        "health": worker.health(),
        "event": event,
    }


async def test_every_answer_has_a_form_that_json_can_say(queue, url):
    for name, answer in (await answers(queue, url)).items():
        text = json.dumps(json_value(answer), allow_nan=False)

        assert text != "null", name
        assert str(url) not in text
        assert "object at 0x" not in text


async def test_every_answer_that_is_no_dict_has_to_dict(queue, url):
    found = await answers(queue, url)
    alone = [one for some in found.values() for one in (some if isinstance(some, list) else [some])]

    for one in alone:
        if not isinstance(one, dict):
            assert isinstance(one, ToDict)
            assert json.loads(json.dumps(one.to_dict())) == one.to_dict()


async def test_what_frameworks_do_with_a_dataclass_works_on_every_answer(queue, url):
    """FastAPI and Flask call `asdict` on whatever is a dataclass, and dump the rest as it is."""
    for name, answer in (await answers(queue, url)).items():
        if name in ("dead", "survey"):
            # Bytes and errors have no form there.
            continue
        for one in answer if isinstance(answer, list) else [answer]:
            shown = dataclasses.asdict(one) if dataclasses.is_dataclass(one) else one

            assert json.loads(json.dumps(shown)) == shown, name


async def test_a_job_shows_what_it_is_and_nothing_of_its_queue(queue):
    job = await queue.add("mail", {"to": "ada"}, job_id="mail-1")

    assert dataclasses.asdict(job) == job.to_dict()
    assert job.to_dict().keys() == JOB_KEYS
    assert (job.to_dict()["id"], job.to_dict()["data"]) == ("mail-1", {"to": "ada"})
    assert [field.name for field in dataclasses.fields(job) if field.name.startswith("_")] == []


async def test_a_job_that_was_added_can_still_be_waited_for_after_it_was_shown(queue):
    job = await queue.add("mail", 1)
    dataclasses.asdict(job)

    with pytest.raises(TimeoutError):
        await job.wait_for_result(timeout=0.01)


async def test_the_job_of_a_handler_shows_its_data_too(queue, url):
    shown = []

    async def handle(job):
        assert isinstance(job, DeliveredJob)
        shown.append((dataclasses.asdict(job), job.to_dict()))

    await queue.add("mail", {"to": "ada"})
    await Worker(queue.name, handle, redis_url=url).run_until_idle()

    ((fields, said),) = shown
    assert fields == said
    assert said["data"] == {"to": "ada"}


async def test_bytes_become_base_64_under_a_key_of_their_own(queue):
    job = await queue.add("mail", {"picture": b"\xff\x00", b"key": (1, b"")})

    assert job.to_dict()["data"] == {
        "picture": {"$base64": "/wA="}, "key": [1, {"$base64": ""}],
    }  # fmt: skip


async def test_counts_and_health_say_what_they_come_to(queue, url):
    await queue.add("mail", 1)

    assert (await queue.counts()).to_dict() == {
        "ready": 1, "running": 0, "delayed": 0, "dead": 0, "repeatable": 0, "backlog": 1,
    }  # fmt: skip
    said = Worker(queue.name, lambda job: job, redis_url=url).health().to_dict()
    assert (said["is_ok"], said["problems"]) == (False, ["the worker does not read jobs"])


async def test_answers_stay_as_they_are_made(queue):
    counts, state = await queue.counts(), await queue.get_job("nobody")

    for answer, name in ((counts, "ready"), (state, "state")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(answer, name, 5)


async def test_a_blocking_queue_answers_the_same(url, queue_name):
    def call():
        with blocking.Queue(queue_name, redis_url=url) as queue:
            return queue.add("mail", 1), queue.counts()

    job, counts = await asyncio.to_thread(call)

    assert json.dumps([job.to_dict(), counts.to_dict()])
    assert dataclasses.asdict(job).keys() == JOB_KEYS


def test_a_fastapi_endpoint_may_return_every_answer(url, queue_name):
    fastapi = pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")

    async def play() -> None:
        async with chasquimq.Queue(queue_name, redis_url=url) as queue:
            app = fastapi.FastAPI()
            found = await answers(queue, url)
            found["dead"] = json_value(found["dead"])
            found["survey"] = found["survey"].to_dict()
            found["handed"] = await queue.add("mail", {"to": "ada"})

            @app.get("/any/{name}")
            async def show(name: str):
                return found[name]

            @app.get("/counts")
            async def counts() -> chasquimq.Counts:
                return await queue.counts()

            @app.get("/job/{job_id}")
            async def job(job_id: str) -> chasquimq.JobState:
                return await queue.get_job(job_id)

            @app.post("/mails")
            async def add() -> chasquimq.Job:
                return await queue.add("mail", {"to": "ada"})

            @app.post("/many")
            async def add_many() -> list[chasquimq.Job]:
                return await queue.add_bulk([{"name": "n", "data": 1}])

            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                for name in found:
                    said = await client.get(f"/any/{name}")
                    assert said.status_code == 200, name
                    assert str(url) not in said.text
                assert (await client.get("/counts")).json()["delayed"] == 1
                assert (await client.get("/job/nobody")).json()["state"] == "unknown"
                added = (await client.post("/mails")).json()
                assert added.keys() == JOB_KEYS
                assert added["data"] == {"to": "ada"}
                assert (await client.post("/many")).json()[0].keys() == JOB_KEYS

    asyncio.run(play())


def test_a_fastapi_response_model_carries_data_that_json_has_no_form_for(url, queue_name):
    fastapi = pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")
    data = {"picture": b"\xff\x00", "text": b"abc", "ratio": float("inf"), 7: [b""]}
    shown = {
        "picture": {"$base64": "/wA="}, "text": {"$base64": "YWJj"}, "ratio": "inf",
        "7": [{"$base64": ""}],
    }  # fmt: skip

    async def play() -> None:
        async with chasquimq.Queue(queue_name, redis_url=url) as queue:
            app = fastapi.FastAPI()

            @app.post("/mails")
            async def add() -> chasquimq.Job:
                return await queue.add("mail", data)

            @app.get("/mails/{job_id}")
            async def find(job_id: str) -> chasquimq.JobState:
                return await queue.get_job(job_id)

            @app.get("/plans")
            async def plans() -> list[chasquimq.QuarantinedRepeatable]:
                return [chasquimq.QuarantinedRepeatable("plan", "broken", b"\xff", 1)]

            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                added = (await client.post("/mails")).json()
                assert added["data"] == shown
                found = (await client.get(f"/mails/{added['id']}")).json()
                assert found["data"] == shown
                assert (await client.get("/plans")).json()[0]["spec"] == {"$base64": "/w=="}
                schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
                assert schemas["Job"]["properties"].keys() == JOB_KEYS

    asyncio.run(play())


def test_a_starlette_endpoint_may_return_a_dict_of_every_answer(url, queue_name):
    responses = pytest.importorskip("starlette.responses")

    async def play():
        async with chasquimq.Queue(queue_name, redis_url=url) as queue:
            return {name: json_value(one) for name, one in (await answers(queue, url)).items()}

    for one in asyncio.run(play()).values():
        assert json.loads(responses.JSONResponse(one).body) == one


def test_flask_makes_json_of_answers(url, queue_name):
    flask = pytest.importorskip("flask")
    app = flask.Flask("test")
    with blocking.Queue(queue_name, redis_url=url) as queue:

        @app.post("/mails")
        def add():
            return flask.jsonify(queue.add("mail", {"to": "ada"}))

        @app.get("/counts")
        def counts():
            return flask.jsonify(queue.counts())

        @app.get("/plain")
        def plain():
            return queue.counts().to_dict()

        client = app.test_client()
        added = client.post("/mails").get_json()
        assert added.keys() == JOB_KEYS
        assert client.get("/counts").get_json()["ready"] == 1
        assert client.get("/plain").get_json()["backlog"] == 1


def test_django_makes_json_of_answers(url, queue_name):
    conf = pytest.importorskip("django.conf")
    from django.http import JsonResponse

    with suppress(RuntimeError):
        conf.settings.configure()
    with blocking.Queue(queue_name, redis_url=url) as queue:
        job = queue.add("mail", {"to": "ada"})

        assert json.loads(JsonResponse(job.to_dict()).content).keys() == JOB_KEYS
        assert json.loads(JsonResponse(queue.counts().to_dict()).content)["backlog"] == 1


async def test_a_pydantic_model_as_data_is_refused_with_the_call_that_helps(queue):
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Mail", to=(str, ...))(to="ada")

    with pytest.raises(chasquimq.EncodeError) as caught:
        await queue.add("mail", model)

    assert str(caught.value) == (
        'data is a Mail; convert it first, with data.model_dump(mode="json")'
    )
    assert (await queue.add("mail", model.model_dump(mode="json"))).data == {"to": "ada"}
