"""Commands as RESP2 bytes; templates spare the hot path everything that stays the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

NAMES_CACHED_MAX = 256


def bulk(text: bytes) -> bytes:
    """Spell one bulk string."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def command(*parts: bytes | str | int) -> bytes:
    """Spell one command."""
    return b"*%d\r\n" % len(parts) + b"".join([bulk(_to_bytes(part)) for part in parts])


class Entry(Protocol):
    """What a stream gets of a job."""

    @property
    def job_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def envelope(self) -> bytes: ...


class XaddTemplate:
    """Spells `XADD key [IDMP producer_id job_id] * d <envelope> [n <name>]` for one stream."""

    __slots__ = ("_head", "_is_gated", "_templates")

    def __init__(self, key: str, *, producer_id: str | None) -> None:
        self._is_gated = producer_id is not None
        gate = () if producer_id is None else ("IDMP", producer_id)
        self._head = (b"XADD", key, *gate)
        self._templates: dict[str, bytes] = {}

    def spell(self, jobs: Iterable[Entry]) -> bytes:
        """Return one command a job; an empty name leaves `n` out."""
        templates, is_gated = self._templates, self._is_gated
        spelled: list[bytes] = []
        for job in jobs:
            template = templates.get(job.name) or self._learn(job.name)
            envelope = job.envelope
            if is_gated:
                job_id = job.job_id.encode()
                spelled.append(template % (len(job_id), job_id, len(envelope), envelope))
            else:
                spelled.append(template % (len(envelope), envelope))
        return b"".join(spelled)

    def _learn(self, name: str) -> bytes:
        # Names made up per job must not fill the memory; forgetting costs a microsecond each.
        if len(self._templates) >= NAMES_CACHED_MAX:
            self._templates.clear()
        template = self._templates[name] = self._make(name)
        return template

    def _make(self, name: str) -> bytes:
        tail = ("n", name) if name else ()
        before = [_fixed(part) for part in self._head]
        job_id = [_HOLE] if self._is_gated else []
        after = [_fixed(part) for part in ("*", "d")]
        parts = [*before, *job_id, *after, _HOLE, *map(_fixed, tail)]
        return b"*%d\r\n" % len(parts) + b"".join(parts)


# Filled by `%` with the length and the bytes of what changes from job to job.
_HOLE = b"$%d\r\n%b\r\n"


def _fixed(part: bytes | str) -> bytes:
    return bulk(_to_bytes(part)).replace(b"%", b"%%")


def _to_bytes(part: bytes | str | int) -> bytes:
    if isinstance(part, bytes):
        return part
    return part.encode() if isinstance(part, str) else b"%d" % part
