"""Job ids against python-ulid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from chasquimq.wire.new_job import new_job_id, new_job_ids, stable_job_id, ulid_ms
from wire.vectors import load

TIMES = st.integers(0, 2**48 - 1)
GENERATED = [
    entry["decoded"]
    for entry in load("stream_entries")["stream_entries"]["single"]
    if entry["decoded"]["id"].startswith("01M7")
]


@given(TIMES)
def test_an_id_is_a_ulid_of_its_time(now_ms):
    job_id = new_job_id(now_ms)

    assert str(ULID.from_str(job_id)) == job_id
    assert int.from_bytes(ULID.from_str(job_id).bytes[:6], "big") == now_ms
    assert ulid_ms(job_id) == now_ms


@given(st.integers(0, 50), TIMES)
def test_a_batch_has_as_many_ids_as_asked_for(count, now_ms):
    job_ids = new_job_ids(count, now_ms)

    assert len(set(job_ids)) == len(job_ids) == count


def test_a_large_batch_repeats_no_id():
    assert len(set(new_job_ids(50_000, 5))) == 50_000


def test_the_ids_of_a_batch_are_in_order_a_thousand_and_twenty_four_at_a_time():
    job_ids = new_job_ids(2_000, 5)

    assert job_ids[:1_024] == sorted(job_ids[:1_024])
    assert job_ids[1_024:] == sorted(job_ids[1_024:])


def test_batches_of_one_millisecond_share_no_id():
    batches = [new_job_ids(2, 5) for _ in range(10_000)]

    assert len({job_id for batch in batches for job_id in batch}) == 20_000


def test_random_characters_use_the_whole_alphabet_evenly():
    tails = "".join(new_job_id(5)[10:] for _ in range(20_000))

    shares = [tails.count(char) / len(tails) for char in "0123456789ABCDEFGHJKMNPQRSTVWXYZ"]

    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0.9 / 32
    assert max(shares) < 1.1 / 32


def test_ids_sort_by_their_time():
    assert new_job_id(5) < new_job_id(6) < new_job_id(2**47)


@pytest.mark.parametrize("decoded", [pytest.param(row, id=row["id"]) for row in GENERATED])
def test_the_time_inside_an_id_of_the_original_is_read(decoded):
    assert ulid_ms(decoded["id"]) == decoded["created_at_ms"]


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        "order:42",
        "01M7F0ZX96FNEEQ156Q24RZH0",
        "01M7F0ZX96FNEEQ156Q24RZH0DD",
        "01m7f0zx96fneeq156q24rzh0d",
        "01M7F0ZX96FNEEQ156Q24RZH0U",
        "81M7F0ZX96FNEEQ156Q24RZH0D",
        "é1M7F0ZX96FNEEQ156Q24RZH0D",
    ],
)
def test_an_id_that_is_no_ulid_of_ours_has_no_time(job_id):
    assert ulid_ms(job_id) is None


@pytest.mark.parametrize("now_ms", [-1, 2**48])
def test_a_time_beyond_48_bits_is_a_bug_of_the_caller(now_ms):
    with pytest.raises(AssertionError, match="48 bits"):
        new_job_id(now_ms)


def test_a_stable_id_is_a_ulid_of_its_time_and_depends_on_seed_and_time_alone():
    one = stable_job_id(b"spec", 1_794_727_017_102)

    assert str(ULID.from_str(one)) == one
    assert ulid_ms(one) == 1_794_727_017_102
    assert one == stable_job_id(b"spec", 1_794_727_017_102)
    assert one[10:] != stable_job_id(b"other", 1_794_727_017_102)[10:]
    assert one[10:] != stable_job_id(b"spec", 1_794_727_017_103)[10:]
