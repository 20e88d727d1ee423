"""Commands as RESP2 bytes; templates spare the hot path everything that stays the same."""

from __future__ import annotations

NAMES_CACHED_MAX = 256


def bulk(text: bytes) -> bytes:
    """Spell one bulk string."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def command(*parts: bytes | str | int) -> bytes:
    """Spell one command."""
    return b"*%d\r\n" % len(parts) + b"".join([bulk(_to_bytes(part)) for part in parts])


class XaddTemplate:
    """Spells `XADD key [IDMP producer_id job_id] * d <envelope> [n <name>]` for one stream."""

    __slots__ = ("_head", "_is_gated", "_templates")

    def __init__(self, key: str, *, producer_id: str | None) -> None:
        self._is_gated = producer_id is not None
        gate = () if producer_id is None else ("IDMP", producer_id)
        self._head = (b"XADD", key, *gate)
        self._templates: dict[str, bytes] = {}

    def spell(self, job_id: str, name: str, envelope: bytes) -> bytes:
        """Return the command that adds one job; an empty name leaves `n` out."""
        template = self._templates.get(name) or self._learn(name)
        if self._is_gated:
            raw_id = job_id.encode()
            return template % (len(raw_id), raw_id, len(envelope), envelope)
        return template % (len(envelope), envelope)

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
