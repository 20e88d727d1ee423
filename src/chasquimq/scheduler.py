"""Scheduler: fires repeatable jobs where no worker does it on the side."""

from __future__ import annotations

from chasquimq.settings import CredentialProvider, UpkeepSettings, at_least, given
from chasquimq.upkeep import Upkeep


class Scheduler:
    """Turns the plans of a queue into jobs, one leader at a time; see `Upkeep` for all else.

    `max_stream_len` is accepted and changes nothing: it is a cap on adds, and fires are exempt.
    """

    def __init__(
        self,
        redis_url: str | None,
        queue_name: str,
        *,
        tick_interval_ms: int | None = None,
        batch: int | None = None,
        max_stream_len: int | None = None,
        lock_ttl_secs: int | None = None,
        holder_id: str | None = None,
        credential_provider: CredentialProvider | None = None,
    ) -> None:
        _check("tick_interval_ms", tick_interval_ms, 0)
        _check("batch", batch, 1)
        _check("max_stream_len", max_stream_len, 0)
        _check("lock_ttl_secs", lock_ttl_secs, 1)
        settings = given(
            UpkeepSettings,
            delayed_enabled=False,
            scheduler_tick_ms=1 if tick_interval_ms == 0 else tick_interval_ms,
            fire_max=batch,
            lock_ttl_s=lock_ttl_secs,
            scheduler_holder=holder_id or None,
        )
        self._is_closed = False
        self._upkeep = Upkeep(
            queue_name,
            redis_url=redis_url,
            credential_provider=credential_provider,
            settings=settings,
        )

    async def run(self) -> None:
        """Run until shut down; afterwards the call returns at once."""
        if not self._is_closed:
            await self._upkeep.run()

    def shutdown(self) -> None:
        """Ask `run` to end; it lets another lead at once."""
        self._is_closed = True
        self._upkeep.request_stop()


def _check(name: str, value: int | None, least: int) -> None:
    if value is not None:
        at_least(name, value, least)
