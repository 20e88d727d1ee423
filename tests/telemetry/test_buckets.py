"""Histograms filled by the batch hold what histograms filled singly would."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from chasquimq.telemetry.prometheus import Histogram

BOUNDS = (10, 100, 1_000)


def filled(*batches):
    histogram = Histogram(BOUNDS)
    for batch in batches:
        histogram.add_many(batch)
    return histogram


def test_a_bound_belongs_to_its_own_bucket():
    assert filled([10, 11, 100, 1_000, 1_001]).counts == [1, 2, 1, 1]


@given(st.lists(st.lists(st.integers(0, 2_000), max_size=60), max_size=4))
def test_batches_of_any_size_land_where_single_numbers_would(batches):
    numbers = [number for batch in batches for number in batch]
    places = [bisect_left(BOUNDS, number) for number in numbers]

    histogram = filled(*batches)

    assert histogram.counts == [places.count(at) for at in range(len(BOUNDS) + 1)]
    assert histogram.total == sum(numbers)


def test_cumulative_counts_end_with_all_numbers():
    assert filled([1, 50, 5_000]).cumulative() == [1, 2, 2, 3]


def test_a_copy_does_not_change_with_the_original():
    histogram = filled([5])
    copy = histogram.copy()

    histogram.add_many([5] * 20)

    assert (copy.counts, copy.total) == ([1, 0, 0, 0], 5)
