"""The last steps of a worker: each on its own, so that one that fails costs no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from chasquimq.errors import StoreError
from chasquimq.model.log import get_logger

logger = get_logger(__name__)
# A connection may break under any step, and the next one is there at once.
_TRIES = 3

Step = Callable[[], Awaitable[object]]


async def take_leave(*steps: Step) -> None:
    """Take every step; whoever calls sets the limit of time."""
    for step in steps:
        await _insist(step)


async def _insist(step: Step) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            await step()
        except StoreError as error:
            if not tries_left:
                logger.warning("a step of stopping failed: %s", error)
        except Exception:  # a bug in one step must not cost the others
            logger.exception("a step of stopping failed")
            return
        else:
            return
