"""Reads what lies in a queue for threads that wait: in small pages, beside everyone at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import ServerRefused
from chasquimq.store.connection import pack
from chasquimq.store.ranging import RangeStore, RawEntry, Stretch
from chasquimq.store.reading import PageSize, RawMember, ScoreWalk
from chasquimq.store.scanning import escaped
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.connection import Reply

_CLIENT_NAME = "chasqui-spark"
_FIRST_PAGE = 100
# The server copies what it measures; so much of it keeps nobody waiting.
_MEASURED_BYTES = 1024 * 1024
_MEASURED_MAX = 1_000
_UNLIMITED = 2**53
_KEYS_PER_STEP = 1_000
_FIRST_RESULTS = 64
_WALK_PAGE_MIN = 2
LOWEST, HIGHEST = "-inf", "+inf"


class KeptResult(msgspec.Struct, frozen=True):
    """What is kept of one finished job; `ttl_ms` is negative where nothing will remove it."""

    job_id: str
    outcome: bytes | None
    result: bytes | None
    ttl_ms: int


class QueueReadStore(RangeStore):
    """One queue; nothing moves."""

    def __init__(self, queue: str, settings: ConnectionSettings) -> None:
        super().__init__(settings, name=_CLIENT_NAME)
        self.keys = QueueKeys(queue)

    def stretches(self, key: str, count_wanted: int) -> list[Stretch]:
        """A stream up to its last entry now, in about so many parts with as many entries each."""
        (facts,) = self.facts([key])
        step = min(self._measured_max(key, facts.length), max(1, facts.length // count_wanted))
        found: list[Stretch] = []
        after_id = "0-0"
        while facts.length and after_id != facts.last_id:
            part = self.measure(key, after_id, facts.last_id, step, _UNLIMITED, "")
            if part is None:
                break
            found.append(part)
            after_id = part.last_id
        return found

    def pages(
        self, key: str, after_id: str, until_id: str, count_max: int
    ) -> Iterator[list[RawEntry]]:
        """The entries after one id up to another, about a mebibyte at a time."""
        size = PageSize(_FIRST_PAGE, count_max)
        while after_id != until_id:
            page = self.entries(key, after_id, until_id, size.count)
            if not page:
                return
            yield page
            after_id = page[-1][0].decode()
            size.learn(sum(len(part) for _, fields in page for part in fields))

    def score_edges(self, count_wanted: int) -> list[str]:
        """Scores that cut the delayed set into about so many parts of the same size."""
        key = self.keys.delayed
        total = self._call("ZCARD", key)
        ranks = sorted({total * at // count_wanted for at in range(1, count_wanted)} - {0})
        asked = [pack(("ZRANGE", key, rank, rank, "WITHSCORES")) for rank in ranks if rank < total]
        if not asked:
            return []
        replies = self._ask(asked)
        scores = [float(reply[1]) for reply in replies if reply]
        return [f"{score:.17g}" for score in sorted(set(scores))]

    def delayed(self, low: str, high: str, count_max: int) -> Iterator[list[RawMember]]:
        """The members whose scores lie between, each once, though others come and go meanwhile."""
        walk = ScoreWalk(low)
        size = PageSize(_FIRST_PAGE, count_max)
        while True:
            # Pages overlap by half, so one of a single member would get nowhere.
            count = max(_WALK_PAGE_MIN, size.count)
            bounds = (walk.low, high, "WITHSCORES", "LIMIT", walk.offset(count), count)
            flat = self._call("ZRANGEBYSCORE", self.keys.delayed, *bounds)
            page = list(zip(flat[::2], flat[1::2], strict=True))
            yield walk.fresh(page)
            if len(page) < count and not walk.must_go_back:
                return
            size.learn(sum(map(len, flat)))

    def results(self) -> Iterator[list[KeptResult]]:
        """What finished jobs left, by a walk over all keys of the server."""
        seen: set[int] = set()
        size = PageSize(_FIRST_RESULTS, _KEYS_PER_STEP)
        for ids in self._finished_ids():
            fresh = [one for one in dict.fromkeys(ids) if hash(one) not in seen]
            seen.update(map(hash, fresh))
            while fresh:
                some, fresh = fresh[: size.count], fresh[size.count :]
                page = self._kept(some)
                size.learn(sum(len(one.result or b"") for one in page))
                yield [one for one in page if one.outcome is not None or one.result is not None]

    def _measured_max(self, key: str, length: int) -> int:
        try:
            total_bytes = self._call("MEMORY", "USAGE", key) or 0
        except ServerRefused:
            # A user who may not ask is careful.
            return _FIRST_PAGE
        mean_bytes = max(1, total_bytes // max(1, length))
        return max(1, min(_MEASURED_MAX, _MEASURED_BYTES // mean_bytes))

    def _finished_ids(self) -> Iterator[list[str]]:
        outcome, result = self.keys.outcome(""), self.keys.result("")
        # Both begin alike but for one letter.
        pattern = escaped(outcome.removesuffix("outcome:")) + "[or]*"
        cursor: Reply = b"0"
        while True:
            step = ("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_PER_STEP)
            cursor, keys = self._call(*step)
            names = [key.decode(errors="replace") for key in keys]
            yield [_tail(name, outcome, result) for name in names if _tail(name, outcome, result)]
            if cursor == b"0":
                return

    def _kept(self, job_ids: Sequence[str]) -> list[KeptResult]:
        named = (
            [self.keys.outcome(one) for one in job_ids],
            [self.keys.result(one) for one in job_ids],
        )
        asked = [pack(("MGET", *keys)) for keys in named]
        asked += [pack(("PTTL", key)) for key in named[1]]
        replies = self._ask(asked)
        outcomes, results, *ttls = replies
        return list(map(KeptResult, job_ids, outcomes, results, ttls))

    def _ask(self, asked: Sequence[bytes]) -> list[Reply]:
        return self._patiently(partial(self._connection.ask, b"".join(asked), len(asked)))


def _tail(name: str, *heads: str) -> str:
    return next((name.removeprefix(head) for head in heads if name.startswith(head)), "")
