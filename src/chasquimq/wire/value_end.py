"""Finds where the first MessagePack value of a buffer ends, without building it."""

from __future__ import annotations

from chasquimq.errors import DecodeError

# Per leading byte: how many bytes the value takes by itself, and how many values follow inside it.
_FIXED: list[tuple[int, int]] = [(0, 0)] * 256
# Per leading byte: width of the length, bytes before the body, body bytes and values per unit.
_SIZED: dict[int, tuple[int, int, int, int]] = {
    **{0xC4 + i: (1 << i, 0, 1, 0) for i in range(3)},  # bin
    **{0xC7 + i: (1 << i, 1, 1, 0) for i in range(3)},  # ext
    **{0xD9 + i: (1 << i, 0, 1, 0) for i in range(3)},  # str
    **{0xDC + i: (2 << i, 0, 0, 1) for i in range(2)},  # array
    **{0xDE + i: (2 << i, 0, 0, 2) for i in range(2)},  # map
}


def value_end(buf: bytes, start: int = 0) -> int:
    """Return the offset after the value at `start`; whatever follows is not looked at.

    The walk keeps a count instead of a stack, so that nesting costs nothing.

    Raises:
        DecodeError: the buffer ends inside the value, or holds a byte MessagePack never uses.
    """
    at, pending = start, 1
    size = len(buf)
    while pending:
        if at >= size:
            raise _cut_off(size)
        own, inside = _FIXED[buf[at]]
        if not own:
            own, inside = _measure(buf, at)
        at += own
        pending += inside - 1
    if at > size:
        raise _cut_off(size)
    return at


def _measure(buf: bytes, at: int) -> tuple[int, int]:
    shape = _SIZED.get(buf[at])
    if shape is None:
        raise DecodeError("MessagePack never uses the byte 0xc1, but it was found")
    width, before, bytes_per, values_per = shape
    count = int.from_bytes(buf[at + 1 : at + 1 + width], "big")
    return 1 + width + before + count * bytes_per, count * values_per


def _cut_off(size: int) -> DecodeError:
    return DecodeError(f"a MessagePack value must be whole, but it was cut off at byte {size}")


def _fill_fixed() -> None:
    for tag in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        _FIXED[tag] = (1, 0)
    for count in range(16):
        _FIXED[0x80 + count] = (1, 2 * count)
        _FIXED[0x90 + count] = (1, count)
    for length in range(32):
        _FIXED[0xA0 + length] = (1 + length, 0)
    for tag, own in zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True):
        _FIXED[tag] = (own, 0)
    for tag, own in zip(range(0xD4, 0xD9), (3, 4, 6, 10, 18), strict=True):
        _FIXED[tag] = (own, 0)


_fill_fixed()
