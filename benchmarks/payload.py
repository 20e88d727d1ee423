"""Payloads of a given size, the same for every side."""

from __future__ import annotations

# 101 bytes of MessagePack.
PAYLOAD = {f"k{i}": f"v{i}" for i in range(15)}
SMALL_BYTES = 100
KIB = 1024
# What MessagePack adds to a text longer than 31 bytes, and to one longer than 255.
_SHORT_HEAD_BYTES, _LONG_HEAD_BYTES = 2, 3
_SHORT_TEXT_MAX = 255


def payload_of(wanted_bytes: int) -> dict[str, str]:
    """The usual fields, with texts so long that MessagePack takes just so many bytes.

    Up to the usual size it is the usual payload; small texts have other heads.
    """
    if wanted_bytes <= SMALL_BYTES:
        return PAYLOAD
    names = list(PAYLOAD)
    head = _LONG_HEAD_BYTES if wanted_bytes > len(names) * _SHORT_TEXT_MAX else _SHORT_HEAD_BYTES
    fixed = 1 + sum(1 + len(name) + head for name in names)
    each, rest = divmod(wanted_bytes - fixed, len(names))
    return {name: "v" * (each + (at < rest)) for at, name in enumerate(names)}
