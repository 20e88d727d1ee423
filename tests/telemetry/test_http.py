"""The endpoint for scrapers and probes, over a real socket."""

import asyncio
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from chasquimq.errors import SettingsError
from chasquimq.telemetry.http import (
    CONNECTIONS_MAX,
    PROBLEM_CHARS_MAX,
    REQUEST_BYTES_MAX,
    MetricsServer,
)
from chasquimq.telemetry.prometheus import PrometheusSink
from chasquimq.telemetry.sink import JobOutcome


class Probes:
    """Answers a test may change."""

    is_healthy = True
    is_ready = True
    page = b"up 1\n"
    problems: ClassVar[list[str]] = []


@pytest.fixture
def probes():
    return Probes()


@pytest.fixture
async def server(probes):
    async with MetricsServer(
        lambda: probes.page,
        is_healthy=lambda: probes.is_healthy,
        is_ready=lambda: probes.is_ready,
        problems=lambda: probes.problems,
    ) as server:
        yield server


async def send(server, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await rest_of(reader)
    writer.close()
    return answer


async def rest_of(reader) -> bytes:
    """What still comes; a reset ends it as an end does."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def ask(server, path, method="GET") -> tuple[int, dict[str, str], bytes]:
    answer = await send(server, f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert method == "HEAD" or int(headers["content-length"]) == len(body)
    return int(status.split()[1]), headers, body


async def test_a_scrape_reads_the_numbers_of_a_sink(server, probes):
    sink = PrometheusSink(registry=CollectorRegistry())
    sink.job_outcomes([JobOutcome("ok", 1, 5, "mail")])
    probes.page = sink.exposition()

    status, headers, body = await ask(server, "/metrics")

    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert families["chasquimq_jobs_completed"].samples[0].value == 1


async def test_probes_tell_whether_all_is_well(server):
    assert await ask(server, "/healthz") == await ask(server, "/readyz")
    assert (await ask(server, "/healthz"))[::2] == (200, b"ok\n")


async def test_a_worker_that_does_not_consume_is_healthy_but_not_ready(server, probes):
    probes.is_ready = False

    assert (await ask(server, "/healthz"))[0] == 200
    assert (await ask(server, "/readyz"))[::2] == (503, b"service unavailable\n")


async def test_a_page_that_is_not_ready_says_why_in_one_line_for_each_problem(server, probes):
    probes.is_ready = False
    probes.problems = ["the worker does not read jobs", "loop reader keeps failing: ü"]

    status, headers, body = await ask(server, "/readyz")

    assert (status, headers["content-type"]) == (503, "text/plain; charset=utf-8")
    assert body.decode() == (
        "service unavailable\nthe worker does not read jobs\nloop reader keeps failing: ü\n"
    )
    assert (await ask(server, "/healthz"))[::2] == (200, b"ok\n")


async def test_the_words_of_a_problem_neither_end_a_line_nor_speak_to_a_terminal(server, probes):
    probes.is_ready = False
    probes.problems = ["a\r\n\r\nHTTP/1.1 200 OK\x1b[2J\ud800", "x" * 5_000]

    _, headers, body = await ask(server, "/readyz")

    said = body.decode().splitlines()
    assert said[1] == r"a\r\n\r\nHTTP/1.1 200 OK\x1b[2J\ud800"
    assert len(said) == 3
    assert len(said[2]) <= PROBLEM_CHARS_MAX
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_worker_that_is_ready_shows_no_problems(server, probes):
    probes.problems = ["old news"]

    assert (await ask(server, "/readyz"))[::2] == (200, b"ok\n")


async def test_a_worker_that_is_not_healthy_says_so(server, probes):
    probes.is_healthy = False

    assert (await ask(server, "/healthz"))[0] == 503


async def test_a_query_behind_the_path_is_let_be(server):
    assert (await ask(server, "/metrics?name[]=up"))[0] == 200


async def test_head_answers_without_a_body(server):
    status, headers, body = await ask(server, "/metrics", "HEAD")

    assert (status, headers["content-length"], body) == (200, "5", b"")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/../etc", 404), ("POST", "/metrics", 405)],
)
async def test_other_requests_are_refused(server, method, path, status):
    assert (await ask(server, path, method))[0] == status


@pytest.mark.parametrize(
    "request_bytes",
    [b"\r\n\r\n", b"hello\r\n\r\n", b"GET /metrics SPDY/3\r\n\r\n", b"\xff\xfe\x00 \r\n\r\n"],
    ids=["empty", "word", "protocol", "noise"],
)
async def test_what_is_no_request_is_answered_as_such(server, request_bytes):
    assert (await send(server, request_bytes)).startswith(b"HTTP/1.1 400 ")


async def test_a_request_has_a_greatest_length(server):
    too_long = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX * 2 + b"\r\n\r\n"

    answer = await send(server, too_long)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


async def test_a_caller_that_leaves_early_disturbs_nobody(server):
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metr")
    writer.close()

    assert (await ask(server, "/metrics"))[0] == 200


async def test_a_caller_that_says_nothing_is_dropped(probes, monkeypatch):
    monkeypatch.setattr("chasquimq.telemetry.http.REQUEST_S_MAX", 0.05)
    async with MetricsServer(bytes, is_healthy=bool, is_ready=bool) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

        assert await rest_of(reader) == b""
        writer.close()


async def call(server, host="127.0.0.1"):
    return await asyncio.open_connection("127.0.0.1", server.port, local_addr=(host, 0))


async def is_dropped(caller) -> bool:
    try:
        async with asyncio.timeout(0.2):
            return await rest_of(caller[0]) == b""
    except TimeoutError:
        return False


async def test_the_oldest_silent_caller_makes_room_for_a_new_one(server):
    silent = [await call(server) for _ in range(CONNECTIONS_MAX)]

    assert (await ask(server, "/healthz"))[0] == 200
    assert [await is_dropped(caller) for caller in silent[:2]] == [True, False]
    for _, writer in silent:
        writer.close()


async def test_a_host_with_many_silent_callers_pushes_out_no_other_host(server):
    other = await call(server, "127.0.0.2")
    crowd = [await call(server) for _ in range(2 * CONNECTIONS_MAX)]

    other[1].write(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (await rest_of(other[0])).startswith(b"HTTP/1.1 200 ")
    for _, writer in [other, *crowd]:
        writer.close()


async def test_a_caller_whose_page_is_drawn_is_not_dropped_for_one_that_says_nothing():
    begun, go = asyncio.Event(), asyncio.Event()

    async def page() -> bytes:
        begun.set()
        await go.wait()
        return b"up 1\n"

    async with MetricsServer(page, is_healthy=bool, is_ready=bool) as server:
        scraping = asyncio.create_task(ask(server, "/metrics"))
        await begun.wait()
        crowd = [await call(server) for _ in range(2 * CONNECTIONS_MAX)]
        go.set()

        assert (await scraping)[2] == b"up 1\n"
        for _, writer in crowd:
            writer.close()


async def test_a_caller_that_drips_bytes_has_no_longer_than_one_that_says_nothing(monkeypatch):
    monkeypatch.setattr("chasquimq.telemetry.http.REQUEST_S_MAX", 0.3)
    async with MetricsServer(bytes, is_healthy=bool, is_ready=bool) as server:
        reader, writer = await call(server)
        end = asyncio.create_task(rest_of(reader))
        async with asyncio.timeout(5):
            while not end.done():
                writer.write(b"G")
                await asyncio.sleep(0.02)

        assert await end == b""
        writer.close()


async def test_a_page_that_cannot_be_drawn_is_an_error_told_once(probes, caplog):
    async with MetricsServer(
        lambda: 1 // 0, is_healthy=lambda: True, is_ready=lambda: True
    ) as server:
        answers = [(await ask(server, "/metrics"))[0] for _ in range(3)]

    assert answers == [500, 500, 500]
    assert [line.getMessage() for line in caplog.records] == ["the page /metrics could not be made"]


async def test_stopping_drops_those_who_are_still_talking(probes):
    server = MetricsServer(bytes, is_healthy=bool, is_ready=bool)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metr")

    async with asyncio.timeout(2):
        await server.stop()
        await server.stop()

    assert await rest_of(reader) == b""
    writer.close()


async def test_a_stopped_server_leaves_its_port(server):
    port = server.port

    await server.stop()

    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_only_this_machine_is_served_by_default(server):
    (listening,) = server._server.sockets

    assert listening.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_refused(port):
    with pytest.raises(SettingsError, match="port"):
        MetricsServer(bytes, is_healthy=bool, is_ready=bool, port=port)
