"""`chasqui metrics` prints a page that Prometheus reads, and replaces a file in one step."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.takes_turns


async def test_every_depth_is_a_sample_with_queue_and_group(chasqui, queue, queue_name, raw):
    await queue.add("a", 1)
    await raw("ZADD", raw.keys.delayed, 1_000, b"\0\0\0\0late")

    said = await chasqui("metrics", queue_name)

    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(said.out)
        for sample in family.samples
        if sample.labels == {"queue": queue_name, "group": "default"}
    }
    assert samples.pop("chasquimq_queue_oldest_delayed_lag_seconds") > 1_000_000
    assert samples == {
        "chasquimq_queue_up": 1, "chasquimq_queue_ready": 1, "chasquimq_queue_pending": 0,
        "chasquimq_queue_delayed": 1,
        "chasquimq_queue_dlq": 0, "chasquimq_queue_repeatable": 0,
        "chasquimq_queue_added_total": 1, "chasquimq_queue_left_total": 0,
    }  # fmt: skip


async def test_without_names_all_queues_are_on_the_page(chasqui, queue, queue_name):
    await queue.add("a", 1)

    said = await chasqui("metrics")

    assert f'chasquimq_queue_ready{{queue="{queue_name}",group="default"}} 1\n' in said.out


async def test_a_file_is_replaced_in_one_step(chasqui, queue, queue_name, tmp_path):
    await queue.add("a", 1)
    (tmp_path / "page.prom").write_text("old")

    said = await chasqui("metrics", queue_name, "--output", "page.prom")
    nowhere = await chasqui("metrics", queue_name, "--output", "no/such/dir/page.prom")

    assert said.out == ""
    assert "# TYPE chasquimq_queue_ready gauge\n" in (tmp_path / "page.prom").read_text()
    assert nowhere.code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["page.prom"]


async def test_a_file_below_a_file_is_refused_in_one_line(chasqui, queue, queue_name, tmp_path):
    await queue.add("a", 1)
    (tmp_path / "page.prom").write_text("old")

    said = await chasqui("metrics", queue_name, "--output", "page.prom/page")

    assert said.code == 1
    assert said.err.startswith("error: page.prom/page must be a file that can be written: ")
    assert len(said.err.splitlines()) == 1
    assert (tmp_path / "page.prom").read_text() == "old"


async def test_json_has_the_facts_of_inspect(chasqui, queue, queue_name):
    await queue.add("a", 1)

    (facts,) = (await chasqui("metrics", queue_name, "--json")).json

    assert (facts["queue"], facts["stream_depth"]) == (queue_name, 1)


async def test_an_unknown_queue_is_code_1_and_hides_no_other(chasqui, queue, queue_name):
    await queue.add("a", 1)
    unknown = f"{queue_name}-b"

    said = await chasqui("metrics", unknown, queue_name)
    facts = (await chasqui("metrics", unknown, queue_name, "--json")).json

    assert said.code == 1
    assert said.err.startswith(f"error: no queue named '{unknown}'; queues: ")
    assert len(said.err.splitlines()) == 1
    assert _values(said.out, unknown) == {"up": 0, "ready": 0}
    assert _values(said.out, queue_name) == {"up": 1, "ready": 1}
    assert [fact["queue"] for fact in facts] == [queue_name]


async def test_a_file_with_an_unknown_queue_is_replaced_all_the_same(
    chasqui, queue, queue_name, tmp_path
):
    await queue.add("a", 1)

    said = await chasqui("metrics", queue_name, f"{queue_name}-b", "--output", "page.prom")

    assert said.code == 1
    page = (tmp_path / "page.prom").read_text()
    assert _values(page, queue_name) == {"up": 1, "ready": 1}


async def test_a_broken_queue_is_not_up_and_hides_no_other(chasqui, queue, queue_name, raw):
    await queue.add("a", 1)
    broken = f"{queue_name}-b"
    await raw("SET", raw.keys.stream.replace(queue_name, broken), "text")

    said = await chasqui("metrics", broken, queue_name)

    assert said.code == 1
    assert "must hold a stream, found a string" in said.err
    assert _values(said.out, broken) == {"up": 0}
    assert _values(said.out, queue_name) == {"up": 1, "ready": 1}


def _values(page: str, queue: str) -> dict[str, float]:
    """Whether a queue is up, and what waits in it."""
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    found = {s.name: s.value for s in samples if s.labels == {"queue": queue, "group": "default"}}
    names = {name: f"chasquimq_queue_{name}" for name in ("up", "ready")}
    return {short: found[name] for short, name in names.items() if name in found}
