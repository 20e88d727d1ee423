"""A member of the delayed set: the name, prefixed by its length, and then the envelope."""

from __future__ import annotations

from chasquimq.errors import DecodeError

_PREFIX_BYTES = 4


def encode_member(name: str, envelope: bytes) -> bytes:
    """Spell a delayed job; an empty name is four zero bytes."""
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
