"""`chasqui metrics`: prints or serves the depths of all queues for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from chasquimq.cli.commands.inspect import report_broken, snapshot_facts, survey_all
from chasquimq.cli.context import (
    group_option,
    json_option,
    possible_queue,
    redis_url_option,
    run,
    running_server,
    unknown_queue,
)
from chasquimq.cli.files import whole_file
from chasquimq.cli.output.render import emit_json, talk
from chasquimq.cli.service import HOST, LOOPBACK, Endpoint, on_signals, reported_exit_code
from chasquimq.cli.values import PORT_OR_ANY
from chasquimq.errors import ChasquiError, StoreError
from chasquimq.telemetry.http import MetricsServer

if TYPE_CHECKING:
    from chasquimq.model.snapshot import Snapshot
    from chasquimq.queue.inspector import Inspector, Survey


class Metric(NamedTuple):
    """A family, the attribute of a snapshot that it shows, and in which unit."""

    name: str
    kind: str
    help: str
    attribute: str
    per_unit: int = 1

    @property
    def full_name(self) -> str:
        return f"chasquimq_queue_{self.name}"

    def value(self, snapshot: Snapshot) -> float | None:
        """None where the server does not report it."""
        number: int | None = getattr(snapshot, self.attribute)
        return number if number is None or self.per_unit == 1 else number / self.per_unit


# Also of queues that cannot be read, of which there is no snapshot.
UP = Metric("up", "gauge", "1 where the queue is there and can be read, else 0.", "exists")
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
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", callback=possible_queue)
@group_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Replace this file in one step, for a textfile collector.  [default: stdout]",
)
@click.option(
    "--port",
    type=PORT_OR_ANY,
    help="Serve /metrics on this port until Ctrl+C; 0 is any free one.",
)
@click.option(
    "--host", type=HOST, metavar="ADDRESS", help="Where --port listens.  [default: 127.0.0.1]"
)
@redis_url_option
@json_option
def metrics(
    queues: tuple[str, ...],
    group: str,
    output: Path | None,
    port: int | None,
    host: str | None,
    redis_url: str | None,
    as_json: bool,
) -> int:
    """Print the depths of QUEUEs, or of all, as Prometheus reads them.

    A queue that is broken or not there hides no other: it is named on stderr, and the exit code
    is 1. With --port the page is served instead, and read again for every scrape.
    """
    if port is None and host is not None:
        raise click.UsageError("--host says where --port listens; give both.")
    if port is not None and (as_json or output is not None):
        raise click.UsageError("--port serves a page; --json and --output print one.")
    url = running_server(redis_url)
    if port is not None:
        return run(_serve(queues, group, url, Endpoint(host or LOOPBACK, port)))
    survey, unknown = run(_survey(queues, url, group) if queues else _survey_all(url, group))
    if as_json:
        emit_json([snapshot_facts(one) for one in survey.snapshots if one.queue not in unknown])
    else:
        _put(output, "".join(f"{line}\n" for line in exposition(survey, group)))
    for complaint in unknown.values():
        talk(f"error: {complaint}")
    return report_broken(survey) or int(bool(unknown))


async def _serve(queues: Sequence[str], group: str, url: str, endpoint: Endpoint) -> int:

    return await MetricsService(queues, group, url).serve(endpoint)


def exposition(survey: Survey, group: str) -> Iterator[str]:
    """The lines of a page."""
    yield from _head(UP)
    for name, is_up in _states(survey).items():
        yield f"{UP.full_name}{{{_labels(name, group)}}} {int(is_up)}"
    for metric in METRICS:
        yield from _head(metric)
        yield from _samples(metric, survey.snapshots)


def _head(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.full_name} {metric.help}"
    yield f"# TYPE {metric.full_name} {metric.kind}"


def _states(survey: Survey) -> dict[str, bool]:
    return {one.queue: one.exists for one in survey.snapshots} | dict.fromkeys(
        [*survey.broken_queues, *survey.unseen], False
    )


def _samples(metric: Metric, snapshots: Iterable[Snapshot]) -> Iterator[str]:
    for snapshot in snapshots:
        value = metric.value(snapshot)
        if value is not None:
            yield f"{metric.full_name}{{{_labels(snapshot.queue, snapshot.group)}}} {value}"


def _labels(queue: str, group: str) -> str:
    return f'queue="{_escaped(queue)}",group="{_escaped(group)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def _survey(queues: Sequence[str], url: str, group: str) -> tuple[Survey, dict[str, str]]:
    """The queues that are named, and a sentence about each of them that is not there."""
    from chasquimq.queue.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        survey = await inspector.survey(list(dict.fromkeys(queues)), group)
        missing = [snapshot.queue for snapshot in survey.snapshots if not snapshot.exists]
        known = await inspector.queues(on_missed=survey.missed.append) if missing else []
        return survey, {name: unknown_queue(name, known) for name in missing}


async def _survey_all(url: str, group: str) -> tuple[Survey, dict[str, str]]:
    return await survey_all(url, group), {}


def _put(output: Path | None, page: str) -> None:
    if output is None:
        click.echo(page, nl=False)
    else:
        _replace(output, page)


def _replace(output: Path, page: str) -> None:
    try:
        with whole_file(output, is_private=False) as file:
            file.write(page)
    except OSError as error:
        raise StoreError(
            f"{output} must be a file that can be written: {error.strerror}"
        ) from error


# Prometheus gives up after ten seconds by default; it should get `up 0` before.
SCRAPE_S_MAX = 8.0


class MetricsService:
    """The pages of some queues, or of all that each scrape finds."""

    def __init__(self, queues: Sequence[str], group: str, url: str) -> None:
        self._queues = list(dict.fromkeys(queues))
        self._group = group
        self._url = url
        self._look: asyncio.Task[str] | None = None
        self._is_up = True
        self._signal: int | None = None
        self._stopped = asyncio.Event()

    async def serve(self, endpoint: Endpoint) -> int:
        """Answer scrapers until a signal; the answer is the exit code.

        Raises:
            SettingsError: a name cannot be that of a queue or a group, or the URL that of a server.
            StoreError: the address cannot be listened on.
        """
        self._check_names()
        on_signals(self._stop)
        server = await self._listening(endpoint)
        try:
            url = f"http://{endpoint.shown_host}:{server.port}/metrics"
            talk(f"serving {url}; Ctrl+C ends it")
            await self._stopped.wait()
        finally:
            await server.stop()
            if self._look is not None:
                self._look.cancel()
        return reported_exit_code(self._signal)

    async def shared_page(self) -> bytes:
        """The page of the look that is under way; scrapes at once cost the server one look."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self.page(), name="chasqui-look")
        # A scraper that leaves must not end the look of the others.
        return (await asyncio.shield(self._look)).encode()

    async def page(self) -> str:
        """What a scraper reads now; a server that does not answer is `chasquimq_up 0`."""
        try:
            async with asyncio.timeout(SCRAPE_S_MAX), self._new_inspector() as inspector:
                survey = await self._survey(inspector)
        except TimeoutError:
            self._note_down(f"the server must answer within {SCRAPE_S_MAX:g} s and did not")
        except ChasquiError as failed:
            self._note_down(str(failed))
        else:
            self._note_up()
            return scrape_page(survey, self._group)
        return scrape_page(None, self._group)

    def _check_names(self) -> None:
        from chasquimq.queue.inspector import check_group_name, check_queue_name

        # What can never be is refused now, not at every scrape.
        self._new_inspector()
        check_group_name(self._group)
        for queue in self._queues:
            check_queue_name(queue)

    def _stop(self, number: int) -> None:
        self._signal = number
        self._stopped.set()

    async def _listening(self, endpoint: Endpoint) -> MetricsServer:
        # Ready even while the server is down: only a process that is scraped can report that it is.
        server = MetricsServer(
            self.shared_page,
            is_healthy=lambda: True,
            is_ready=lambda: True,
            host=endpoint.host,
            port=endpoint.port,
        )
        await endpoint.start(server)
        return server

    def _new_inspector(self) -> Inspector:
        from chasquimq.queue.inspector import Inspector

        # New for every scrape: a first dial fails at once, a later one is tried for long.
        return Inspector(redis_url=self._url)

    async def _survey(self, inspector: Inspector) -> Survey:
        if not self._queues:
            return await inspector.survey_all(self._group)
        return await inspector.survey(self._queues, self._group)

    def _note_down(self, why: str) -> None:
        if self._is_up:
            talk(f"error: {why}")
        self._is_up = False

    def _note_up(self) -> None:
        if not self._is_up:
            talk("the server answers again")
        self._is_up = True


def scrape_page(survey: Survey | None, group: str) -> str:
    """The text that a scraper is given; None is a server that did not answer."""
    depths = () if survey is None else exposition(survey, group)
    return "".join(f"{line}\n" for line in (*_about_scrape(survey), *depths))


def _about_scrape(survey: Survey | None) -> Iterator[str]:
    yield "# HELP chasquimq_up Whether the server answered this scrape."
    yield "# TYPE chasquimq_up gauge"
    yield f"chasquimq_up {0 if survey is None else 1}"
    if survey is None:
        return
    yield "# HELP chasquimq_broken_keys Keys of the wrong type; their queues are left out."
    yield "# TYPE chasquimq_broken_keys gauge"
    yield f"chasquimq_broken_keys {len(survey.broken)}"
    yield "# HELP chasquimq_silent_masters Masters of the cluster that did not answer this scrape."
    yield "# TYPE chasquimq_silent_masters gauge"
    yield f"chasquimq_silent_masters {len(survey.silences)}"
