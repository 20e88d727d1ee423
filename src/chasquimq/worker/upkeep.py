"""Promotes delayed jobs and fires plans where no worker runs."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Self
from uuid import uuid4

from chasquimq.engine.supervisor import Supervisor
from chasquimq.engine.upkeep import UpkeepLoops
from chasquimq.errors import StoreError
from chasquimq.settings import (
    CredentialProvider,
    EventSettings,
    UpkeepSettings,
)
from chasquimq.store.net.abilities import demand, upkeep_roles
from chasquimq.store.net.address import connection_settings
from chasquimq.store.net.connect import wait_for_server
from chasquimq.store.net.connection import Connection
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.repeatables import FiringStore
from chasquimq.store.upkeep import JanitorStore, UpkeepStore
from chasquimq.wire.keys import QueueKeys, check_group_name, check_queue_name

_RELEASE_S = 1.0


class Upkeep:
    """Promotes delayed jobs, fires repeatables and sweeps, without running any job.

    Workers do the same on the side; run one of these where workers come and go, or where
    workers of ChasquiMQ (Rust) run with `delayed_enabled=False`. Any number may run: one leads.
    """

    def __init__(
        self,
        queue_name: str,
        *,
        redis_url: str | None = None,
        tls: bool = False,
        group: str = "default",
        credential_provider: CredentialProvider | None = None,
        insecure_tls: bool = False,
        settings: UpkeepSettings | None = None,
    ) -> None:
        self.name = check_queue_name(queue_name)
        self.holder = f"p-{uuid4()}"
        self._settings = settings or UpkeepSettings()
        self._connection_settings = connection_settings(
            redis_url, tls=tls, insecure_tls=insecure_tls,
            credential_provider=credential_provider, queue=self.name,
        )  # fmt: skip
        self._connection = ReconnectingConnection(
            self._connection_settings, name="chasqui-upkeep", prepare=self._demand_rights,
            waits_for_login=True,
        )  # fmt: skip
        self._store = UpkeepStore(
            self.name, self._connection, bell=ReconnectingConnection(self._connection_settings, name="chasqui-bell", waits_for_login=True),
            waiting_events_max=EventSettings().waiting_max,
        )  # fmt: skip
        self._loops = UpkeepLoops(
            self._store,
            FiringStore(self.name, self._connection),
            JanitorStore(self.name, check_group_name(group), self._connection),
            self.holder,
            self._settings,
        )
        self._supervisor = Supervisor(f"the upkeep of queue {self.name}")
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_leader(self) -> bool:
        return self._loops.promoter.is_leader

    @property
    def loops_down(self) -> dict[str, str]:
        """Loops that have been failing for more than five seconds, with their last error."""
        return self._supervisor.loops_down

    @property
    def events_dropped_count(self) -> int:
        """`waiting` events that the server refused; their jobs were promoted all the same."""
        return self._store.dropped_count

    async def wait_for_server(self, patience_ms: float = math.inf) -> bool:
        """Wait until the server answers, as `Worker.wait_for_server` does."""
        return await wait_for_server(self._connection_settings, patience_ms, self._stopping.wait())

    async def run(self) -> None:
        """Run until closed; raises ServerUnreachable when the first dial fails."""
        await self._connection.connection()
        try:
            async with asyncio.TaskGroup() as loops:
                tasks = [
                    loops.create_task(self._supervisor.keep(loop), name=f"chasqui-{loop.name}")
                    for loop in self._loops.loops
                ]
                await self._stopping.wait()
                # One that waits for a server that is gone would wait for ever.
                await asyncio.wait(tasks, timeout=_RELEASE_S)
                for task in tasks:
                    task.cancel()
        finally:
            await self._leave()

    async def close(self) -> None:
        """Ask `run` to end; it lets another lead at once."""
        self.request_stop()

    def request_stop(self) -> None:
        """The same, for signal handlers."""
        self._loops.stop()
        self._stopping.set()

    async def _demand_rights(self, connection: Connection) -> None:
        await demand(connection, QueueKeys(self.name), upkeep_roles(self._settings))

    async def _leave(self) -> None:
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_RELEASE_S):
                await self._loops.release()
        await self._loops.close()
        await self._connection.close()
