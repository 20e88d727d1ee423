"""`chasqui metrics`: the depths of all queues in the text format of Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from chasquimq.cli.inspect import snapshot_facts
from chasquimq.cli.options import group_option, json_option, redis_url_option
from chasquimq.cli.queues import every_snapshot
from chasquimq.cli.render import emit_json
from chasquimq.cli.server_choice import running_server
from chasquimq.cli.visit import run, visit
from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.model.snapshot import Snapshot


class Metric(NamedTuple):
    """A family, the attribute of a snapshot that it shows, and in which unit."""

    name: str
    kind: str
    help: str
    attribute: str
    per_unit: int = 1

    def value(self, snapshot: Snapshot) -> float | None:
        """None where the server does not tell."""
        number: int | None = getattr(snapshot, self.attribute)
        return number if number is None or self.per_unit == 1 else number / self.per_unit


METRICS = (
    Metric("ready", "gauge", "Jobs that wait for a worker.", "ready"),
    Metric("pending", "gauge", "Jobs that workers hold.", "pending"),
    Metric("delayed", "gauge", "Jobs that wait for their time.", "delayed_depth"),
    Metric("dlq", "gauge", "Dead jobs.", "dlq_depth"),
    Metric("repeatable", "gauge", "Repeatable jobs.", "repeatable_count"),
    Metric(
        "oldest_delayed_lag_seconds",
        "gauge",
        "How late the first delayed job is; no sample where none is delayed.",
        "oldest_delayed_lag_ms",
        1_000,
    ),
    Metric("added_total", "counter", "Entries ever added to the stream.", "added_total"),
    Metric("left_total", "counter", "Entries that left the stream.", "left_total"),
)


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@group_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Replace this file in one step, for a textfile collector.  [default: stdout]",
)
@redis_url_option
@json_option
def metrics(
    queues: tuple[str, ...],
    group: str,
    output: Path | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Print the depths of QUEUEs, or of all, as Prometheus reads them."""
    url = running_server(redis_url)
    snapshots = run(_some(queues, url, group) if queues else every_snapshot(url, group))
    if as_json:
        emit_json([snapshot_facts(snapshot) for snapshot in snapshots])
        return
    page = "".join(f"{line}\n" for line in exposition(snapshots))
    if output is None:
        click.echo(page, nl=False)
    else:
        _replace(output, page)


def exposition(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """The lines of a page."""
    for metric in METRICS:
        name = f"chasquimq_queue_{metric.name}"
        yield f"# HELP {name} {metric.help}"
        yield f"# TYPE {name} {metric.kind}"
        yield from _samples(name, metric, snapshots)


def _samples(name: str, metric: Metric, snapshots: Iterable[Snapshot]) -> Iterator[str]:
    for snapshot in snapshots:
        value = metric.value(snapshot)
        if value is not None:
            labels = f'queue="{_escaped(snapshot.queue)}",group="{_escaped(snapshot.group)}"'
            yield f"{name}{{{labels}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def _some(queues: Sequence[str], url: str, group: str) -> list[Snapshot]:
    found: list[Snapshot] = []
    for queue in dict.fromkeys(queues):
        async with visit(queue, url) as seen:
            found.append(await seen.inspector.snapshot(queue, group))
    return found


def _replace(output: Path, page: str) -> None:
    draft = output.with_name(f"{output.name}.part-{os.getpid()}")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(output)
    except OSError as error:
        raise StoreError(
            f"{output} must be a file that can be written: {error.strerror}"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
