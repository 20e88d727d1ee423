"""Cuts sequences into chunks: of so many items, or of so many bytes as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def slices(count: int, count_max: int) -> Iterator[slice]:
    """The places of `count` items, at most `count_max` at a time."""
    for at in range(0, count, count_max):
        yield slice(at, at + count_max)


def in_chunks(items: Sequence[T], count_max: int) -> Iterator[Sequence[T]]:
    """The items in order, at most `count_max` at a time."""
    for places in slices(len(items), count_max):
        yield items[places]


def in_sized_chunks(
    items: Sequence[T], count_max: int, size_max: int, size_of: Callable[[T], int]
) -> Iterator[tuple[Sequence[T], int]]:
    """The items in order, each chunk with its size; one that is too large comes alone."""
    sizes = list(map(size_of, items))
    start = size = 0
    # Nearly always all fit into one.
    if len(items) > count_max or sum(sizes) > size_max:
        for at, more in enumerate(sizes):
            if at > start and (at - start == count_max or size + more > size_max):
                yield items[start:at], size
                start, size = at, 0
            size += more
    if start < len(items):
        yield items[start:], sum(sizes[start:])
