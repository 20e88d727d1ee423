"""Serves the depths of queues to scrapers: one scrape is one read, and trouble is a number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from chasquimq.cli.metrics import exposition
from chasquimq.cli.render import talk
from chasquimq.cli.signals import hear_signals, told_exit_code
from chasquimq.errors import ChasquiError
from chasquimq.telemetry.http import MetricsServer

if TYPE_CHECKING:
    from chasquimq.cli.endpoint import Endpoint
    from chasquimq.inspector import Inspector, Survey

# Prometheus gives up after ten seconds by default; it should hear `up 0` before.
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
            StoreError: nobody can listen there.
        """
        self._check_names()
        hear_signals(self._stop)
        server = await self._listening(endpoint)
        try:
            url = f"http://{endpoint.shown_host}:{server.port}/metrics"
            talk(f"serving {url}; Ctrl+C ends it")
            await self._stopped.wait()
        finally:
            await server.stop()
            if self._look is not None:
                self._look.cancel()
        return told_exit_code(self._signal)

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
        from chasquimq.inspector import check_group_name, check_queue_name

        # What can never be is refused now, not at every scrape.
        self._new_inspector()
        check_group_name(self._group)
        for queue in self._queues:
            check_queue_name(queue)

    def _stop(self, number: int) -> None:
        self._signal = number
        self._stopped.set()

    async def _listening(self, endpoint: Endpoint) -> MetricsServer:
        # Ready even while the server is down: only who is scraped can tell that it is.
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
        from chasquimq.inspector import Inspector

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
