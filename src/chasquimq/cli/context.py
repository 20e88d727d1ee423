"""Defines the options that many commands share, and opens the queue that they name."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from chasquimq.cli.interrupts import cancelled_by_interrupt
from chasquimq.cli.output.render import mask_url, talk
from chasquimq.cli.values import AT_LEAST_0, AT_LEAST_1, DURATION, PATIENCE, WholeNumber
from chasquimq.errors import ServerRefused, ServerUnreachable, StoreError
from chasquimq.model.log import get_logger
from chasquimq.server.finder import DEFAULT_URL, Found, find_or_start, find_server

if TYPE_CHECKING:
    from chasquimq.model.snapshot import Snapshot
    from chasquimq.queue.inspector import Inspector
    from chasquimq.queue.queue import Queue

Command = TypeVar("Command", bound=Callable[..., Any])
Names = TypeVar("Names", str, tuple[str, ...], None)

DEFAULT_GROUP = "default"
LEASE_MS_DEFAULT = 30_000
URL_BYTES_MAX = 8_192
_URL_OF_FILE = "chasquimq.redis_url_of_file"


def possible_queue(ctx: click.Context, _param: click.Parameter, value: Names) -> Names:
    """One queue name or many; one that no queue can have is refused before a server is sought."""
    from chasquimq.queue.inspector import check_queue_name

    names = () if ctx.resilient_parsing or value is None else value
    for name in (names,) if isinstance(names, str) else names:
        check_queue_name(name)
    return value


def possible_group(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """The same for the name of a consumer group."""
    from chasquimq.queue.inspector import check_group_name

    return value if ctx.resilient_parsing else check_group_name(value)


queue_argument = click.argument("queue", callback=possible_queue)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
group_option = click.option(
    "--group",
    default=DEFAULT_GROUP,
    show_default=True,
    callback=possible_group,
    help="The consumer group.",
)
yes_option = click.option("--yes", "is_sure", is_flag=True, help="Do it without asking.")
lease_option = click.option(
    "--lease",
    "lease_ms",
    type=DURATION,
    default=f"{LEASE_MS_DEFAULT // 1000}s",
    show_default=True,
    help="Assumed of workers that do not say their lease: who is silent for longer is dead.",
)
wait_for_server_option = click.option(
    "--wait-for-server",
    "wait_ms",
    type=PATIENCE,
    default=0.0,
    show_default="no wait",
    metavar="DURATION|forever",
    help="How long to wait for a server that is not there at the start.",
)
count_option = click.option(
    "--count", type=AT_LEAST_1, help="End after that many.  [default: go on until Ctrl+C]"
)
name_option = click.option("--name", help="Only jobs of this name.")
reason_option = click.option("--reason", help="Only entries with this reason.")
fingerprint_option = click.option("--fingerprint", help="Only entries with this fingerprint.")
ids_option = click.option(
    "--id", "ids", multiple=True, metavar="DLQ_ID", help="Only this entry; may be given twice."
)


def filter_options(command: Command) -> Command:
    """Which dead jobs are meant; filters that are given together must all match."""
    for option in (fingerprint_option, reason_option, name_option):
        command = option(command)
    return command


def limit_option(
    default: int, what: str, *, least: WholeNumber = AT_LEAST_0
) -> Callable[[Command], Command]:
    """How many, at most."""
    return click.option("--limit", type=least, default=default, show_default=True, help=what)


def redis_url_option(command: Command) -> Command:
    """The server by its URL, or by a file that holds it."""
    return server_options(
        "The server.  [default: CHASQUI_REDIS_URL, REDIS_URL, or the server of this project]"
    )(command)


def server_options(url_help: str) -> Callable[[Command], Command]:
    """`--redis-url` and `--redis-url-file`; a command is handed what either of them says."""

    def decorated(command: Command) -> Command:
        of_file = click.option(
            "--redis-url-file", type=click.Path(path_type=Path), metavar="FILE", is_eager=True,
            expose_value=False, callback=_note_url_of_file,
            help="A file that holds the URL, which `ps` then does not show.",
        )  # fmt: skip
        of_url = click.option("--redis-url", metavar="URL", callback=_one_url, help=url_help)
        return of_url(of_file(command))

    return decorated


def _note_url_of_file(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.meta[_URL_OF_FILE] = url_in_file(path)


def _one_url(ctx: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    of_file: str | None = ctx.meta.get(_URL_OF_FILE)
    if url is not None and of_file is not None:
        raise click.UsageError("--redis-url and --redis-url-file name two servers; give one")
    return of_file if url is None else url


def url_in_file(path: Path) -> str:
    """The URL that is all a file holds; warns where every user of this machine may read it."""
    try:
        with path.open("rb") as file:
            mode, held = os.fstat(file.fileno()).st_mode, file.read(URL_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise _refused_file(f"{path} must be a file that can be read: {why}") from None
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        talk(f"warning: every user of this machine may read {path}; chmod 600 keeps it to you")
    return _only_url(path, held)


def _only_url(path: Path, held: bytes) -> str:
    # Not a word of the file: what is no URL may still be a password.
    try:
        words = held.decode().split()
    except UnicodeDecodeError:
        words = []
    if len(words) != 1 or len(held) > URL_BYTES_MAX:
        raise _refused_file(f"{path} must hold one URL and nothing else")
    return words[0]


def _refused_file(why: str) -> click.BadParameter:
    return click.BadParameter(why, param_hint="'--redis-url-file'")


logger = get_logger(__name__)
# Why the command took the server that it took last, for the log and for an error.
chosen: list[Found] = []


def running_server(redis_url: str | None) -> str:
    """The URL of a server that runs; none is started just to look at its emptiness."""
    found = find_server(redis_url)
    if found.url is None:
        raise ServerUnreachable(
            "a server must be named or run for this directory, found neither; give --redis-url "
            f"(programs that name none use {DEFAULT_URL}), set CHASQUI_REDIS_URL, or start one "
            "with `chasqui server start`"
        )
    return _checked(found, found.url, is_reported=True)


def any_server(redis_url: str | None, *, is_reported: bool = True) -> str:
    """The URL of a server; the project's own is started where there is none."""
    found = find_or_start(redis_url)
    assert found.url is not None, "a server that was started has a URL"
    if found.binary is not None:
        _report_started(mask_url(found.url))
    return _checked(found, found.url, is_reported=is_reported)


def _report_started(address: str) -> None:
    """Warn of a server that goes on running: in the log, or on stderr where a command has none."""
    sentence = (
        f"no server was named, started one for this project at {address}; set CHASQUI_REDIS_URL "
        "for production"
    )
    if logging.root.handlers:
        logger.warning("%s", sentence)
    else:
        talk(f"warning: {sentence}")


def reason_of_choice() -> str:
    """Why the command took the server that it took last; empty where it took none."""
    return chosen[0].reason if chosen else ""


def _checked(found: Found, url: str, *, is_reported: bool) -> str:
    from chasquimq.queue.inspector import check_found

    check_found(found)
    chosen[:] = [found]
    if is_reported and sys.stderr.isatty():
        talk(f"server: {mask_url(url)} ({found.reason})")
    return url


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
    from chasquimq.queue.inspector import Inspector
    from chasquimq.queue.queue import Queue

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

    For what runs for long: it would only fail again and again, and the reason would stay unknown.
    """
    from chasquimq.queue.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        try:
            for name in names:
                await _refuse_wrong_type(inspector, name)
        except ServerRefused as refused:
            # Who may not look at types may still be allowed to do all that matters.
            if refused.code != "NOPERM":
                raise


async def refuse_other_groups(name: str, group: str, url: str) -> None:
    """Raise what a worker of the group would get while another one consumes the queue."""
    from chasquimq.queue.inspector import Inspector

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
