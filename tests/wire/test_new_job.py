"""Many plain jobs spelled together are what they are one by one, or are left to that way."""

import pytest

from chasquimq.wire.new_job import JobEncoder

NOW_MS = 1_794_727_017_102
GOOD = {"name": "mail", "data": {"to": 7}}


class Text(str):
    """Equal to a text, and not one."""

    __slots__ = ()


@pytest.fixture
def encoder():
    """One that knows the name of the good job."""
    encoder = JobEncoder(payload_bytes_max=100, delay_s_max=10)
    encoder.encode(GOOD, "first", NOW_MS)
    return encoder


def test_jobs_spelled_together_are_the_same_as_one_by_one(encoder):
    specs = [GOOD, {"data": [1, None], "name": "mail"}]

    together = encoder.all_plain(specs, NOW_MS)

    pairs = zip(specs, together, strict=True)
    alone = [encoder.encode(spec, job.job_id, NOW_MS) for spec, job in pairs]
    assert together == alone
    assert len({job.job_id for job in together}) == 2


@pytest.mark.parametrize(
    "odd",
    [
        {"name": "unknown", "data": 1},
        {"name": "", "data": 1},
        {"name": 5, "data": 1},
        {"name": ["mail"], "data": 1},
        {"name": Text("mail"), "data": 1},
        {"name": "mail", "data": {1}},
        {"name": "mail", "data": "x" * 200},
        {"name": "mail"},
        {"name": "mail", "payload": 1},
        {"data": 1, "payload": 1},
        {**GOOD, "attempts": 2},
    ],
    ids=str,
)
def test_a_job_that_is_not_plain_leaves_all_to_the_careful_way(encoder, odd):
    assert encoder.all_plain([GOOD, odd], NOW_MS) is None
