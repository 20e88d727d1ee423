"""One life of a server process, tied to the life of this one by a pipe."""

from __future__ import annotations

import os
import signal
import weakref
from contextlib import suppress
from pathlib import Path

from chasquimq.server.command_line import LaunchPlan
from chasquimq.server.launch import await_answer, spawn_tied
from chasquimq.server.locks import becomes_free

DEATH_WAIT_S = 10.0


class Lifeline:
    """A running server and the pipe whose closing kills it."""

    def __init__(self, plan: LaunchPlan, scratch: Path) -> None:
        self._lock_path = plan.lock_path
        self._owner_pid = os.getpid()
        self._shell = spawn_tied(plan, scratch)
        _lifelines.add(self)
        try:
            self.server_pid = await_answer(plan).pid
        except BaseException:
            self.cut()
            raise

    @property
    def is_ours(self) -> bool:
        """False: this process is a fork of the owner and has no say in the server's life."""
        return self._owner_pid == os.getpid()

    def cut(self) -> None:
        """Kill the server, and return when it and its children are gone."""
        # The group outlives a server that died by itself, so no stranger's pid is ever hit.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self.let_go()
        self._shell.wait()
        becomes_free(self._lock_path, DEATH_WAIT_S)

    def let_go(self) -> None:
        assert self._shell.stdin is not None, "the pipe is made with the shell"
        self._shell.stdin.close()


_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _let_go_of_all() -> None:
    for lifeline in list(_lifelines):
        lifeline.let_go()


# A forked child would keep the pipe open, and with it the server, after the owner is gone.
os.register_at_fork(after_in_child=_let_go_of_all)
