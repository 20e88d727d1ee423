"""Encodes the entries of the stream, the delayed set and the DLQ, and RESP2 for templates."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from chasquimq.errors import DecodeError

# ── commands ──────────────────────────────────────────────────────────────────────────────────────

NAMES_CACHED_MAX = 256


def bulk(text: bytes) -> bytes:
    """Encode one bulk string."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def command(*parts: bytes | str | int) -> bytes:
    """Encode one command."""
    return b"*%d\r\n" % len(parts) + b"".join([bulk(_to_bytes(part)) for part in parts])


def fixed(part: bytes | str) -> bytes:
    """Encode a bulk string inside a template that `%` fills."""
    return bulk(_to_bytes(part)).replace(b"%", b"%%")


def _to_bytes(part: bytes | str | int) -> bytes:
    if isinstance(part, bytes):
        return part
    return part.encode() if isinstance(part, str) else b"%d" % part


# ── members of the delayed set ────────────────────────────────────────────────────────────────────

_PREFIX_BYTES = 4


def encode_member(name: str, envelope: bytes) -> bytes:
    """Encode a delayed job; an empty name is four zero bytes."""
    text = name.encode()
    return len(text).to_bytes(_PREFIX_BYTES, "little") + text + envelope


def split_member(member: bytes) -> tuple[str, bytes]:
    """Return name and envelope of a delayed member.

    A name that is not UTF-8 counts as no name; an empty envelope is left to its decoder.

    Raises:
        DecodeError: the prefix is cut off or promises a longer name than there is.
    """
    if len(member) < _PREFIX_BYTES:
        raise DecodeError(f"a delayed member must be at least 4 bytes long, got {len(member)}")
    end = _PREFIX_BYTES + int.from_bytes(member[:_PREFIX_BYTES], "little")
    if end > len(member):
        raise DecodeError(
            f"a delayed member must hold the {end - _PREFIX_BYTES} bytes of name it announces, "
            f"got {len(member) - _PREFIX_BYTES}"
        )
    return read_name(member[_PREFIX_BYTES:end]), member[end:]


def head_of(member: bytes) -> bytes | None:
    """Return all that comes before the job id; None where there is no envelope.

    Of one due time, members with the same head are sorted by their ids.
    """
    end = _PREFIX_BYTES + int.from_bytes(member[:_PREFIX_BYTES], "little") + 1
    return member[:end] if len(member) > end else None


def read_name(raw: bytes) -> str:
    """Return a job name from its bytes; bytes that are not UTF-8 mean no name."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


# ── entries of the stream and the DLQ ─────────────────────────────────────────────────────────────

# An exception may carry a whole document; the DLQ keeps its beginning.
ERROR_CHARS_MAX = 2_048
# 2**64 has twenty digits; a longer number is no time or count of ours.
_UINT_DIGITS_MAX = 20
_ENTRY_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
_U64_MAX = 2**64 - 1
# A longer text takes a third of its bytes or less when compressed; a shorter one saves too little.
_COMPRESSED_BYTES_MIN = 1_024
# A reader decompresses at most this much: four bytes a character of the longest text of ours.
_TRACEBACK_BYTES_MAX = 64 * 1024
# How a zlib stream begins; no text of ours begins with this letter.
_ZLIB_MARK = b"x"


class StreamFields(msgspec.Struct, frozen=True, gc=False):
    """A main-stream entry; `payload` is the envelope, None where the entry has no `d`."""

    payload: bytes | None
    name: str = ""
    due_ms: int | None = None


class DlqEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A DLQ entry; None and empty text stand for what its writer did not know.

    `payload` is the envelope as it was read.
    """

    entry_id: str
    payload: bytes
    name: str
    source_id: str
    reason: str
    detail: str | None = None
    attempt: int | None = None
    failed_at_ms: int | None = None
    error: str = ""
    fingerprint: str = ""
    traceback: bytes = b""

    @property
    def traceback_text(self) -> str:
        """Where the last attempt failed, as text; empty where nothing is kept of it."""
        return decode_traceback(self.traceback)


def read_fields(fields: Sequence[bytes] | None) -> StreamFields:
    """Read a main-stream entry; no fields at all is an entry without a payload."""
    if not fields:
        return StreamFields(None)
    # Nearly every entry is `d` and `n` in this order; the rest may take its time.
    if len(fields) == 4 and fields[0] == b"d" and fields[2] == b"n":
        return StreamFields(fields[1], read_name(fields[3]))
    found = first_values(fields)
    return StreamFields(
        found.get(b"d"), read_name(found.get(b"n", b"")), read_uint(found.get(b"due"))
    )


def encode_dlq(
    payload: bytes,
    source_id: str,
    reason: str,
    *,
    name: str = "",
    detail: str | None = None,
    attempt: int | None = None,
    failed_at_ms: int | None = None,
    error: str = "",
    fingerprint: str = "",
    traceback: str = "",
) -> list[bytes]:
    """Encode a DLQ entry: the fields of ChasquiMQ (Rust) in its order, then ours where they are known."""
    fields = [b"d", payload]
    _append(fields, b"n", name)
    fields += (b"source_id", source_id.encode(), b"reason", reason.encode())
    _append(fields, b"detail", detail)
    _append(fields, b"attempt", attempt)
    _append(fields, b"failed_at", failed_at_ms)
    _append(fields, b"error", error)
    _append(fields, b"fp", fingerprint)
    if traceback:
        fields += (b"traceback", encode_traceback(traceback))
    return fields


def decode_dlq(entry_id: bytes | str, fields: Sequence[bytes] | None) -> DlqEntry:
    """Read a DLQ entry of any writer; labels of reasons are not checked."""
    found = first_values(fields or ())
    return DlqEntry(
        entry_id=entry_id if isinstance(entry_id, str) else read_text(entry_id),
        payload=found.get(b"d", b""),
        name=read_name(found.get(b"n", b"")),
        source_id=read_text(found.get(b"source_id", b"")),
        reason=read_text(found.get(b"reason", b"")),
        detail=read_text(found[b"detail"]) if b"detail" in found else None,
        attempt=read_uint(found.get(b"attempt")),
        failed_at_ms=read_uint(found.get(b"failed_at")),
        error=read_text(found.get(b"error", b"")),
        fingerprint=read_text(found.get(b"fp", b"")),
        traceback=found.get(b"traceback", b""),
    )


def encode_traceback(text: str) -> bytes:
    """Encode a traceback: UTF-8, compressed with zlib where that pays."""
    raw = text.encode(errors="backslashreplace")
    is_short = len(raw) < _COMPRESSED_BYTES_MIN and not raw.startswith(_ZLIB_MARK)
    return raw if is_short else zlib.compress(raw, 1)


def decode_traceback(raw: bytes) -> str:
    """Read a traceback of any writer; a decompressed text that is too long is cut."""
    if raw.startswith(_ZLIB_MARK):
        with suppress(zlib.error):
            raw = zlib.decompressobj().decompress(raw, _TRACEBACK_BYTES_MAX)
    return read_text(raw[:_TRACEBACK_BYTES_MAX])


def first_values(fields: Sequence[bytes]) -> dict[bytes, bytes]:
    """Pair a flat field list; the first of a repeated field wins, as in ChasquiMQ (Rust)."""
    found: dict[bytes, bytes] = {}
    for at in range(0, len(fields) - 1, 2):
        found.setdefault(fields[at], fields[at + 1])
    return found


def is_entry_id(text: str) -> bool:
    """Whether a server takes it for the id of an entry, both parts given."""
    match = _ENTRY_ID.fullmatch(text)
    return match is not None and max(map(int, match.groups())) <= _U64_MAX


def read_uint(raw: bytes | None) -> int | None:
    """Return a decimal field, None where it is absent or not a plain number."""
    if raw is None or not raw.isdigit() or len(raw) > _UINT_DIGITS_MAX:
        return None
    return int(raw)


def read_text(raw: bytes) -> str:
    """Return a text field for display; bytes that are not UTF-8 become replacement characters."""
    return raw.decode(errors="replace")


def safe_text(text: str, chars_max: int) -> str:
    """Cut foreign text and escape lone surrogates, which UTF-8 cannot carry."""
    text = text[:chars_max]
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _append(fields: list[bytes], field: bytes, value: str | int | None) -> None:
    if value is None or value == "":
        return
    text = str(value) if isinstance(value, int) else safe_text(value, ERROR_CHARS_MAX)
    fields += (field, text.encode())
