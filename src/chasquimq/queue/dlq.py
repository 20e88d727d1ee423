"""Reads, replays, purges and imports the dead jobs of a queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, cast

from msgspec.structs import replace

from chasquimq.errors import (
    EditRefused,
    EncodeError,
    KindRefused,
    LimitExceeded,
    PayloadTooLarge,
    SettingsError,
)
from chasquimq.model.job_options import whole_number
from chasquimq.store.dlq import DeadLetterStore, DlqQuery, Edit, Imported, Replayed, buried_ms
from chasquimq.store.inspect.pages import ReadStore
from chasquimq.store.net.errors import changes_nothing
from chasquimq.store.producer.store import ProducerStore
from chasquimq.wire.keys import check_job_name, check_many
from chasquimq.wire.outcome import open_envelope
from chasquimq.wire.payload import decode_payload, encode_payload
from chasquimq.wire.stream_entry import DlqEntry, encode_traceback, is_entry_id

_U64_MAX = 2**64 - 1


class DeadLetter(TypedDict):
    """One entry of the DLQ; None stands for what its writer did not know.

    `payload` is the envelope as it was buried, `job_id` is None where it cannot be decoded. `data`
    is what the job carries, None too where that cannot be decoded. `traceback` is that of the last
    attempt.
    """

    dlq_id: str
    source_id: str
    reason: str
    detail: str | None
    payload: bytes
    name: str
    attempt: int | None
    failed_at_ms: int
    error: str | None
    fingerprint: str | None
    job_id: str | None
    data: Any
    traceback: str | None


class Dlq:
    """Checks what a caller asks of the dead jobs of one queue, and does it."""

    def __init__(self, store: ProducerStore, payload_bytes_max: int) -> None:
        self._store = DeadLetterStore(store, ReadStore(store.connection))
        self._payload_bytes_max = payload_bytes_max

    @changes_nothing
    async def peek(self, query: DlqQuery, limit: int, after: str | None) -> list[DeadLetter]:
        """The oldest entries that match; `after` is the last one already seen."""
        whole_number("limit", limit, 0)
        if after is not None:
            _check_entry_id("after", after)
        return [_letter(entry) for entry in await self._store.peek(query, limit, after)]

    async def replay(
        self,
        query: DlqQuery,
        limit: int,
        *,
        max_rate: float | None,
        edit: Callable[[Any], Any] | None,
        dry_run: bool,
    ) -> Replayed:
        """Send the oldest matching jobs back to the queue."""
        whole_number("limit", limit, 0)
        query = _checked(query)
        if query.ids is not None and len(query.ids) > limit:
            raise LimitExceeded("limit", limit, f"at least the number of ids, {len(query.ids)}")
        rate = None if max_rate is None else _checked_rate(max_rate)
        replay = changes_nothing(self._store.replay) if dry_run else self._store.replay
        return await replay(query, limit, rate, is_dry=dry_run, edit=edit and self._edit_of(edit))

    async def purge(self, query: DlqQuery, older_than_ms: int | None, *, all: bool) -> int:
        """Delete the matching entries for good."""
        if older_than_ms is not None:
            whole_number("older_than_ms", older_than_ms, 0)
        query = _checked(query)
        _check_purge(all=all, has_filter=not query.is_open or older_than_ms is not None)
        return await self._store.purge(query, older_than_ms)

    async def import_all(
        self, letters: Iterable[Mapping[str, Any]], *, as_jobs: bool, dry_run: bool
    ) -> Imported:
        """Add dead jobs that come from elsewhere; all are checked before the first is added."""
        entries = [
            check_letter(f"letters[{at}]", letter, must_be_readable=as_jobs)
            for at, letter in enumerate(letters)
        ]
        if dry_run:
            return Imported(known=await changes_nothing(self._store.count_known)(entries))
        return await self._store.import_all(entries, as_jobs=as_jobs)

    def _edit_of(self, edit: Callable[[Any], Any]) -> Edit:
        most = self._payload_bytes_max
        may_return_none = getattr(edit, "may_return_none", False)

        def edited(payload: bytes) -> bytes:
            before = decode_payload(payload)
            after = edit(before)
            if after is None and before is not None and not may_return_none:
                raise _no_data()
            try:
                changed = encode_payload(after)
            except EncodeError as error:
                raise EditRefused(str(error)) from error
            if len(changed) > most:
                raise EditRefused(str(PayloadTooLarge(len(changed), most)))
            return changed

        return edited


def _no_data() -> SettingsError:
    """An edit that changes the data in place and forgets to return it would lose it."""
    hint = "return it, as `lambda data: data | {'price': 20}` does; the job stays in the DLQ"
    return KindRefused("edit", None, "a function that returns the new data", hint=hint)


def _letter(entry: DlqEntry) -> DeadLetter:
    contents = open_envelope(entry.payload)
    return {
        "dlq_id": entry.entry_id,
        "source_id": entry.source_id,
        "reason": entry.reason,
        "detail": entry.detail,
        "payload": entry.payload,
        "name": entry.name,
        "attempt": entry.attempt,
        # ChasquiMQ (Rust) writes no time of its own, but the id says when it wrote.
        "failed_at_ms": buried_ms(entry) if entry.failed_at_ms is None else entry.failed_at_ms,
        "error": entry.error or None,
        "fingerprint": entry.fingerprint or None,
        "job_id": contents and contents.job_id,
        "data": contents and contents.data,
        "traceback": entry.traceback_text or None,
    }


def check_letter(what: str, letter: Any, *, must_be_readable: bool) -> DlqEntry:
    """A dead job that comes from elsewhere; one that shall run again must be readable.

    Raises:
        SettingsError: a field that it needs is missing, or is of another kind.
    """
    if not isinstance(letter, Mapping):
        raise SettingsError(what, type(letter).__name__, "a mapping as peek_dlq returns it")
    fields = cast("Mapping[str, Any]", letter)
    entry_id = _check_entry_id(f"{what}['dlq_id']", fields.get("dlq_id"))
    _check_field(what, fields, "payload", bytes)
    for key in ("name", "reason", "source_id"):
        _check_field(what, fields, key, str)
    for key in ("detail", "error", "fingerprint", "traceback"):
        _check_field(what, fields, key, str, is_optional=True)
    for key in ("attempt", "failed_at_ms"):
        _check_field(what, fields, key, int, is_optional=True)
    check_job_name(fields["name"])
    if must_be_readable and open_envelope(fields["payload"]) is None:
        hint = "it can only be imported as a dead job"
        raise SettingsError(what, fields["payload"][:20], "a job that can be decoded", hint=hint)
    return DlqEntry(
        entry_id=entry_id, payload=fields["payload"], name=fields["name"],
        source_id=fields["source_id"], reason=fields["reason"], detail=fields.get("detail"),
        attempt=fields.get("attempt"), failed_at_ms=fields.get("failed_at_ms"),
        error=fields.get("error") or "", fingerprint=fields.get("fingerprint") or "",
        traceback=encode_traceback(fields.get("traceback") or ""),
    )  # fmt: skip


def _check_field(
    what: str, fields: Mapping[str, Any], key: str, kind: type, *, is_optional: bool = False
) -> None:
    value = fields.get(key)
    is_good = isinstance(value, kind) and not isinstance(value, bool)
    if is_good and isinstance(value, int):
        is_good = 0 <= value <= _U64_MAX
    if not is_good and not (is_optional and value is None):
        raise SettingsError(f"{what}[{key!r}]", value, f"of the kind {kind.__name__}")


def _checked(query: DlqQuery) -> DlqQuery:
    if query.ids is None:
        return query
    many = check_many("ids", query.ids, "a list of dlq ids", hint="for one, pass [dlq_id]")
    # Twice the same id is one entry.
    ids = list(dict.fromkeys(_check_entry_id("ids", entry_id) for entry_id in many))
    return replace(query, ids=ids)


def _check_entry_id(what: str, entry_id: Any) -> str:
    if not (isinstance(entry_id, str) and is_entry_id(entry_id)):
        raise SettingsError(what, entry_id, 'a dlq id such as "1794726951751-0"')
    return entry_id


def _checked_rate(max_rate: Any) -> float:
    is_number = isinstance(max_rate, int | float) and not isinstance(max_rate, bool)
    if not is_number or not math.isfinite(max_rate) or max_rate <= 0:
        raise SettingsError("max_rate", max_rate, "a number of jobs per second above 0")
    return float(max_rate)


def _check_purge(*, all: bool, has_filter: bool) -> None:
    if not all and not has_filter:
        hint = "give a filter, or all=True to delete every entry"
        raise SettingsError("purge_dlq", "no filter", "given a filter", hint=hint)
    if all and has_filter:
        hint = "leave one of them out"
        raise SettingsError("all", all, "given without filters", hint=hint)
