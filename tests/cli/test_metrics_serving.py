"""`chasqui metrics --port` answers every scrape with one read of the server, and outlives it."""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.faultproxy import FaultProxy

pytestmark = pytest.mark.takes_turns


async def test_a_scrape_reads_the_server_anew(running, queue, queue_name):
    port = await _served(running("metrics", queue_name, "--port", "0"))
    before = await _scrape(port)
    await queue.add("a", 1)

    after = await _scrape(port)

    assert (before["chasquimq_up"], before["chasquimq_queue_ready"]) == (1, 0)
    assert (after["chasquimq_up"], after["chasquimq_queue_ready"]) == (1, 1)


async def test_scrapes_at_once_share_one_look_also_at_a_server_with_a_name(
    running, queue, queue_name, url
):
    await queue.add("a", 1)
    async with FaultProxy(url) as proxy:
        named = proxy.url.replace("127.0.0.1", "localhost")
        port = await _served(running("metrics", queue_name, "--port", "0", CHASQUI_REDIS_URL=named))
        await _scrape(port)
        dials_before, proxy.latency_s = proxy.accept_count, 0.05

        async with asyncio.timeout(4):
            found = await asyncio.gather(*(_scrape(port) for _ in range(16)))

    assert [(one["chasquimq_up"], one["chasquimq_queue_ready"]) for one in found] == [(1, 1)] * 16
    assert proxy.accept_count - dials_before < 16


async def test_queues_that_appear_later_are_served_where_none_was_named(running, queue, queue_name):
    port = await _served(running("metrics", "--port", "0"))
    await queue.add("a", 1)

    page = await _get(port, "/metrics")

    assert f'chasquimq_queue_ready{{queue="{queue_name}",group="default"}} 1\n' in page


async def test_a_broken_queue_is_counted_and_hides_no_other(running, queue, queue_name, raw):
    await queue.add("a", 1)
    port = await _served(running("metrics", queue_name, f"{queue_name}-b", "--port", "0"))
    await raw("SET", raw.keys.stream.replace(queue_name, f"{queue_name}-b"), "text")

    found = await _scrape(port)

    assert (found["chasquimq_up"], found["chasquimq_broken_keys"]) == (1, 1)
    assert found["chasquimq_queue_ready"] == 1
    page = await _get(port, "/metrics")
    assert f'chasquimq_queue_up{{queue="{queue_name}",group="default"}} 1\n' in page
    assert f'chasquimq_queue_up{{queue="{queue_name}-b",group="default"}} 0\n' in page


async def test_a_queue_that_is_not_there_yet_is_not_up_and_hides_no_other(
    running, queue, queue_name
):
    later = f"{queue_name}-later"
    await queue.add("a", 1)
    port = await _served(running("metrics", later, queue_name, "--port", "0"))

    page = await _get(port, "/metrics")

    assert f'chasquimq_queue_up{{queue="{later}",group="default"}} 0\n' in page
    assert f'chasquimq_queue_ready{{queue="{later}",group="default"}} 0\n' in page
    assert f'chasquimq_queue_up{{queue="{queue_name}",group="default"}} 1\n' in page
    assert f'chasquimq_queue_ready{{queue="{queue_name}",group="default"}} 1\n' in page


async def test_a_server_that_goes_and_comes_is_up_0_and_1_again(running, queue, queue_name, url):
    await queue.add("a", 1)
    async with FaultProxy(url) as proxy:
        served = running("metrics", queue_name, "--port", "0", CHASQUI_REDIS_URL=proxy.url)
        port = await _served(served)
        before = await _scrape(port)
        proxy.refuse()
        down, still_down = await _scrape(port), await _scrape(port)
        await proxy.accept()
        after = await _scrape(port)

    assert (before["chasquimq_up"], before["chasquimq_queue_ready"]) == (1, 1)
    assert down == still_down == {"chasquimq_up": 0}
    assert (after["chasquimq_up"], after["chasquimq_queue_ready"]) == (1, 1)
    assert served.err.count("error: a server must answer at") == 1
    assert await served.ended(signal.SIGTERM) == 0


async def test_a_server_that_is_silent_is_up_0_before_a_scraper_gives_up(running, queue_name, url):
    async with FaultProxy(url) as proxy:
        port = await _served(running("metrics", "--port", "0", CHASQUI_REDIS_URL=proxy.url))
        proxy.freeze()

        async with asyncio.timeout(10):
            found = await _scrape(port)

    assert found == {"chasquimq_up": 0}


async def test_a_server_that_is_not_there_yet_is_served_as_down(running, environ, queue_name):
    served = running("metrics", "--port", "0", CHASQUI_REDIS_URL="redis://me:canary@127.0.0.1:1")
    port = await _served(served)

    found, health = await _scrape(port), await _get(port, "/healthz")

    assert found == {"chasquimq_up": 0}
    assert health == "ok\n"
    assert "canary" not in served.err
    assert await served.ended(signal.SIGINT) == 130


async def test_nothing_else_is_served(running):
    port = await _served(running("metrics", "--port", "0"))

    with pytest.raises(urllib.error.HTTPError) as refused:
        await _get(port, "/queues")

    refused.value.close()
    assert refused.value.code == 404


async def test_a_port_that_is_taken_is_code_1(program, running):
    port = await _served(running("metrics", "--port", "0"))

    said = await program("metrics", "--port", port)

    assert said.code == 1
    assert said.err.startswith(f"error: --port {port} must be free to listen on")
    assert len(said.err.splitlines()) == 1


async def test_the_page_is_served_on_the_address_that_is_named_and_nowhere_else(running):
    command = running("metrics", "--port", "0", "--host", "127.0.0.2")
    await command.until_said("serving http://127.0.0.2:")
    port = re.search(r"127\.0\.0\.2:(\d+)/metrics", command.err)[1]

    assert await _get(port, "/healthz", "127.0.0.2") == "ok\n"
    with pytest.raises(urllib.error.URLError):
        await _get(port, "/healthz")


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "a..b"])
async def test_a_host_that_is_not_ours_is_code_1_in_one_line(bare_program, host):
    said = await bare_program("metrics", "--port", "0", "--host", host)

    assert said.code == 1
    assert said.err.startswith(f"error: --host {host} must be an address or a name of this machine")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "0", "--json"),
        ("--port", "0", "--output", "page"),
        ("--host", "127.0.0.1"),
        ("--port", "0", "--host", " "),
    ],
    ids=["a page has no JSON", "a page is no file", "an address without a port", "no address"],
)
async def test_options_that_do_not_go_together_are_code_2(bare_program, words):
    said = await bare_program("metrics", *words)

    assert said.code == 2


@pytest.mark.parametrize("words", [("a b",), ("--group", "a b")], ids=["queue", "group"])
async def test_a_name_that_cannot_be_is_refused_before_anything_is_served(bare_program, words):
    said = await bare_program("metrics", *words, "--port", "0")

    assert said.code == 2
    assert "must be" in said.err
    assert "serving" not in said.err


async def _served(command) -> str:
    await command.until_said("serving http://127.0.0.1:")
    found = re.search(r"127\.0\.0\.1:(\d+)/metrics", command.err)
    return found[1]


async def _scrape(port: str) -> dict[str, float]:
    page = await _get(port, "/metrics")
    families = text_string_to_metric_families(page)
    return {sample.name: sample.value for family in families for sample in family.samples}


async def _get(port: str, path: str, host: str = "127.0.0.1") -> str:
    def ask() -> str:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(ask)
