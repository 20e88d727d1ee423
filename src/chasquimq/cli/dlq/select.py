"""Chooses dead jobs by a condition in SQL, and changes their data by paths."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import click

from chasquimq.cli.dlq.peek import entry_facts, pages
from chasquimq.cli.output.terminal import Advance
from chasquimq.errors import EditRefused, SettingsError
from chasquimq.model.delivery import DlqReason
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.queue.dlq import DeadLetter
    from chasquimq.queue.queue import Queue

_STEP = re.compile(r"\.(?P<key>[^.\[\]=]+)|\[(?P<at>\d+)\]|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\")\]")


class Patch(NamedTuple):
    """A value to put at a path; keys of objects and places in lists lead there."""

    text: str
    path: tuple[str | int, ...]
    value: Any

    def __call__(self, data: Any) -> Any:
        """The data with the value in its place; the data itself stays as it is."""
        if not self.path:
            return self.value
        changed = copy.deepcopy(data)
        holder = changed
        for at, step in enumerate(self.path[:-1]):
            holder = self._step(holder, at, step)
        self._put(holder, self.path[-1])
        return changed

    def _step(self, holder: Any, at: int, step: str | int) -> Any:
        try:
            return holder[step] if _leads(holder, step) else self._refuse(holder, at)
        except (KeyError, IndexError):
            raise EditRefused(f"there is nothing at {_path_text(self.path[: at + 1])}") from None

    def _put(self, holder: Any, last: str | int) -> None:
        if not _leads(holder, last):
            self._refuse(holder, len(self.path) - 1)
        if isinstance(last, int) and last >= len(holder):
            raise EditRefused(f"there is nothing at {_path_text(self.path)}")
        holder[last] = self.value

    def _refuse(self, holder: Any, at: int) -> Any:
        wanted = "a list" if isinstance(self.path[at], int) else "an object"
        where = _path_text(self.path[:at])
        raise EditRefused(f"{where} must be {wanted}, found {type(holder).__name__}")


class PatchType(click.ParamType[Patch]):
    """PATH=VALUE: the value is JSON; what is no JSON is taken as a text."""

    name = "PATH=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Patch:
        if isinstance(value, Patch):
            return value
        text = str(value)
        try:
            path, end = _path_of(text)
            put = _value(text[end + 1 :])
        except (ValueError, RecursionError):
            path, end, put = None, 0, None
        if path is None or text[end : end + 1] != "=":
            self.fail(
                f"{text!r} is no change; write PATH=VALUE, such as $.to=ana@example.org or "
                "$.items[0].price=12",
                param,
                ctx,
            )
        return Patch(text, path, put)


def refuse_new_fields(data: Any, patches: Sequence[Patch]) -> None:
    """Raise where a change would add a field to an object, for it may be a mistyped one.

    Raises:
        EditRefused: there is no such field; names the nearest one.
    """
    for patch in patches:
        *way, last = patch.path or (0,)
        holder = data
        with suppress(KeyError, IndexError, TypeError):
            for step in way:
                holder = holder[step]
            if isinstance(last, str) and isinstance(holder, dict) and last not in holder:
                raise EditRefused(_no_field(patch.path, cast("dict[Any, Any]", holder)))


def _no_field(path: Sequence[str | int], holder: Mapping[Any, Any]) -> str:
    close = get_close_matches(str(path[-1]), [name for name in holder if isinstance(name, str)], 1)
    meant = f"; did you mean {_path_text([*path[:-1], close[0]])}?" if close else ""
    return f"there is no field at {_path_text(path)}{meant}; a new field needs --data"


def patched(data: Any, patches: Sequence[Patch]) -> Any:
    """The data with every change made, in their order."""
    for patch in patches:
        data = patch(data)
    return data


def _path_of(text: str) -> tuple[tuple[str | int, ...] | None, int]:
    """The steps of a path, and where it ends; `$` may be left out before a key."""
    if text.startswith("$"):
        body, at = text, 1
    else:
        body, at = f".{text}", 0
    steps: list[str | int] = []
    while found := _STEP.match(body, at):
        steps.append(_step_of(found))
        at = found.end()
    shift = len(body) - len(text)
    has_start = text.startswith("$") or steps
    return (tuple(steps) if has_start else None), at - shift


def _step_of(found: re.Match[str]) -> str | int:
    if found["at"] is not None:
        return int(found["at"])
    return found["key"] if found["key"] is not None else json.loads(found["quoted"])


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON")


def _leads(holder: Any, step: str | int) -> bool:
    return isinstance(holder, list if isinstance(step, int) else dict)


def _path_text(path: Sequence[str | int]) -> str:
    steps = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    return "$" + "".join(cast("Sequence[str]", list(steps)))


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
    from chasquimq.queue.inspector import open_envelope

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


def refuse_unknown_reason(filters: Mapping[str, Any]) -> None:
    """Raise a sentence about a reason that no dead job was found with and none can have.

    Raises:
        SettingsError: it is not among those that workers write.
    """
    reason = filters.get("reason")
    if reason is not None and reason not in set(DlqReason):
        hint = f"known are {', '.join(DlqReason)}"
        raise SettingsError("reason", reason, "one that a dead job has", hint=hint)


async def matching_ids(
    queue: Queue, condition: str, filters: Mapping[str, Any], advance: Advance
) -> list[str]:
    """The entries that the condition names, oldest first."""
    table, seen = DeadTable(condition), 0
    try:
        async for page in pages(queue, filters):
            table.add(page)
            seen += len(page)
            advance(seen, 0)
        return table.matches()
    finally:
        table.close()
