"""Dead jobs as a table that SQL can ask: which of them a replay means."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from chasquimq.cli.dlq_peek import entry_facts
from chasquimq.errors import SettingsError
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.queue.dead_letters import DeadLetter

COLUMNS: Final = {
    "dlq_id": "varchar",
    "job_id": "varchar",
    "name": "varchar",
    "reason": "varchar",
    "detail": "varchar",
    "error": "varchar",
    "traceback": "varchar",
    "fingerprint": "varchar",
    "attempt": "bigint",
    "failed_at": "timestamptz",
    "created_at": "timestamptz",
    "payload_bytes": "bigint",
    "data": "json",
}
_PAGE: Final = "dlq_page"
_MICROSECONDS: Final = "timestamp[us]"
_ARROW_TYPES: Final = {
    "bigint": "int64",
    "timestamptz": _MICROSECONDS,
}


class DeadTable:
    """A table `dlq` in memory; nothing else can be read, and nothing written."""

    def __init__(self, condition: str) -> None:
        import duckdb

        self._condition = condition
        self._connection = duckdb.connect(
            config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        )
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self._connection.execute("set TimeZone = 'UTC'")
        self._connection.execute(f"create table dlq ({columns})")
        self._connection.execute("set enable_external_access = false")
        self._connection.execute("set lock_configuration = true")
        self.refuse_nonsense()

    def refuse_nonsense(self) -> None:
        """Raise a sentence about a condition that is none, before anything is read.

        Raises:
            SettingsError: it is no condition on the columns of a dead job.
        """
        import duckdb

        if not self._condition.strip():
            raise _refusal(self._condition, "it is empty")
        try:
            statements = self._connection.extract_statements(self._sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise _refusal(self._condition, "it must be one condition")
            self._connection.execute(self._sql)
        except (duckdb.Error, UnicodeEncodeError) as wrong:
            raise _refusal(self._condition, str(wrong)) from None

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Take dead jobs in."""
        import pyarrow as pa

        columns = list(zip(*map(_row, letters), strict=True))
        if columns:
            kinds = [_ARROW_TYPES.get(kind, "string") for kind in COLUMNS.values()]
            arrays = [pa.array(one, kind) for one, kind in zip(columns, kinds, strict=True)]
            self._connection.register(_PAGE, pa.table(dict(zip(COLUMNS, arrays, strict=True))))
            self._connection.execute(f"insert into dlq select * from {_PAGE}")  # noqa: S608
            self._connection.unregister(_PAGE)

    def matches(self) -> list[str]:
        """The ids of those that meet the condition, oldest first."""
        import duckdb

        try:
            return [row[0] for row in self._connection.execute(self._sql).fetchall()]
        except duckdb.Error as wrong:
            raise _refusal(self._condition, str(wrong)) from None

    def close(self) -> None:
        self._connection.close()

    @property
    def _sql(self) -> str:
        # On a line of its own, a comment at its end hides nothing of ours.
        return f"select dlq_id from dlq where (\n{self._condition}\n) order by rowid"  # noqa: S608


def _row(letter: DeadLetter) -> tuple[Any, ...]:
    from chasquimq.inspector import open_envelope

    contents = open_envelope(letter["payload"])
    known = entry_facts(letter) | {
        "failed_at": _moment(letter["failed_at_ms"]),
        "created_at": _moment(contents.created_at_ms if contents else None),
        "data": _data(contents.data) if contents and contents.is_decoded else None,
    }
    return tuple(known[name] for name in COLUMNS)


def _data(data: Any) -> str | None:
    try:
        # As it is written: a condition may look for any text in it.
        return json.dumps(json_value(data), default=str, ensure_ascii=False)
    except RecursionError:
        # JSON goes less deep than MessagePack; no condition reaches there.
        return None


def _moment(ms: int | None) -> datetime | None:
    try:
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _refusal(condition: str, why: str) -> SettingsError:
    said = " ".join(line.strip() for line in why.splitlines() if line.strip())
    hint = (
        f"{said}; columns are {', '.join(COLUMNS)}; data->>'$.to' reaches into the data, "
        "and (data->>'$.cents')::int makes it a number"
    )
    return SettingsError("where", condition, "an SQL condition on a dead job", hint=hint)
