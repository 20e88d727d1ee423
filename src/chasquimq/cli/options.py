"""Options and arguments that many commands share, spelled once."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from chasquimq.cli.duration import DURATION, PATIENCE
from chasquimq.cli.number import AT_LEAST_0, AT_LEAST_1, WholeNumber
from chasquimq.cli.render import talk

Command = TypeVar("Command", bound=Callable[..., Any])
Names = TypeVar("Names", str, tuple[str, ...], None)

DEFAULT_GROUP = "default"
LEASE_MS_DEFAULT = 30_000
URL_BYTES_MAX = 8_192
_URL_OF_FILE = "chasquimq.redis_url_of_file"


def possible_queue(ctx: click.Context, _param: click.Parameter, value: Names) -> Names:
    """One queue name or many; one that no queue can have is refused before a server is sought."""
    from chasquimq.inspector import check_queue_name

    names = () if ctx.resilient_parsing or value is None else value
    for name in (names,) if isinstance(names, str) else names:
        check_queue_name(name)
    return value


def possible_group(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """The same for the name of a consumer group."""
    from chasquimq.inspector import check_group_name

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
    """The URL that is all a file holds; says so where everybody on this machine may read it."""
    try:
        with path.open("rb") as file:
            mode, held = os.fstat(file.fileno()).st_mode, file.read(URL_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise _refused_file(f"{path} must be a file that can be read: {why}") from None
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        talk(f"warning: everybody on this machine may read {path}; chmod 600 keeps it to you")
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
