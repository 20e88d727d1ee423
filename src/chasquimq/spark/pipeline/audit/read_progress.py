"""What the server says at the moment of an audit: who lives, and how far the channels were read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from chasquimq.spark.columns import LAST_MS, moment_of
from chasquimq.spark.offsets import Offsets, id_parts
from chasquimq.spark.pipeline.audit.runs import Living
from chasquimq.spark.query.progress import places
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.spark.pipeline.sampler import ServerSampler
    from chasquimq.store.inspect.ranges import RangeStore, StreamFacts

# Behind the last entry: whatever was written is read.
TO_THE_TAIL: Final = datetime.max.replace(tzinfo=UTC)


class Standing(NamedTuple):
    """Workers that were seen, by queue and name, and until when each queue's channel was read.

    A queue that is not named was read to an unknown place.
    """

    alive: Living
    read_until: Mapping[str, datetime]


def ask_standing(
    lake: Path, channels: Mapping[str, str], sampler: ServerSampler, store: RangeStore
) -> Standing:
    """Look at the server and at the offsets of the last batches."""
    offsets = {place.channel: place.offsets for place in places(lake)}
    keys = [getattr(QueueKeys(queue), channel) for queue, channel in channels.items()]
    read_until = {
        queue: _read_until(queue, offsets.get(channel, {}), facts)
        for (queue, channel), facts in zip(channels.items(), store.facts(keys), strict=True)
    }
    known = {queue: at for queue, at in read_until.items() if at is not None}
    return Standing(sampler.alive_workers(list(channels)), known)


def _read_until(queue: str, offsets: Offsets, facts: StreamFacts) -> datetime | None:
    position = offsets.get(queue)
    if position is None:
        return None if facts.length else TO_THE_TAIL
    if not position.is_before(facts.last_id):
        return TO_THE_TAIL
    ms, _ = id_parts(position.entry_id)
    return moment_of(min(ms, LAST_MS))
