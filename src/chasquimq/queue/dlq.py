"""The dead letters part of a Queue: look at them, send them back, delete them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, cast

from chasquimq.errors import (
    EditRefused,
    EncodeError,
    LimitExceeded,
    PayloadTooLarge,
    SettingsError,
)
from chasquimq.model.job_options import whole_number
from chasquimq.queue.connections import Opening
from chasquimq.store.dlq import DeadLetterStore, DlqQuery, Edit, Imported, Replayed, buried_ms
from chasquimq.store.inspect.pages import ReadStore
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


class DeadLetters(Opening):
    """Looks at what was given up, and puts it right."""

    async def peek_dlq(
        self,
        limit: int = 20,
        *,
        after: str | None = None,
        name: str | None = None,
        reason: str | None = None,
        fingerprint: str | None = None,
    ) -> list[DeadLetter]:
        """The oldest entries that match every filter; nothing moves.

        `after` is the `dlq_id` of the last entry already seen.
        """
        whole_number("limit", limit, 0)
        if after is not None:
            _check_entry_id("after", after)
        query = DlqQuery(name=name, reason=reason, fingerprint=fingerprint)
        return [_letter(entry) for entry in await self._dlq().peek(query, limit, after)]

    async def replay_dlq(
        self,
        limit: int = 100,
        *,
        ids: Sequence[str] | None = None,
        name: str | None = None,
        reason: str | None = None,
        fingerprint: str | None = None,
        max_rate: float | None = None,
        edit: Callable[[Any], Any] | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Send the oldest matching jobs back to the queue, as their next generation.

        Attempts start again from 0; creation time, retry options and name are kept. Entries
        that cannot be decoded stay where they are and are counted as `skipped`, jobs that die
        again meanwhile are not replayed twice. `max_rate` is in jobs per second. `edit` takes
        the data of a job and returns what it shall be from now on. What it refuses with
        `EditRefused` stays in the DLQ, and so does what it makes too large or impossible to
        encode (`refused` of the answer); if it raises anything else, the replay ends there.
        """
        whole_number("limit", limit, 0)
        query = DlqQuery(ids=_checked(ids), name=name, reason=reason, fingerprint=fingerprint)
        if query.ids is not None and len(query.ids) > limit:
            raise LimitExceeded("limit", limit, f"at least the number of ids, {len(query.ids)}")
        rate = None if max_rate is None else _checked_rate(max_rate)
        return await self._dlq().replay(
            query, limit, rate, is_dry=dry_run, edit=edit and self._edit_of(edit)
        )

    async def purge_dlq(
        self,
        *,
        ids: Sequence[str] | None = None,
        name: str | None = None,
        reason: str | None = None,
        fingerprint: str | None = None,
        older_than_ms: int | None = None,
        all: bool = False,
    ) -> int:
        """Delete the matching entries for good and return how many there were.

        Raises:
            SettingsError: neither a filter nor `all=True` says what to delete, or both do.
        """
        if older_than_ms is not None:
            whole_number("older_than_ms", older_than_ms, 0)
        query = DlqQuery(ids=_checked(ids), name=name, reason=reason, fingerprint=fingerprint)
        _check_purge(all=all, has_filter=not query.is_open or older_than_ms is not None)
        return await self._dlq().purge(query, older_than_ms)

    async def import_dlq(
        self, letters: Iterable[Mapping[str, Any]], *, as_jobs: bool = False
    ) -> Imported:
        """Add dead jobs that `peek_dlq` or `chasqui dlq export` gave, with the bytes they had.

        They become dead jobs of this queue, or with `as_jobs` jobs that run again with all their
        attempts. One that is still in the DLQ, or was imported in the last 24 hours, is not added
        again, so a call that was cut off may be repeated. All are checked before the first is
        added.

        Raises:
            SettingsError: one of them is no dead job; the message says which and why.
        """
        entries = [
            check_letter(f"letters[{at}]", letter, must_be_readable=as_jobs)
            for at, letter in enumerate(letters)
        ]
        return await self._dlq().import_all(entries, as_jobs=as_jobs)

    def _edit_of(self, edit: Callable[[Any], Any]) -> Edit:
        most = self._settings.max_payload_bytes

        def edited(payload: bytes) -> bytes:
            try:
                changed = encode_payload(edit(decode_payload(payload)))
            except EncodeError as error:
                raise EditRefused(str(error)) from error
            if len(changed) > most:
                raise EditRefused(str(PayloadTooLarge(len(changed), most)))
            return changed

        return edited

    def _dlq(self) -> DeadLetterStore:
        store = self._store()
        return DeadLetterStore(store, ReadStore(store.link))


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
        # The original writes no time of its own, but the id tells when it wrote.
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


def _checked(ids: Any) -> Sequence[str] | None:
    if ids is None:
        return None
    many = check_many("ids", ids, "a list of dlq ids", hint="for one, pass [dlq_id]")
    # Twice the same id is one entry.
    return list(dict.fromkeys(_check_entry_id("ids", entry_id) for entry_id in many))


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
        raise SettingsError("purge_dlq", "no filter", "told what to delete", hint=hint)
    if all and has_filter:
        hint = "leave one of them out"
        raise SettingsError("all", all, "given without filters", hint=hint)
