"""Commands as bytes, against hiredis."""

from typing import NamedTuple

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.store.producer.writes import XaddTemplate
from chasquimq.wire.stream_entry import NAMES_CACHED_MAX, bulk, command

PRODUCER_ID = "799d88b3-3539-4a05-92e6-b7bedb5c652c"
KEY = "{chasqui:50%s%%d}:stream"
NAMES = st.text(max_size=12) | st.sampled_from(["%s", "%", "100%d", "a\r\nb"])


class Job(NamedTuple):
    job_id: str
    name: str
    envelope: bytes


def pack(job_id, name, envelope, *gate):
    ids = (*gate, job_id) if gate else ()
    tail = ("n", name) if name else ()
    return hiredis.pack_command(("XADD", KEY, *ids, "*", "d", envelope, *tail))


def test_a_bulk_string_counts_bytes():
    assert bulk("é".encode()) == b"$2\r\n\xc3\xa9\r\n"
    assert bulk(b"") == b"$0\r\n\r\n"


@given(st.lists(st.text() | st.binary() | st.integers(), min_size=1, max_size=6))
def test_a_command_is_packed_as_hiredis_does(parts):
    assert command(*parts) == hiredis.pack_command(tuple(parts))


@given(st.text(max_size=30), NAMES, st.binary(max_size=300))
def test_a_gated_add_is_packed_as_hiredis_does(job_id, name, envelope):
    template = XaddTemplate(KEY, producer_id=PRODUCER_ID)

    assert template.encode([Job(job_id, name, envelope)]) == pack(
        job_id, name, envelope, "IDMP", PRODUCER_ID
    )


@given(st.text(max_size=30), NAMES, st.binary(max_size=300))
def test_a_plain_add_is_packed_as_hiredis_does(job_id, name, envelope):
    template = XaddTemplate(KEY, producer_id=None)

    assert template.encode([Job(job_id, name, envelope)]) == pack(job_id, name, envelope)


@pytest.mark.parametrize("gate", [(), ("IDMP", PRODUCER_ID)], ids=["plain", "gated"])
def test_many_adds_stand_behind_each_other(gate):
    template = XaddTemplate(KEY, producer_id=gate[1] if gate else None)
    jobs = [Job("first", "mail", b"\x01"), Job("second", "", b""), Job("third", "mail", b"\x03")]

    assert template.encode(jobs) == b"".join(pack(*job, *gate) for job in jobs)


@pytest.mark.parametrize("producer_id", [None, PRODUCER_ID], ids=["plain", "gated"])
def test_a_name_seen_before_is_spelled_the_same(producer_id):
    template = XaddTemplate(KEY, producer_id=producer_id)

    first = template.encode([Job("job", "mail", b"\x01")])
    template.encode([Job("other", "text", b"\x02")])

    assert template.encode([Job("job", "mail", b"\x01")]) == first


def test_names_made_up_per_job_do_not_fill_the_memory():
    template = XaddTemplate(KEY, producer_id=None)

    spelled = [template.encode([Job("job", f"n{at}", b"")]) for at in range(3 * NAMES_CACHED_MAX)]

    assert len(template._templates) <= NAMES_CACHED_MAX
    assert spelled[-1] == pack("job", f"n{3 * NAMES_CACHED_MAX - 1}", b"")
