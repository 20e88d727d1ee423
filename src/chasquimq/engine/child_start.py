"""How a child process comes to life, and how its end is awaited."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from chasquimq.engine.child_frames import HandlerAddress, Hello, encode_frame


def hello_frame(addresses: dict[str, HandlerAddress]) -> bytes:
    """What every child of a pool is told first: our imports, and where the handlers are."""
    sys_path = [str(entry) for entry in sys.path]
    return encode_frame(Hello(addresses, sys_path, sys.argv, os.environ.get("PYTHONPATH")))


def start_child(hello: bytes) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A child that was told its first words, and our end of the line to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        try:
            program = subprocess.Popen(
                [sys.executable, "-P", "-m", "chasquimq.engine.child", str(fd)],
                stdin=subprocess.DEVNULL,
                pass_fds=(fd,),
                process_group=0,
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        except BaseException:
            ours.close()
            raise
    with suppress(OSError):
        ours.sendall(hello)
    ours.setblocking(False)
    return program, ours


def wait_unreaped(program: subprocess.Popen[bytes]) -> None:
    """Wait for the exit and leave the pid taken, so that no signal of ours can hit a stranger."""
    with suppress(ChildProcessError):
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
            return
    program.wait()


def _python_path() -> str:
    """Our own import path: the child must find this package the way we found it."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
