"""Options and arguments that many commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from chasquimq.cli.duration import DURATION
from chasquimq.cli.number import AT_LEAST_0, AT_LEAST_1, WholeNumber

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_GROUP = "default"
LEASE_MS_DEFAULT = 30_000

queue_argument = click.argument("queue")
redis_url_option = click.option(
    "--redis-url",
    metavar="URL",
    help="The server.  [default: CHASQUI_REDIS_URL, REDIS_URL, or the server of this project]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
group_option = click.option(
    "--group", default=DEFAULT_GROUP, show_default=True, help="The consumer group."
)
yes_option = click.option("--yes", "is_sure", is_flag=True, help="Do it without asking.")
lease_option = click.option(
    "--lease",
    "lease_ms",
    type=DURATION,
    default=f"{LEASE_MS_DEFAULT // 1000}s",
    show_default=True,
    help="The workers' claim_min_idle_ms: who is silent for longer is dead.",
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
