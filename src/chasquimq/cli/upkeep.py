"""`chasqui upkeep`: promotion and firing for queues where no worker runs."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from chasquimq.cli.logs import LEVELS, start_logging
from chasquimq.cli.options import DEFAULT_GROUP, redis_url_option
from chasquimq.cli.server_choice import any_server
from chasquimq.cli.visit import refuse_wrong_types, run

if TYPE_CHECKING:
    from chasquimq.upkeep import Upkeep

EXIT_INTERRUPTED = 130

logger = logging.getLogger(__name__)


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--group", default=DEFAULT_GROUP, show_default=True, help="Whose ghosts to sweep.")
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to log."
)
@redis_url_option
@click.option("--json", "as_json", is_flag=True, help="Log in JSON, a document a line.")
def upkeep(
    queues: tuple[str, ...], group: str, log_level: str, redis_url: str | None, as_json: bool
) -> int:
    """Promote delayed jobs and fire repeatable ones of QUEUEs, until a signal."""
    start_logging(log_level, as_json=as_json)
    return run(_run(list(dict.fromkeys(queues)), group, any_server(redis_url)))


async def _run(queues: Sequence[str], group: str, url: str) -> int:
    from chasquimq.upkeep import Upkeep

    crews = [Upkeep(queue, redis_url=url, group=group) for queue in queues]
    await refuse_wrong_types(queues, url)
    signals: list[int] = []
    _hear_signals(crews, signals)
    logger.info("keeping up", extra={"queues": ", ".join(queues)})
    await asyncio.gather(*(crew.run() for crew in crews))
    return EXIT_INTERRUPTED if signal.SIGINT in signals else 0


def _hear_signals(crews: Sequence[Upkeep], signals: list[int]) -> None:
    def stop(number: int) -> None:
        signals.append(number)
        for crew in crews:
            crew.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
