"""Events as commands: the ready-made ones and the others are spelled alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.model.delivery import Delivery
from chasquimq.wire.events import Event, EventEncoder, EventKind, encode_event
from chasquimq.wire.stream_entry import command

KEY = "{chasqui:q}:events"
WORKER = "host:1:a%b"
NOW_MS = 1_794_726_955_290
TIMES_MS = st.sampled_from([0, 7, 10**12 - 1, 10**12, NOW_MS, 10**13 - 1, 10**13])
DELIVERIES = st.builds(
    Delivery,
    entry_id=st.just(b"1-1"),
    job_id=st.text(st.characters(codec="utf-8"), max_size=12),
    name=st.sampled_from(["", "mail", "100% näive"]),
    payload=st.just(b""),
    created_at_ms=TIMES_MS,
    spent=st.integers(0, 12),
    earlier=st.integers(0, 12),
    retry=st.none(),
    extras=st.none(),
    due_ms=st.none() | TIMES_MS,
    envelope=st.just(b""),
    duration_us=st.integers(0, 2**40),
)


@pytest.fixture(scope="module")
def encoder():
    return EventEncoder(KEY, 1_000, WORKER)


def spelled(kind, delivery, ts_ms, **fields):
    event = Event(
        kind=kind, job_id=delivery.job_id, ts_ms=ts_ms, name=delivery.name,
        attempt=delivery.run_number, enqueued_at_ms=delivery.created_at_ms, worker=WORKER,
        delivery_count=delivery.earlier + 1, due_ms=delivery.due_ms, **fields,
    )  # fmt: skip
    return command("XADD", KEY, "*", *encode_event(event))


@given(delivery=DELIVERIES, ts_ms=TIMES_MS)
def test_a_start_has_its_fields_in_order(encoder, delivery, ts_ms):
    delivery.started_ns = 5_000_000

    (line,) = encoder.actives([delivery], (ts_ms - 5) * 1_000_000)

    assert line == spelled(EventKind.ACTIVE, delivery, ts_ms)


@given(delivery=DELIVERIES, ts_ms=TIMES_MS)
def test_a_completion_has_its_fields_in_order(encoder, delivery, ts_ms):
    (line,) = encoder.completions([delivery], ts_ms)

    duration_us = delivery.duration_us
    assert line == spelled(EventKind.COMPLETED, delivery, ts_ms, duration_us=duration_us)


def test_names_made_up_per_job_are_spelled_all_the_same(encoder):
    made_up = [
        Delivery(b"1-1", "j", f"n{at}", b"", NOW_MS, 0, 0, None, None, None, b"")
        for at in range(600)
    ]

    lines = encoder.completions(made_up, NOW_MS)

    assert lines == [spelled(EventKind.COMPLETED, one, NOW_MS, duration_us=0) for one in made_up]


def test_the_stream_is_kept_short_by_a_command_of_its_own(encoder):
    assert encoder.trim == command("XTRIM", KEY, "MAXLEN", "~", 1_000)
