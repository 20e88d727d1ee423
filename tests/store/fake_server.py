"""A server that speaks RESP and answers what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

import hiredis

from chasquimq.store.net.script import script

RIGHTS = script("missing_rights")
OK = b"+OK\r\n"
ENTRY_ID = b"$3\r\n1-1\r\n"

# What a server without any native ability says to our handshake and probe.
OLD = {
    "CLIENT": OK,
    "XACKDEL": b"-ERR unknown command 'XACKDEL'\r\n",
    "XREADGROUP": b"-ERR syntax error\r\n",
    "XCFGSET": b"-ERR unknown command 'XCFGSET'\r\n",
}
# What a server with all of them says.
NEW = {
    "CLIENT": OK,
    "XACKDEL": b"*1\r\n:-1\r\n",
    "XREADGROUP": b"-NOGROUP No such key\r\n",
    "XADD": ENTRY_ID,
    "XGROUP": OK,
    "XCFGSET": (b"-ERR no such key\r\n", OK),
}

Answers = Mapping[str, bytes | Sequence[bytes]]


class FakeServer:
    """Answers each command by its name; of several answers the last is repeated."""

    def __init__(self, answers: Answers) -> None:
        self._answers = {name: _as_list(given) for name, given in answers.items()}
        self._listener: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.accept_count = 0
        self.commands: list[list[bytes]] = []

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for _ in range(3):
            await asyncio.sleep(0)
        while self._serving:
            for client in self._clients:
                client.close()
            await asyncio.wait(self._serving, timeout=0.02)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def count(self, name: str) -> int:
        """How often a command came."""
        return sum(command[0].decode().upper() == name for command in self.commands)

    def answer(self, command: list[bytes]) -> bytes:
        if command[1:2] == [RIGHTS.sha.encode()]:
            return b"*0\r\n"  # its user may do everything
        self.commands.append(command)
        answers = self._answers.get(command[0].decode().upper())
        if answers is None:
            return b"-ERR unknown command '%b'\r\n" % command[0]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accept_count += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        parser = hiredis.Reader()
        try:
            while received := await reader.read(65_536):
                parser.feed(received)
                while (command := parser.gets()) is not False:
                    writer.write(self.answer(command))
        except OSError:
            pass
        finally:
            self._clients.discard(writer)
            writer.close()


def _as_list(given: bytes | Sequence[bytes]) -> list[bytes]:
    return [given] if isinstance(given, bytes) else list(given)
