"""One queue, two packages: what one adds the other works off, and each reads what the other left."""

from __future__ import annotations

import pytest

from support.package_side import PackageSide

SEEN = [
    ["", "'nameless'", 0],
    ["bulk", "5", 0],
    ["bulk", "6", 0],
    ["buried", "7", 0],
    ["delayed", "2", 0],
    ["given up", "8", 0],
    ["own id", "3", 0],
    ["plain", "{'n': 1}", 0],
    ["repeated", "b'\\x00'", 0],
    ["retried", "4", 0],
    ["retried", "4", 1],
]
RESULTS = [
    "{'ran': {'n': 1}}", "{'ran': 'nameless'}", "{'ran': 2}", "{'ran': 3}", "{'ran': 4}",
    "{'ran': 5}", "{'ran': 6}",
]  # fmt: skip
LETTERS = [["buried", "unrecoverable"], ["given up", "retries_exhausted"]]


@pytest.fixture
def original(original_python, shared_url, queue_name) -> PackageSide:
    return PackageSide(original_python, shared_url, queue_name)


@pytest.fixture
def ours(shared_url, queue_name) -> PackageSide:
    return PackageSide.ours(shared_url, queue_name)


@pytest.fixture(params=["original adds, ours works", "ours adds, original works"])
def adder_and_worker(request, original, ours) -> tuple[PackageSide, PackageSide]:
    return (original, ours) if request.param.startswith("original") else (ours, original)


def test_what_one_adds_the_other_works_off(adder_and_worker):
    add, work = adder_and_worker

    ids = add("add")
    seen = work("work", len(SEEN))

    assert seen == SEEN
    assert add("results", *ids) == work("results", *ids) == RESULTS
    assert add("letters") == work("letters") == LETTERS
    assert add("plans") == work("plans") == []


def test_what_one_buries_the_other_replays(adder_and_worker):
    add, work = adder_and_worker
    add("hopeless")
    hopeless = [["buried", "7", 0], ["given up", "8", 0]]

    assert work("work", 2) == hopeless
    assert add("replay") == 2
    assert work("work", 2) == hopeless
    assert add("letters") == LETTERS


def test_what_one_delays_the_other_cancels(adder_and_worker):
    add, other = adder_and_worker
    add("delay", "a", "b")

    assert other("cancel", "a", "unknown") == [True, False]
    assert add("cancel", "a", "b") == [False, True]


def test_a_delayed_id_is_taken_for_both(adder_and_worker):
    add, other = adder_and_worker
    add("delay", "a")
    other("delay", "a")

    assert other("cancel", "a", "a") == [True, False]
