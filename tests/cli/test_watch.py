"""`chasqui watch` shows change, rates and an outlook, and puts the terminal back as it was."""

from __future__ import annotations

import json
import signal
import time

import pytest

from chasquimq import Worker
from chasquimq.cli.app import main
from chasquimq.cli.commands.watch import watch_samples
from chasquimq.model.forecast import Rates, Trend, about, outlook
from chasquimq.model.snapshot import Snapshot
from chasquimq.queue.inspector import Inspector
from support.command import ESCAPES
from support.faultproxy import FaultProxy

pytestmark = pytest.mark.takes_turns


async def test_every_look_is_a_block_and_the_second_has_changes(chasqui, queue, queue_name):
    await queue.add("a", 1)

    said = await chasqui("watch", queue_name, "--interval-ms", "50", "--count", "2")

    first, second = said.out.strip().split("\n\n")
    assert "Δ" not in first
    assert "Δ" in second
    assert ["stream depth", "1", "0"] in [
        line.split("  ")[:1] + line.split()[-2:] for line in second.splitlines()
    ]
    assert second.splitlines()[-1] == "steady"
    assert "\x1b" not in said.out


async def test_every_depth_has_its_change(running, queue, queue_name):
    await queue.add("a", 1)
    watching = running("watch", queue_name, "--interval-ms", "100")
    await watching.until_said("Δ")

    await queue.add("later", 1, delay_ms=60_000)
    await watching.until_said("+1")

    last = watching.out.strip().split("\n\n")[-1]
    changes = {line.split("  ")[0]: line.split()[-1] for line in last.splitlines()}
    depths = ("stream depth", "pending", "DLQ depth", "delayed depth", "repeatable count")
    assert [changes[depth] for depth in depths] == ["0", "0", "0", "+1", "0"]


async def test_a_look_says_who_works(chasqui, queue, queue_name, url):
    await queue.add("a", 1)
    await Worker(queue_name, print, redis_url=url).run_until_idle()
    words = ("watch", queue_name, "--count", "1")

    said = await chasqui(*words)
    as_json = await chasqui(*words, "--json")

    rows = {line.split("  ")[0]: line.split()[-1] for line in said.out.split("\n") if line}
    assert rows["workers"] == "none"
    assert as_json.json["workers"] == {"alive": 0, "silent": 0, "dead": 0}


class WorkersAsked(FaultProxy):
    """Counts how often it is asked for the workers."""

    count = 0

    async def request(self, chunk, pipe):
        self.count += chunk.count(b"CONSUMERS")
        return await super().request(chunk, pipe)


async def test_workers_are_asked_for_once_a_second_however_often_it_looks(queue, queue_name, url):
    await queue.add("a", 1)
    async with WorkersAsked(url) as proxy, Inspector(redis_url=proxy.url) as inspector:
        began_s, looks = time.monotonic(), watch_samples(inspector, queue_name, "default", 1)
        for _ in range(50):
            await anext(looks)

        assert 1 <= proxy.count <= 1 + (time.monotonic() - began_s) / 0.9


async def test_a_look_without_an_answer_about_workers_shows_the_rest(queue, queue_name, url):
    await queue.add("a", 1)
    async with (
        FaultProxy(url) as proxy,
        Inspector(redis_url=proxy.url, command_timeout_ms=500) as inspector,
    ):
        looks = watch_samples(inspector, queue_name, "default", 50)
        first = await anext(looks)
        proxy.lose_replies(1, [b"CONSUMERS"])
        await queue.add("a", 2)
        lost = await anext(looks)
        while lost.error is None:
            lost = await anext(looks)

    assert (first.snapshot.stream_depth, lost.snapshot.stream_depth) == (1, 2)
    assert lost.states == first.states == {"alive": 0, "silent": 0, "dead": 0}


async def test_json_is_one_document_a_look(chasqui, queue, queue_name):
    await queue.add("a", 1)

    said = await chasqui("watch", queue_name, "--json", "--interval-ms", "50", "--count", "2")

    first, second = map(json.loads, said.out.splitlines())
    assert (first["stream_depth"], first["outlook"]) == (1, None)
    assert (second["growth_per_s"], second["outlook"]) == (0, "steady")


async def test_jobs_that_come_are_seen_as_growth(running, queue, queue_name):
    await queue.add("a", 1)
    watching = running("watch", queue_name, "--json", "--interval-ms", "100")
    await watching.until_said("stream_depth")

    await queue.add_bulk([{"name": "a", "data": at} for at in range(500)])
    await watching.until_said("will not clear")

    last = json.loads(watching.out.splitlines()[-1])
    assert last["stream_depth"] == 501
    assert last["added_per_s"] == last["growth_per_s"] > 0
    assert await watching.ended(signal.SIGINT) == 130


async def test_a_terminal_is_redrawn_and_left_with_its_cursor(terminal, queue, queue_name):
    await queue.add("a", 1)

    said = await terminal("watch", queue_name, "--interval-ms", "50", until="steady")

    shown = ESCAPES.sub("", said.out)
    assert said.code == 130
    assert "Ctrl+C ends" in shown
    assert "┆ Δ" in shown
    assert said.out.count("\x1b[?25l") == said.out.count("\x1b[?25h") == 1
    assert "Traceback" not in shown


async def test_an_unknown_queue_is_told_before_the_screen_is_cleared(terminal, queue_name):
    said = await terminal("watch", queue_name)

    assert said.code == 1
    assert "\x1b[2J" not in said.out
    assert f"no queue named '{queue_name}'" in said.out


def test_an_interval_of_nothing_is_wrong_usage():
    assert main(["watch", "q", "--interval-ms", "0"]) == 2


@pytest.mark.own_server(port=0)
async def test_a_server_that_goes_away_is_told_and_waited_for(server, running):
    added = running("add", "q", "a")
    assert await added.ended() == 0
    watching = running("watch", "q", "--interval-ms", "100", "--json")
    await watching.until_said("steady")

    server.kill()
    server.start()

    count = watching.out.count("\n")
    await watching.until(lambda: watching.out.count("\n") > count + 1, "another look")
    assert await watching.ended(signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("depth", "rates", "sentence"),
    [
        (4_800, Rates(-20, 100, 120), "clears in about 4 min"),
        (50, Rates(-20, 0, 20), "clears in about 3 s"),
        (900_000, Rates(-10, 0, 10), "clears in about 2 d"),
        (10, Rates(120, 120, 0), "grows by 120/s, will not clear"),
        (10, Rates(2.5), "grows by 2.5/s, will not clear"),
        (10, Rates(0, 50, 50), "steady"),
        (10_000, Rates(-1, 100, 101), "steady"),
        (0, Rates(0, 0, 0), "steady, nothing waits"),
        (0, Rates(-50, 0, 50), "cleared, nothing waits"),
    ],
)
def test_the_sentence_follows_from_depth_and_rates(depth, rates, sentence):
    assert outlook(depth, rates) == sentence


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (59, "59 s"), (61, "2 min"), (7_300, "3 h")]
)
def test_a_duration_is_told_in_its_largest_unit(seconds, text):
    assert about(seconds) == text


def test_rates_cover_the_window_and_forget_what_was_before():
    trend = Trend(window_ms=10_000)
    for second in range(31):
        # A flood at first, then one job a second.
        depth = 1_000 * second if second < 15 else 14_000 + (second - 14)
        trend.add(_snapshot(second * 1_000, depth))

    assert trend.rates == Rates(1, 1, 0)


def test_a_server_that_does_not_count_still_has_an_outlook():
    trend = Trend()
    trend.add(_snapshot(0, 100, counted=False))
    trend.add(_snapshot(1_000, 90, counted=False))

    assert trend.rates == Rates(-10)
    assert trend.sentence == "clears in about 9 s"


def test_one_look_tells_nothing():
    trend = Trend()
    trend.add(_snapshot(0, 100))

    assert (trend.rates, trend.sentence) == (None, None)


def _snapshot(at_ms: int, depth: int, *, counted: bool = True) -> Snapshot:
    return Snapshot(
        queue="q", group="default", at_ms=at_ms, exists=True, has_group=True, stream_depth=depth,
        pending=0, dlq_depth=0, delayed_depth=0, oldest_delayed_lag_ms=None, repeatable_count=0,
        added_total=depth if counted else None,
    )  # fmt: skip
