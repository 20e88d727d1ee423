"""Which part of a lake a report is about: some queues, and a stretch up to the newest fact."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from chasquimq.spark.lake.table_sql import quoted
from chasquimq.spark.query.queries import Answers

# Where the tables say that something happened; the newest of all is the lake's own now.
MOMENTS: Final = {"silver_attempts": "ended_at", "gold_backlog": "sampled_at"}
# Minutes know no better, so they are asked only where there is nothing else.
ROUNDED: Final = {"gold_minute": "window_start"}


class Scope(NamedTuple):
    """Queues, none named: all of them; `since` None: from the first fact on."""

    queues: tuple[str, ...] = ()
    since: datetime | None = None

    def where(self, moment: str) -> str:
        """A condition on the queue, and on when something happened."""
        return " and ".join(("true", *self._queue_terms(), *self._moment_terms(moment)))

    def where_queue(self) -> str:
        """A condition on the queue alone, for facts that have no moment."""
        return " and ".join(("true", *self._queue_terms()))

    def by_day(self) -> Scope:
        """The same from the first moment of its first day, for what is counted by the day."""
        if self.since is None:
            return self
        midnight = self.since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return self._replace(since=midnight)

    def _queue_terms(self) -> list[str]:
        return [f"queue in ({', '.join(map(quoted, self.queues))})"] if self.queues else []

    def _moment_terms(self, moment: str) -> list[str]:
        if self.since is None:
            return []
        return [f"{moment} >= timestamptz '{self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f+00}'"]


def newest_at(answers: Answers, queues: Sequence[str] = ()) -> datetime | None:
    """When the last thing happened that the lake knows of."""
    return max(_edges(answers, Scope(tuple(queues)), "max"), default=None)


def oldest_at(answers: Answers, scope: Scope) -> datetime | None:
    """When the first thing happened that lies in the scope."""
    return min(_edges(answers, scope, "min"), default=None)


def scope_of(answers: Answers, queues: Sequence[str], last: timedelta | None) -> Scope:
    """The scope of these queues; `last` goes back from the newest fact, not from the clock."""
    newest = newest_at(answers, queues) if last else None
    since = newest - last if newest and last else None
    return Scope(tuple(queues), since)


def known_queues(answers: Answers) -> list[str]:
    """Every queue of which the lake has a row, the busiest first."""
    known = " union ".join(f"select queue from {table}" for table in MOMENTS | ROUNDED)  # noqa: S608
    sql = f"""
        select known.queue as queue from ({known}) as known
        left join ({traffic_sql(Scope())}) as traffic on traffic.queue = known.queue
        order by coalesce(attempts, 0) desc, known.queue
    """  # noqa: S608
    return [row["queue"] for row in answers.ask(sql)]


def traffic_sql(scope: Scope) -> str:
    """SQL for the attempts of each queue, by which a report puts the busiest first."""
    where = scope.where("window_start")
    return f"select queue, sum(started) as attempts from gold_minute where {where} group by queue"  # noqa: S608


def _edges(answers: Answers, scope: Scope, which: str) -> list[datetime]:
    """The first or last moments of the tables that know one."""
    for tables in (MOMENTS, ROUNDED):
        found = [_edge(answers, scope, which, *named) for named in tables.items()]
        known = [moment for moment in found if moment]
        if known:
            return known
    return []


def _edge(answers: Answers, scope: Scope, which: str, table: str, moment: str) -> datetime | None:
    sql = f"select {which}({moment}) as edge from {table} where {scope.where(moment)}"  # noqa: S608
    return answers.ask(sql)[0]["edge"]
