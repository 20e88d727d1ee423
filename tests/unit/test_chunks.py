"""Sequences are cut in order, by count and by size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chasquimq.model.chunks import in_chunks, in_sized_chunks


@given(st.lists(st.integers()), st.integers(1, 9))
def test_chunks_hold_every_item_in_order_and_only_the_last_is_short(items, count_max):
    chunks = list(in_chunks(items, count_max))

    assert [one for chunk in chunks for one in chunk] == items
    assert all(len(chunk) == count_max for chunk in chunks[:-1])
    assert all(chunks)


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(1, 12))
def test_sized_chunks_respect_both_limits_unless_one_item_is_too_large(sizes, count_max, size_max):
    chunks = list(in_sized_chunks(sizes, count_max, size_max, lambda size: size))

    assert [one for chunk, _ in chunks for one in chunk] == sizes
    for chunk, size in chunks:
        assert size == sum(chunk)
        assert 1 <= len(chunk) <= count_max
        assert size <= size_max or len(chunk) == 1
