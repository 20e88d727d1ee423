"""Whatever a stream holds: an entry becomes a delivery or is put aside with its bytes."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.model.delivery import DlqReason
from chasquimq.model.retry import BackoffDefaults, RetryPolicy, judge_start
from chasquimq.store.consumer.decode import EntryDecoder
from fuzz.seeds import RUN_S_MAX, budget, entries, envelopes, mutated

PAYLOAD_BYTES_MAX = 1024 * 1024
# A mebibyte takes a third of it; a busy machine has its own idea of processor time.
READ_S_MAX = 0.25
READ_BYTES_MAX = 32 * 1024 * 1024
ON_ARRIVAL = {DlqReason.MALFORMED, DlqReason.OVERSIZE_PAYLOAD, DlqReason.DECODE_FAILED}
POLICY = RetryPolicy(
    max_attempts=3,
    backoff=BackoffDefaults(
        initial_backoff_ms=1, max_backoff_ms=1, multiplier=2.0, jitter_ms=0
    ),
    unknown_name_retry_ms=1,
    unknown_name_for_ms=1,
)  # fmt: skip

NESTED = 500
BOMBS = {
    "arrays of a million": b"\xdd\x00\x0f\x42\x40" * NESTED,
    "maps of a million": b"\xdf\x00\x0f\x42\x40\xa1a" * NESTED,
    "very deep": b"\x91" * 1_000_000,
    "a text of four billion": b"\x94\xdb\xff\xff\xff\xff" + b"a" * 1_000_000,
    "a payload of four billion": b"\x94\xa1a\xc6\xff\xff\xff\xff" + b"a" * 1_000_000,
    "extras that are deep": b"\x94\xa1a\xc4\x01\xc0\x01\x00" + b"\x91" * 1_000_000,
    "extras that are wide": b"\x94\xa1a\xc4\x01\xc0\x01\x00" + b"\xdf\x00\x0f\x42\x40" * NESTED,
    "a retry that is deep": b"\x95\xa1a\xc4\x01\xc0\x01\x00" + b"\x92\xc0" * 400_000,
}

field_names = st.sampled_from([b"d", b"n", b"due", b"x", b""]) | st.binary(max_size=3)
bodies = mutated(envelopes()) | st.binary(max_size=40)
fields = st.none() | st.lists(field_names | bodies, max_size=9)
entry_ids = st.sampled_from([b"1-1", b"0-1", b"18446744073709551615-18446744073709551615"])
counts = st.integers(0, 2**63 - 1)
strange_entries = st.builds(
    lambda entry_id, some, idle: [entry_id, some, *idle],
    entry_ids,
    fields,
    st.just([]) | st.tuples(counts, counts),
)


def read(entry: list) -> tuple:
    batch = EntryDecoder(PAYLOAD_BYTES_MAX).read([entry], 0)
    return batch.deliveries, batch.rejected


def check(entry: list) -> None:
    deliveries, arrivals = read(entry)

    assert len(deliveries) + len(arrivals) == 1
    for arrival in arrivals:
        assert arrival.reason in ON_ARRIVAL
        assert arrival.detail
        assert arrival.body in {b"", *(entry[1] or [])}
    for delivery in deliveries:
        # Nothing that follows an arrival may stumble over it.
        judge_start(delivery, POLICY, 1.0)
        assert delivery.timeout_ms(None) is None or isinstance(delivery.timeout_ms(None), int)
        assert delivery.entry_id == entry[0]


@pytest.mark.parametrize("entry", entries())
def test_what_servers_said_is_read(entry):
    check(entry)


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(strange_entries)
def test_any_entry_is_delivered_or_put_aside(entry):
    check(entry)


@pytest.mark.timeout(RUN_S_MAX)
@budget(200)
@given(bodies, st.binary(max_size=8))
def test_any_body_under_the_usual_fields_is_delivered_or_put_aside(body, name):
    check([b"1-1", [b"d", body, b"n", name]])
    check([b"1-1", [b"d", body, b"n", name, b"due", name]])


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
def test_a_bomb_costs_neither_time_nor_memory(body):
    assert len(body) <= PAYLOAD_BYTES_MAX, "else it is refused for its size alone"
    entry = [b"1-1", [b"d", body, b"n", b"n"]]
    check(entry)

    took_s = min(timed(entry) for _ in range(2))
    tracemalloc.start()
    read(entry)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert took_s < READ_S_MAX
    assert peak_bytes < READ_BYTES_MAX


def timed(entry: list) -> float:
    began_s = time.process_time()
    read(entry)
    return time.process_time() - began_s
