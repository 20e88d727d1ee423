"""A look at one queue that is there: opens what a command needs, and names what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from chasquimq.cli.interrupts import cancelled_by_interrupt
from chasquimq.errors import ServerRefused, StoreError

if TYPE_CHECKING:
    from chasquimq.inspector import Inspector
    from chasquimq.model.snapshot import Snapshot
    from chasquimq.queue import Queue

QUEUES_SHOWN_MAX = 10
T = TypeVar("T")


class Visit(NamedTuple):
    """One queue from both sides: to look at, and to act on."""

    inspector: Inspector
    queue: Queue


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end, or until Ctrl+C."""
    return asyncio.run(cancelled_by_interrupt(work))


def ask(name: str, url: str, question: Callable[[Visit], Awaitable[T]]) -> T:
    """Open a queue that must exist, ask one thing, close it."""

    async def answer() -> T:
        async with visit(name, url) as seen:
            return await question(seen)

    return run(answer())


@asynccontextmanager
async def visit(
    name: str, url: str, *, must_exist: bool = True, **options: Any
) -> AsyncGenerator[Visit]:
    """Open a queue with these options; one that has no keys is refused where it must exist."""
    from chasquimq.inspector import Inspector
    from chasquimq.queue import Queue

    async with (
        Inspector(redis_url=url) as inspector,
        Queue(name, redis_url=url, **options) as queue,
    ):
        if must_exist:
            await refuse_unknown(inspector, await inspector.snapshot(name))
        try:
            yield Visit(inspector, queue)
        except ServerRefused as refused:
            await _name_wrong_type(inspector, name, refused)
            raise


async def refuse_wrong_types(names: Sequence[str], url: str) -> None:
    """Raise a sentence that names the first key that holds another kind of value.

    For what runs for long: it would only fail again and again, and nobody would know why.
    """
    from chasquimq.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        try:
            for name in names:
                await _refuse_wrong_type(inspector, name)
        except ServerRefused as refused:
            # Who may not look at types may still be allowed to do all that matters.
            if refused.code != "NOPERM":
                raise


async def refuse_other_groups(name: str, group: str, url: str) -> None:
    """Raise what a worker of the group would hear while another one consumes the queue."""
    from chasquimq.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        try:
            await inspector.refuse_conflict(name, group)
        except ServerRefused as refused:
            # The workers ask for their rights themselves, and name all that are missing.
            if refused.code != "NOPERM":
                raise


async def _refuse_wrong_type(inspector: Inspector, name: str) -> None:
    for wrong in await inspector.wrong_types(name):
        raise StoreError(f"{wrong}; rename or delete the key")


async def refuse_unknown(inspector: Inspector, snapshot: Snapshot) -> None:
    """Raise a sentence that names the queues there are, the likeliest first."""
    if snapshot.exists:
        return
    raise StoreError(unknown_queue(snapshot.queue, await inspector.queues()))


def unknown_queue(name: str, queues: list[str]) -> str:
    """The sentence about a queue that is not among those that there are."""
    return f"no queue named {name!r}; {_listing(name, queues)}"


def _listing(name: str, queues: list[str]) -> str:
    if not queues:
        return "this server has no queues"
    close = get_close_matches(name, queues)
    shown = [*close, *(one for one in queues if one not in close)][:QUEUES_SHOWN_MAX]
    more = f" and {len(queues) - len(shown):,} more" if len(shown) < len(queues) else ""
    return f"queues: {', '.join(shown)}{more}"


async def _name_wrong_type(inspector: Inspector, name: str, refused: ServerRefused) -> None:
    if refused.code != "WRONGTYPE":
        return
    try:
        await _refuse_wrong_type(inspector, name)
    except StoreError as wrong:
        raise wrong from refused
