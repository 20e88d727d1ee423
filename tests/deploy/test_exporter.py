"""The exporter shows depths and a worker's page on a port of its own, and says when it cannot."""

from __future__ import annotations

import asyncio
import signal
import subprocess

import pytest

from deploy.exported import SCRAPE_LABELS, exported, series
from deploy.kit import EXPORTER, PROBE

NOBODY = "redis://127.0.0.1:1"


async def test_depths_are_served_as_chasqui_metrics_prints_them(exporter, get, queue, queue_name):
    await queue.add("charge", 1)

    status, page = await get(await exporter("depths", queue_name).port())

    assert status == 200
    assert f'chasquimq_queue_ready{{queue="{queue_name}",group="default"}} 1\n' in page


async def test_depths_of_a_server_that_is_away_are_an_error(exporter, get, queue_name):
    program = exporter("depths", queue_name, CHASQUI_REDIS_URL=NOBODY)

    status, _ = await get(await program.port())

    assert status == 500
    assert "a page could not be drawn" in program.err


async def test_a_broken_queue_hides_no_other(exporter, get, queue, queue_name, raw):
    await queue.add("charge", 1)
    broken = f"{queue_name}-broken"
    await raw("SET", f"{{chasqui:{broken}}}:stream", "text")
    program = exporter("depths", queue_name, broken)

    status, page = await get(await program.port())

    assert status == 200
    assert f'queue="{queue_name}"' in page
    assert f'queue="{broken}"' not in page
    assert "must hold a stream" in program.err


async def test_a_page_of_broken_queues_alone_is_an_error(exporter, get, queue_name, raw):
    await raw("SET", raw.keys.stream, "text")

    status, _ = await get(await exporter("depths", queue_name).port())

    assert status == 500


async def test_callers_at_the_same_time_share_one_look(exporter, get, queue, queue_name):
    await queue.add("charge", 1)
    port = await exporter("depths", queue_name).port()
    first = await get(port)
    await queue.add("charge", 2)

    assert await get(port) == first


async def test_the_page_of_a_worker_is_relayed(exporter, worker, get, queue, queue_name):
    program = worker("--metrics-port", "0", "--store-results")
    port = await program.port()
    job = await queue.add("mail", 1)
    await job.wait_for_result(timeout=20)

    relayed = await exporter("relay", "--from-port", str(port)).port()
    status, page = await get(relayed)

    assert status == 200
    assert f'chasquimq_jobs_completed_total{{name="mail",queue="{queue_name}"}} 1.0\n' in page


async def test_a_worker_exports_nothing_that_these_tests_do_not_know(worker, get, queue):
    program = worker("--metrics-port", "0", "--store-results")
    port = await program.port()
    job = await queue.add("mail", 1)
    await job.wait_for_result(timeout=20)

    _, page = await get(port)

    found = {name: labels for name, labels in series(page) if name.startswith("chasquimq_")}
    assert "chasquimq_worker_consuming" in found
    assert found == {name: exported()[name] - SCRAPE_LABELS for name in found}


async def test_a_worker_that_is_gone_is_an_error(exporter, worker, get):
    program = worker("--metrics-port", "0")
    port = await exporter("relay", "--from-port", str(await program.port())).port()
    assert (await get(port))[0] == 200

    assert await program.ended(signal.SIGTERM) == 0

    assert (await get(port))[0] == 500
    assert (await get(port, "/healthz"))[0] == 200


async def test_a_relay_leaves_a_network_that_has_no_worker(exporter):
    program = exporter("relay", "--from-port", "1", "--leave-after", "0.2")

    assert await program.ended() == 1
    assert "no worker has listened on port 1" in program.err


async def test_a_relay_stays_while_its_worker_does(exporter, worker, get):
    port = str(await worker("--metrics-port", "0").port())
    program = exporter("relay", "--from-port", port, "--leave-after", "0.5")

    await program.port()

    with pytest.raises(subprocess.TimeoutExpired):
        await asyncio.to_thread(program.process.wait, 1.5)
    assert await program.ended(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_well(exporter, queue_name, number):
    program = exporter("depths", queue_name)
    await program.port()

    assert await program.ended(number) == 0


async def test_a_port_that_is_taken_is_told_in_one_sentence(exporter, start, queue_name):
    port = await exporter("depths", queue_name).port()
    command = [*EXPORTER, "depths", queue_name, "--port", str(port)]
    program = start(command)

    assert await program.ended() == 1
    assert program.err.startswith("Error: --port must be free to listen on")


async def test_a_probe_tells_ready_from_silent(start, worker):
    program = worker("--metrics-port", "0")
    port = str(await program.port())
    await program.until_said("consuming queue=")

    assert await start([*PROBE, port, "/healthz"]).ended() == 0
    assert await start([*PROBE, port, "/readyz"]).ended() == 0
    lost = start([*PROBE, port, "/nowhere"])
    assert (await lost.ended(), lost.err) == (1, "/nowhere: 404\n")
    assert await start([*PROBE, "1", "/healthz"]).ended() == 1
    assert await start([*PROBE, "port"]).ended() == 2
