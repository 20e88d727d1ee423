"""Opens a connection to the server that a route leads to: asks where it is, then dials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.errors import StoreError
from chasquimq.store.connection import Connection, pack
from chasquimq.store.opening import open_connection

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.connection import Reply
    from chasquimq.store.route import Asking, Found, Question, Range, Route

_NAME = "chasqui-route"


async def dial(route: Route, *, name: str = "") -> Connection:
    """Dial once; raises ServerUnreachable or the server's own refusal."""
    connection = await open_connection(await _answered(route.search()), name=name)
    route.opened()
    if not route.needs_role:
        return connection
    try:
        (role,) = await connection.send(pack(("ROLE",)))
        route.check_role(role)
    except BaseException:
        connection.abort("a server that does not lead is of no use")
        raise
    return connection


async def find_masters(route: Route) -> list[tuple[ConnectionSettings, list[Range]]]:
    """Every server that holds a part of the data, with its slots where it is one of a cluster."""
    return await _answered(route.masters())


async def _answered(asking: Asking[Found]) -> Found:
    answer: Reply | StoreError = None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return end.value
        answer = await _ask(question)


async def _ask(question: Question) -> Reply | StoreError:
    try:
        connection = await open_connection(question.settings, name=_NAME)
    except StoreError as error:
        return error
    try:
        return (await connection.send(pack(question.command)))[0]
    except StoreError as error:
        return error
    finally:
        await connection.close()
