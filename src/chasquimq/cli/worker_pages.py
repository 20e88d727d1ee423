"""What a worker shows to scrapers and probes: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from chasquimq.cli.render import mask_secrets
from chasquimq.errors import NotSupportedError
from chasquimq.telemetry.http import MetricsServer
from chasquimq.telemetry.labelled import QueueLabeled
from chasquimq.telemetry.sink import MetricsSink

if TYPE_CHECKING:
    from chasquimq.cli.endpoint import Endpoint
    from chasquimq.telemetry.prometheus import PrometheusSink
    from chasquimq.worker import Worker


class WorkerPages:
    """The numbers of one process; a Worker that has a sink of its own tells both."""

    def __init__(self, queue: str) -> None:
        self._prometheus = _new_prometheus_sink()
        self.sink: MetricsSink = QueueLabeled(self._prometheus, queue)

    async def open(self, worker: Worker, endpoint: Endpoint) -> MetricsServer:
        """Serve until the answer is stopped.

        Raises:
            StoreError: nobody can listen there.
        """
        server = MetricsServer(
            partial(self._page, worker),
            # Alive while this loop turns: a server that is down heals without a restart.
            is_healthy=lambda: True,
            is_ready=lambda: worker.health().is_ok,
            problems=lambda: list(map(mask_secrets, worker.health().problems)),
            host=endpoint.host,
            port=endpoint.port,
        )
        await endpoint.start(server)
        return server

    async def _page(self, worker: Worker) -> bytes:
        # Told each second too, but whoever asks should see how it is now. What the loop changes
        # is read on the loop; sums have a lock, and drawing them takes a thread's time.
        self.sink.worker_health(worker.health().record)
        return await asyncio.to_thread(self._prometheus.exposition)


def _new_prometheus_sink() -> PrometheusSink:
    try:
        from chasquimq.telemetry.prometheus import PrometheusSink, process_registry
    except ModuleNotFoundError as missing:
        raise NotSupportedError(
            f"--metrics-port needs the module {missing.name}, which is not installed; "
            "install it with pip install 'chasquimq-py[prometheus]'"
        ) from missing
    return PrometheusSink(registry=process_registry())
