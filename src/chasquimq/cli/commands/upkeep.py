"""`chasqui upkeep`: promotes and fires jobs of queues where no worker runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

import click

from chasquimq.cli.context import (
    DEFAULT_GROUP,
    any_server,
    possible_group,
    possible_queue,
    reason_of_choice,
    redis_url_option,
    refuse_wrong_types,
    run,
    wait_for_server_option,
)
from chasquimq.cli.output.render import mask_url
from chasquimq.cli.service import LEVELS, exit_code_of, on_signals, start_logging
from chasquimq.model.log import get_logger
from chasquimq.model.stop_signals import StopSignals

logger = get_logger(__name__)


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...", callback=possible_queue)
@click.option(
    "--group",
    default=DEFAULT_GROUP,
    show_default=True,
    callback=possible_group,
    help="Whose ghosts to sweep.",
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to log."
)
@wait_for_server_option
@redis_url_option
@click.option("--json", "as_json", is_flag=True, help="Log in JSON, a document a line.")
def upkeep(
    *,
    queues: tuple[str, ...],
    group: str,
    log_level: str,
    wait_ms: float,
    redis_url: str | None,
    as_json: bool,
) -> int:
    """Promote delayed jobs and fire repeatable ones of QUEUEs, until a signal."""
    start_logging(log_level, as_json=as_json)
    return run(_run(list(dict.fromkeys(queues)), group, any_server(redis_url), wait_ms))


async def _run(queues: Sequence[str], group: str, url: str, wait_ms: float) -> int:
    from chasquimq.worker.upkeep import Upkeep

    crews = [Upkeep(queue, redis_url=url, group=group) for queue in queues]
    signals = StopSignals()

    def stop(number: int) -> None:
        signals.note(number)
        for crew in crews:
            crew.request_stop()

    on_signals(stop)
    # Queues of a cluster may be on different servers.
    if wait_ms and not all([await crew.wait_for_server(wait_ms) for crew in crews]):
        return exit_code_of(signals.number)
    await refuse_wrong_types(queues, url)
    names, began_s = ", ".join(queues), time.monotonic()
    logger.info(
        "keeping up queues %s of %s (%s), group %s", names, mask_url(url), reason_of_choice(), group,
        extra={"queues": names},
    )  # fmt: skip
    await asyncio.gather(*(crew.run() for crew in crews))
    uptime = timedelta(seconds=round(time.monotonic() - began_s))
    logger.info("upkeep of queues %s ended after %s", names, uptime, extra={"queues": names})
    return exit_code_of(signals.number)
