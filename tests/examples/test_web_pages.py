"""The applications on the page about web frameworks answer whatever becomes of server and job."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from chasquimq import Job, UnrecoverableError, Worker
from support.waiting import eventually, patience
from support.web_frameworks import AsgiClient, ask_wsgi, stand_in

PAGE = Path(__file__).parents[2] / "docs/how-to/flask-and-django.md"
BLOCK = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
# The page gives both kinds of calls two seconds.
ANSWER_S = 2.5
# Calls came all the time, so that no dial was left for those who come between two.
BACK_S = 6.5
pytestmark = [pytest.mark.own_server(aof="always"), pytest.mark.takes_turns]


def application(framework: str, url: str) -> dict:
    """What the page defines under the name of a framework; a queue that names no server looks."""
    blocks = [dedent(one) for one in BLOCK.findall(PAGE.read_text()) if f"from {framework}" in one]
    (block,) = blocks
    code = block.replace("redis://127.0.0.1:6379", url)
    assert "redis_url" not in code or url in code
    defined = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), defined)
    return defined


@asynccontextmanager
async def fastapi(url: str):
    defined = application("fastapi", url)
    async with defined["lifespan"](defined["app"]):
        yield AsgiClient(defined["app"]).ask


@asynccontextmanager
async def flask(url: str):
    defined = application("flask", url)

    async def ask(method: str, path: str, query: str = "") -> tuple[int, dict, bytes]:
        return await asyncio.to_thread(ask_wsgi, defined["app"], method, path, query.encode())

    yield ask
    await asyncio.to_thread(defined["queue"].close)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("framework", [fastapi, flask], ids=["fastapi", "flask"])
async def test_an_application_answers_503_while_the_server_is_away(framework, server, monkeypatch):
    is_fastapi = framework is fastapi
    stand_in(monkeypatch, "fastapi" if is_fastapi else "flask")
    monkeypatch.setenv("CHASQUI_REDIS_URL", server.url)
    async with framework(server.url) as ask:
        code, _, body = await ask("POST", "/sign-up", "email=ada")
        assert (code, len(body) >= 26) == (202, True)
        server.kill()

        question = ("GET", "/jobs/nobody" if is_fastapi else "/backlog")
        outcomes = []
        for method, path in (("POST", "/sign-up"), question, ("POST", "/sign-up")):
            began_s = time.monotonic()
            code, headers, body = await ask(method, path, "email=bob" if method == "POST" else "")
            assert time.monotonic() - began_s < ANSWER_S * patience()
            assert (code, headers["retry-after"]) == (503, "5")
            outcomes.append(json.loads(body)["outcome"] if is_fastapi else body.decode())
        # The first may have left before anybody knew that the server was gone.
        assert outcomes[-1] == "not_done"

        await asyncio.to_thread(server.start)

        async def is_back() -> bool:
            return (await ask("POST", "/sign-up", "email=cid"))[0] == 202

        await eventually(is_back, within_s=BACK_S, what="an add after the outage")


@pytest.mark.timeout(60)
async def test_a_route_that_waits_has_an_answer_for_each_end_of_its_job(server, monkeypatch):
    stand_in(monkeypatch, "fastapi")
    monkeypatch.setenv("CHASQUI_REDIS_URL", server.url)

    def greet(job: Job) -> str:
        if job.data["name"] == "nemo":
            raise UnrecoverableError("no such guest")
        return f"hello, {job.data['name']}"

    async with fastapi(server.url) as ask:
        late = await ask("POST", "/greetings", "name=eve")
        worker = Worker("mails", greet, redis_url=server.url, store_results=True)
        running = asyncio.create_task(worker.run())
        done = await ask("POST", "/greetings", "name=ada")
        dead = await ask("POST", "/greetings", "name=nemo")
        await worker.close()
        await running

    assert late[0] == 504
    assert (done[0], json.loads(done[2])) == (200, {"result": "hello, ada"})
    assert (dead[0], json.loads(dead[2])) == (500, {"reason": "unrecoverable"})
