"""Follows the channels until told to stop: looks after queries, samples, and new queues."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from chasquimq.errors import ProcessLate, StoreError
from chasquimq.model.log import get_logger
from chasquimq.spark.failures import Lateness
from chasquimq.spark.pipeline.channels import by_channel
from chasquimq.store.net.errors import Action, action_for

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from chasquimq.spark.pipeline.context import Workplace
    from chasquimq.spark.pipeline.streaming import ChannelQuery

logger = get_logger(__name__)
# Samples wait this long for a batch to take them along.
_FLUSH_AFTER_S: Final = 10.0
# A look for new queues walks all keys of the server.
_LOOK_AGAIN_S: Final = 30.0
_LOOK_AGAIN_EMPTY_S: Final = 1.0
_PAUSE_S: Final = 1.0
_PAUSE_S_MAX: Final = 30.0

Running = list[tuple["ChannelQuery", "StreamingQuery"]]


class Following:
    """One run of a pipeline without an end."""

    def __init__(self, work: Workplace, stop: threading.Event) -> None:
        self._work = work
        self._stop = stop
        self.channels: dict[str, str] = {}
        self._lateness = Lateness()

    def run(self) -> None:
        """Return when told to stop; a server that goes away is waited for."""
        pause_s = _PAUSE_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self._follow()
            except StoreError as trouble:
                if action_for(trouble) is Action.RAISE:
                    raise
                logger.warning(
                    "the server does not answer, the pipeline waits", extra={"error": str(trouble)}
                )
                self._stop.wait(pause_s)
            except ProcessLate as late:
                self._lateness.bear(late)
                logger.warning("the pipeline begins again", extra={"error": str(late)})
            was_long = time.monotonic() - began_s > _PAUSE_S_MAX
            pause_s = _PAUSE_S if was_long else min(_PAUSE_S_MAX, pause_s * 2)

    def _follow(self) -> None:
        """Follow the queues that there are, until there are others."""
        self.channels = self._work.channels()
        running: Running = []
        try:
            for channel, queues in by_channel(self.channels).items():
                query = self._work.query(channel)
                running.append((query, query.follow(queues)))
            self._watch(running)
        finally:
            self._work.close_batches()
            for _, stream in running:
                stream.stop()

    def _watch(self, running: Running) -> None:
        wait_s = _LOOK_AGAIN_S if running else _LOOK_AGAIN_EMPTY_S
        look_again_s = time.monotonic() + wait_s
        while not self._stop.wait(self._work.settings.trigger_s):
            for query, stream in running:
                query.check(stream)
            if self._lateness.count and all(stream.lastProgress for _, stream in running):
                self._lateness.forget()
            self._sample()
            self._work.tidy_if_due()
            self._work.audit_if_due(self.channels)
            if time.monotonic() >= look_again_s:
                if self._work.channels() != self.channels:
                    return
                look_again_s = time.monotonic() + wait_s

    def _sample(self) -> None:
        self._work.sample(self.channels)
        if self._work.idle_s > _FLUSH_AFTER_S:
            self._work.flush()
