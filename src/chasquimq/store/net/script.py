"""Scripts by name: sent by their hash, with the text once when the server forgot it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.store.net.connection import Connection, Part, Reply, pack
from chasquimq.store.net.errors import Action, action_for

_SHARED = ("needs", "ring", "workers_of")


class Script:
    """One atomic act; its file opens with its contract."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        # The server names scripts by their SHA-1; nothing here is a secret.
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()

    def by_hash(self, keys: Sequence[str | bytes], args: Sequence[Part]) -> bytes:
        """The call as RESP bytes, naming the script."""
        return pack(("EVALSHA", self.sha, len(keys), *keys, *args))

    def by_text(self, keys: Sequence[str | bytes], args: Sequence[Part]) -> bytes:
        """The same call carrying the script, which also teaches it to the server."""
        return pack(("EVAL", self.text, len(keys), *keys, *args))


@cache
def script(name: str) -> Script:
    """The script of that file name, read once, below the shared functions that it calls."""
    return Script(name, _text_with(name, _SHARED))


def needed_text(name: str) -> str:
    """The text of a script without what it can do without: to ring."""
    return _text_with(name, [one for one in _SHARED if one != "ring"])


def _text_with(name: str, shared: Sequence[str]) -> str:
    """The text of a script below those of the shared functions that it calls."""
    text = _text_of(f"{name}.lua")
    called = [one for one in shared if re.search(rf"\b{one}\(", text)]
    return "".join([*(_text_of(f"shared/{one}.lua") for one in called), text])


def _text_of(path: str) -> str:
    return files("chasquimq.store").joinpath("scripts", path).read_text("utf-8")


async def run(connection: Connection, name: str, keys: Sequence[str | bytes], *args: Part) -> Reply:
    """One script call; an error reply is raised."""
    (reply,) = await run_many(connection, name, [(keys, args)])
    if isinstance(reply, StoreError):
        raise reply
    return reply


async def run_many(
    connection: Connection, name: str, calls: Sequence[tuple[Sequence[str | bytes], Sequence[Part]]]
) -> list[Reply]:
    """Several calls of one script in one write; error replies stay in the list."""
    act = script(name)
    request = b"".join(act.by_hash(keys, args) for keys, args in calls)
    replies = await connection.send(request, len(calls))
    for i, reply in enumerate(replies):
        if is_forgotten(reply):
            replies[i] = await _taught(connection, act.by_text(*calls[i]))
    return replies


async def _taught(connection: Connection, request: bytes) -> Reply:
    try:
        (reply,) = await connection.send(request)
    except StoreError as error:
        # The other calls have their replies, which must not be lost with this one's.
        return error
    return reply


def is_forgotten(reply: Reply) -> bool:
    """Whether the server answered that it does not know the script."""
    return isinstance(reply, ServerRefused) and action_for(reply) is Action.RELOAD
