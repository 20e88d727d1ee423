"""Renews what is held, from a thread of its own, so that a busy event loop cannot stop it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from chasquimq.errors import StoreError
from chasquimq.model.dialing import dial_delay_ms
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from chasquimq.engine.holdings import Holdings
    from chasquimq.engine.pulse import Pulse
    from chasquimq.settings import LeaseSettings
    from chasquimq.store.leasing import LeaseStore

logger = get_logger(__name__)
_RETRY_S = 0.2
_LOOK_S = 0.05


class Lease:
    """All held ids are renewed each third of a lease, prefetched ones too."""

    def __init__(
        self,
        store: LeaseStore,
        holdings: Holdings,
        settings: LeaseSettings,
        on_lost: Callable[[list[bytes]], None],
        on_trust: Callable[[bool], None],
        is_reached: Callable[[], bool],
    ) -> None:
        """`is_reached` tells whether other connections of this worker reach the server."""
        self._store = store
        self._holdings = holdings
        self._settings = settings
        self._on_lost = on_lost
        self._on_trust = on_trust
        self._is_reached = is_reached
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_s = time.monotonic()
        self.pulse: Pulse | None = None
        # Two threads decide on trust: what is decided first is passed on first.
        self._deciding = threading.Lock()
        self.is_trusted = True

    @property
    def beat_age_ms(self) -> int:
        """How long ago leases were last renewed; 0 where nobody renews them."""
        if self._thread is None:
            return 0
        return int((time.monotonic() - self._renewed_s) * 1000)

    def start(self) -> None:
        """Start the thread; it ends with `stop` or with the process."""
        self._renewed_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="chasqui-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def retire(self) -> None:
        """Go on renewing leases, and say no more that this worker is there."""
        self._store.retire()

    def check(self) -> None:
        """Trust no lease that could not be renewed for too long; called from either side."""
        if not self._is_over():
            return
        with self._deciding:
            # A renewal may have come between the two looks.
            is_lapse = self.is_trusted and self._is_over()
            if is_lapse:
                self._trust(False)
                self._on_lost(self._holdings.ids())
        if is_lapse:
            logger.warning("leases could not be renewed in time, so nothing new is started")

    def _is_over(self) -> bool:
        silent_ms = (time.monotonic() - self._renewed_s) * 1000
        return self._thread is not None and silent_ms >= self._settings.lost_after_ms

    def _run(self) -> None:
        failures = 0
        began_s = time.monotonic()
        # What the worker says of itself should be there when it begins; nothing is held yet.
        self._safely(self._store.publish)
        pause_s = max(0.0, self._settings.beat_ms / 1000 - (time.monotonic() - began_s))
        while not self._stopped.wait(pause_s):
            is_renewed = self._safely(self._beat)
            failures = 0 if is_renewed else failures + 1
            pause_s = self._settings.beat_ms / 1000 if is_renewed else self._retry_s
            self._await_server(failures)
        self._store.close()

    def _safely(self, act: Callable[[], object]) -> bool:
        try:
            return bool(act())
        except Exception:  # without this thread every lease would run out in silence
            logger.exception("renewing leases failed and is tried again")
            return False

    def _await_server(self, failures: int) -> None:
        """Dial no more often than any other connection, until one of them gets through."""
        until_s = time.monotonic() + dial_delay_ms(failures, random.uniform) / 1000
        while time.monotonic() < until_s and not self._is_reached():
            if self._stopped.wait(_LOOK_S):
                return
            self._safely(self.check)

    @property
    def _retry_s(self) -> float:
        return min(_RETRY_S, self._settings.beat_ms / 4000)

    def _beat(self) -> bool:
        asked_s = time.monotonic()
        try:
            lost = self._store.renew(self._held())
        except StoreError as error:
            logger.debug("leases were not renewed: %s", error)
            self.check()
            return False
        except Exception:  # a bug must not let every lease run out in silence
            logger.exception("renewing leases failed and is tried again")
            self.check()
            return False
        with self._deciding:
            # A lease runs from when the server was asked, not from when it answered.
            is_back, silent_s = not self.is_trusted, asked_s - self._renewed_s
            self._renewed_s = asked_s
            self._trust(True)
        if is_back:
            logger.warning("leases are renewed again after %.1f s, and jobs start again", silent_s)
        if lost:
            self._on_lost(lost)
        return True

    def _held(self) -> set[bytes]:
        held = set(self._holdings.ids())
        if self.pulse is not None and self.pulse.is_still:
            # What the server gave us waits unseen in the socket while the event loop stands still.
            held.update(self._store.pending())
        return held

    def _trust(self, is_trusted: bool) -> None:
        """Decide and pass it on, in one step for the other thread; call it with the lock."""
        if self.is_trusted != is_trusted:
            self._on_trust(is_trusted)
            self.is_trusted = is_trusted
