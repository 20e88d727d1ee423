"""Runs handlers in child processes: they can be stopped, and a crash costs one job."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chasquimq.engine.job_context import WorkerContext
from chasquimq.engine.process_pool.child import ANY_NAME, addresses_of
from chasquimq.engine.process_pool.frames import (
    STOP_FRAME,
    CallResult,
    ChildDied,
    HandlerAddress,
    HandlerCall,
    Hello,
    JobValues,
    LeaseLost,
    Report,
    decode_from_child,
    encode_frame,
    exception_of,
    import_refusal,
    take_frame,
)
from chasquimq.engine.thread_pool import Handler, check_usable, checked_size
from chasquimq.errors import DecodeError, JobTimeout, SettingsError
from chasquimq.model.log import get_logger
from chasquimq.store.consumer import decode as payloads

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery

logger = get_logger(__name__)
KILL_AFTER_S = 0.2
START_S_MAX = 60.0
READ_BYTES_MAX = 256 * 1024

Outcome = CallResult | Exception
REAP_S_MAX = 1.0


class ProcessPool:
    """Runs handlers in child processes: they can be stopped, and a crash costs one job.

    Start it inside the event loop that calls it.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler] | Handler,
        size: int,
        context: WorkerContext | None = None,
    ) -> None:
        """`context` receives what handlers report; without one it goes nowhere."""
        self._context = WorkerContext({}) if context is None else context
        self._size = checked_size(size)
        self._addresses = addresses_of(handlers)
        self._owner_pid = os.getpid()
        self._is_closed = False
        self._hello = b""
        self._children: list[Child] = []
        self._idle: list[Child] = []
        self._free = asyncio.Semaphore(size)

    async def start(self) -> None:
        """Start all children and wait for their imports; SettingsError when an import fails."""
        self._hello = hello_frame(self._addresses)
        self._idle = [self._spawn() for _ in range(self._size)]
        try:
            for child in self._idle:
                await child.until_ready()
        except BaseException:
            await self.close(0)
            raise

    async def run(
        self,
        name: str,
        values: JobValues,
        timeout_ms: int | None = None,
        delivery: Delivery | None = None,
    ) -> Any:
        """Run the handler of `name` in a child and return its result.

        With a `delivery` the child gets to know when its lease is lost, and its reports are received.

        Raises:
            JobTimeout: it ran for `timeout_ms` and was killed.
            ChildDied: its process ended before it answered.
            UnrecoverableError, RetryLater: the handler raised one.
            DecodeError: the payload is no MessagePack value.
            RemoteError: the handler raised anything else, or its result has no MessagePack form.
        """
        frame = encode_frame(HandlerCall(self._handler_key(name), values))
        async with self._free:
            child = self._take()
            try:
                line = None if delivery is None else CallLine(child, delivery, self._context)
                answer = await child.call(frame, timeout_ms, line)
            finally:
                self._put_back(child)
        if answer.error is not None:
            raise exception_of(answer.error)
        return payloads.decode(answer.result)

    async def close(self, grace_s: float) -> None:
        """Let running calls end within the grace, then end the children whatever they do."""
        self._is_closed = True
        try:
            for child in self._idle:
                child.stop()
            await self._gone_within(grace_s)
            for child in self._children:
                child.terminate()
            await self._gone_within(KILL_AFTER_S)
        finally:
            for child in self._children:
                child.kill()
        await self._gone_within(REAP_S_MAX)

    def _handler_key(self, name: str) -> str:
        if name in self._addresses:
            return name
        if ANY_NAME in self._addresses:
            return ANY_NAME
        raise SettingsError("handlers", name, f"asked for one of {sorted(self._addresses)}")

    def _take(self) -> Child:
        check_usable(self._owner_pid, self._is_closed)
        assert self._idle, "a process pool is started before it runs anything"
        child = self._idle.pop()
        try:
            return child if child.is_usable else self._spawn()
        except OSError:
            # No memory or no pid for a new child now: the slot stays, and the next call tries.
            self._idle.append(child)
            raise

    def _put_back(self, child: Child) -> None:
        if self._is_closed:
            child.stop()
            return
        if not child.is_usable:
            # The new child imports while the next job is still on its way.
            with suppress(OSError):
                child = self._spawn()
        self._idle.append(child)

    def _spawn(self) -> Child:
        child = Child(self._hello)
        self._children = [one for one in self._children if not one.exited.done()]
        self._children.append(child)
        return child

    async def _gone_within(self, timeout_s: float) -> None:
        exits = [child.exited for child in self._children if not child.exited.done()]
        if exits:
            await asyncio.wait(exits, timeout=timeout_s)


class CallLine:
    """Connects the context of a worker with the child that runs one of its jobs."""

    def __init__(self, child: Child, delivery: Delivery, context: WorkerContext) -> None:
        self._child = child
        self._delivery = delivery
        self._context = context

    def open(self) -> None:
        """The child has the call, and gets to know from now on if its lease is lost."""
        self._context.enter_remote(self._delivery, self._send_lease_lost)
        if self._delivery.is_lease_lost:
            self._send_lease_lost()

    def close(self) -> None:
        self._context.leave_remote(self._delivery)

    def receive(self, report: Report) -> None:
        """Pass a report on to the worker's own context."""
        try:
            value = payloads.decode(report.value)
        except DecodeError as error:
            logger.warning(
                "%s of job %s cannot be read: %s", report.topic, self._delivery.job_id, error
            )
        else:
            self._context.report(self._delivery, report.topic, value)

    def _send_lease_lost(self) -> None:
        self._child.send(LeaseLost())


class Child:
    """A running child program; it serves one call at a time and is never used after a kill."""

    def __init__(self, hello: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._ready: asyncio.Future[Outcome] = self._loop.create_future()
        self._answer: asyncio.Future[Outcome] | None = None
        self._line: CallLine | None = None
        self._verdict: Exception | None = None
        self._is_stopping = False
        self._is_doomed = False
        self._buffer = bytearray()
        self._program, self._socket = start_child(hello)
        self._loop.add_reader(self._socket, self._on_readable)
        self._start_timer = self._loop.call_later(START_S_MAX, self._on_slow_start)
        threading.Thread(target=self._watch, name=f"chasqui-child-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def is_usable(self) -> bool:
        return not self._is_doomed and not self.exited.done()

    async def until_ready(self) -> None:
        """Wait for the child's imports; raises what they raised, or ChildDied."""
        answer = _answer_in(await self._ready)
        if answer.error is not None:
            raise import_refusal(answer.error)

    async def call(
        self, frame: bytes, timeout_ms: int | None, line: CallLine | None = None
    ) -> CallResult:
        """Hand a call over and wait for its answer; to leave without one kills the child."""
        try:
            await self.until_ready()
            return await self._ask(frame, timeout_ms, line)
        except BaseException:
            self.kill()
            raise

    def send(self, message: LeaseLost) -> None:
        """Send a busy child something about the job that it runs."""
        # A child that does not read has its socket full of nothing else, and ends soon.
        with suppress(OSError):
            self._socket.send(encode_frame(message))

    def stop(self) -> None:
        """Ask an idle child to leave the way a program ends."""
        self._is_stopping = True
        with suppress(OSError):
            self._socket.send(STOP_FRAME)

    def terminate(self) -> None:
        """Ask the child to leave now."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the child now."""
        self._signal(signal.SIGKILL)

    async def _ask(self, frame: bytes, timeout_ms: int | None, line: CallLine | None) -> CallResult:
        self._answer = answer = self._loop.create_future()
        deadline = self._deadline(timeout_ms)
        self._line = line
        try:
            await self._send(frame)
            if line is not None:
                line.open()
            return _answer_in(await answer)
        finally:
            self._answer = self._line = None
            if line is not None:
                line.close()
            if deadline is not None:
                deadline.cancel()
            self._close_if_exited()

    def _deadline(self, timeout_ms: int | None) -> asyncio.TimerHandle | None:
        if timeout_ms is None:
            return None
        return self._loop.call_later(timeout_ms / 1000, self._condemn, JobTimeout(timeout_ms))

    async def _send(self, frame: bytes) -> None:
        # A broken pipe says nothing about why: the child's exit settles the answer.
        with suppress(OSError):
            sent_bytes = _send_now(self._socket, frame)
            if sent_bytes < len(frame):
                await self._loop.sock_sendall(self._socket, frame[sent_bytes:])

    def _on_slow_start(self) -> None:
        self._condemn(
            SettingsError("handlers", "imports that still run", f"imported within {START_S_MAX} s")
        )

    def _condemn(self, verdict: Exception) -> None:
        """Give the child its SIGTERM, and a moment; the verdict stands whatever it answers."""
        self._verdict = verdict
        self.terminate()
        self._loop.call_later(KILL_AFTER_S, self._on_grace_over, verdict)

    def _on_grace_over(self, verdict: Exception) -> None:
        self.kill()
        # After SIGKILL no handler code runs, so a process stuck in the kernel is not waited for.
        self._settle(verdict)

    def _on_readable(self) -> None:
        chunk = self._receive()
        if chunk is None:
            return
        if not chunk or not self._take_in(chunk):
            self._loop.remove_reader(self._socket)
            self._kill_unless_stopping()

    def _receive(self) -> bytes | None:
        """What has come; empty when the other end is gone, None when there is nothing now."""
        try:
            return self._socket.recv(READ_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def _take_in(self, chunk: bytes) -> bool:
        """Settle what a whole frame answers; False when the bytes are no frames of ours."""
        self._buffer += chunk
        try:
            while (frame := take_frame(self._buffer)) is not None:
                self._accept(decode_from_child(frame))
        except (ValueError, msgspec.MsgspecError):
            return False
        return True

    def _accept(self, message: CallResult | Report) -> None:
        if isinstance(message, CallResult):
            self._settle(message)
        elif self._line is not None:
            self._line.receive(message)

    def _settle(self, outcome: Outcome) -> None:
        waiting = self._answer if self._ready.done() else self._ready
        if waiting is None or waiting.done():
            return
        self._start_timer.cancel()
        waiting.set_result(self._verdict or outcome)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the child and the programs its handler started; they share a process group."""
        self._is_doomed = True
        if self.exited.done():
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _kill_unless_stopping(self) -> None:
        """A child that broke off takes along the programs its handler started."""
        if self._is_doomed or not self._is_stopping:
            self.kill()

    def _watch(self) -> None:
        """Runs in a thread: a pipe held open by a grandchild would hide the child's death."""
        wait_unreaped(self._program)
        try:
            self._loop.call_soon_threadsafe(self._on_exit)
        except RuntimeError:
            # The loop is closed, and no call waits.
            self._program.wait()

    def _on_exit(self) -> None:
        # An answer given just before death still counts.
        while chunk := self._receive():
            self._take_in(chunk)
        self._loop.remove_reader(self._socket)
        self._kill_unless_stopping()
        exit_code = self._program.wait()
        self.exited.set_result(exit_code)
        self._settle(ChildDied(exit_code))
        self._close_if_exited()

    def _close_if_exited(self) -> None:
        if not self.exited.done():
            return
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # A send in flight still watches the descriptor; it ends first and closes here itself.
        if self._answer is None:
            self._socket.close()


def _send_now(sock: socket.socket, frame: bytes) -> int:
    try:
        return sock.send(frame)
    except BlockingIOError:
        return 0


def _answer_in(outcome: Outcome) -> CallResult:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def hello_frame(addresses: dict[str, HandlerAddress]) -> bytes:
    """The first frame for every child of a pool: our imports, and where the handlers are."""
    sys_path = [str(entry) for entry in sys.path]
    return encode_frame(Hello(addresses, sys_path, sys.argv, os.environ.get("PYTHONPATH")))


def start_child(hello: bytes) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A child that has its first frame, and our end of the socket to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        try:
            program = subprocess.Popen(
                [sys.executable, "-P", "-m", "chasquimq.engine.process_pool.child", str(fd)],
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
    """Wait for the exit and leave the pid taken, so that no signal of ours can hit another process."""
    with suppress(ChildProcessError):
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
            return
    program.wait()


def _python_path() -> str:
    """Our own import path: the child must find this package the way we found it."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
