"""Asks a server who it is, with a plain socket and a few lines of its protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from chasquimq.server.address import Address

ANSWER_TIMEOUT_S = 1.0
REPLY_BYTES_MAX = 1 << 20

Reply = str | list["Reply"] | None
Command = tuple[str, ...]


class RefusedReply(Exception):
    """The server answered with an error of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who answers at an address, in the server's own words."""

    pid: int
    kind: str
    version: str
    port: int
    uptime_s: int
    data_dir: str
    is_ready: bool


def identify(address: Address, timeout_s: float = ANSWER_TIMEOUT_S) -> Identity | None:
    """Ask the server at `address` who it is; None: nobody there speaks our protocol."""
    questions = (("INFO", "server"), ("CONFIG", "GET", "dir"), ("PING",))
    try:
        about, directory, ping = ask(address, questions, timeout_s)
        return _identity(about, directory, ping)
    except (OSError, ValueError, KeyError, RecursionError, RefusedReply):
        return None


def is_serving(identity: Identity, data_dir: Path) -> bool:
    """True: this server works in `data_dir`, whatever the path to it is called by now."""
    try:
        return data_dir.samefile(identity.data_dir)
    except OSError:
        return False


def ask(address: Address, commands: Sequence[Command], timeout_s: float) -> list[Reply]:
    """Send all commands in one write and read one reply each; an error reply is its text."""
    with address.connect(timeout_s) as link, link.makefile("rb") as stream:
        link.sendall(b"".join(map(_pack, commands)))
        return [_read_or_text(stream) for _ in commands]


def tell(address: Address, command: Command, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
    """Send one command whose only answer is a closed link."""
    with address.connect(timeout_s) as link:
        link.sendall(_pack(command))
        link.recv(1)


def _identity(about: Reply, directory: Reply, ping: Reply) -> Identity:
    if not isinstance(about, str) or not isinstance(directory, list):
        raise ValueError("not the answers of a server")
    facts = dict(line.split(":", 1) for line in about.splitlines() if ":" in line)
    is_valkey = facts.get("server_name") == "valkey"
    return Identity(
        pid=int(facts["process_id"]),
        kind="valkey" if is_valkey else "redis",
        version=facts["valkey_version" if is_valkey else "redis_version"],
        port=int(facts["tcp_port"]),
        uptime_s=int(facts["uptime_in_seconds"]),
        data_dir=str(directory[-1]),
        is_ready=ping == "PONG",
    )


def _pack(command: Command) -> bytes:
    words = [word.encode() for word in command]
    head = b"*%d\r\n" % len(words)
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _read_or_text(stream: BinaryIO) -> Reply:
    try:
        return _read_reply(stream)
    except RefusedReply as refusal:
        return str(refusal)


def _read_reply(stream: BinaryIO) -> Reply:
    line = stream.readline(REPLY_BYTES_MAX)
    if not line.endswith(b"\r\n"):
        raise ValueError("the reply ended early")
    mark, rest = line[:1], line[1:-2].decode(errors="surrogateescape")
    match mark:
        case b"+" | b":":
            return rest
        case b"-":
            raise RefusedReply(rest)
        case b"$":
            return _read_bulk(stream, int(rest))
        case b"*":
            return [_read_reply(stream) for _ in range(int(rest))]
        case _:
            raise ValueError("not a reply")


def _read_bulk(stream: BinaryIO, size_bytes: int) -> str | None:
    if size_bytes < 0:
        return None
    if size_bytes > REPLY_BYTES_MAX:
        raise ValueError("the reply is too long")
    # Paths are bytes to the server; surrogates keep what is not UTF-8.
    return stream.read(size_bytes + 2)[:-2].decode(errors="surrogateescape")
