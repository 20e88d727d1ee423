"""Seeds, and what time does to them: bits flip, ends are cut, pieces are doubled."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import hiredis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from wire.vectors import load, raw

CORPUS = Path(__file__).with_name("corpus")
# The long form looks for new inputs each time; the short one repeats the same few.
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
_FACTOR = 200 if IS_BIG else 1
RUN_S_MAX = 3_600 if IS_BIG else 60


def budget(examples: int) -> settings:
    """As many inputs as take about a second, or two hundred times as many."""
    return settings(
        max_examples=examples * _FACTOR, derandomize=not IS_BIG, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip


@cache
def lines(name: str) -> list[str]:
    """The lines of a corpus file that say something."""
    text = (CORPUS / name).read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("##")]


@cache
def golden(name: str, key: str) -> list[bytes]:
    """Every short value of that key in a file of golden bytes."""
    return [one for one in _harvest(load(name), key) if 0 < len(one) < 4_096]


@cache
def envelopes() -> list[bytes]:
    """What the original writes, and raw entries that it reads or refuses."""
    cases = load("envelope_decode")["envelope_decode"]["cases"]
    odd = [raw(text) for case in cases for field, text in case["fields"] if field == "d"]
    short = [one for one in odd if 0 < len(one) < 4_096]
    return [*golden("stream_entries", "d_hex"), *golden("dlq_and_retries", "d_hex"), *short]


@cache
def replies() -> dict[str, object]:
    """What four servers said to reads, as they spelled it, parsed."""
    spelled = json.loads((CORPUS / "replies.json").read_text())
    return {
        f"{server}: {question}": _parsed(bytes.fromhex(answer))
        for server, answers in spelled.items()
        for question, answer in answers.items()
    }


def entries() -> list[list]:
    """The entries of all those replies: two elements each, or four of a claiming read."""
    found = []
    for question, reply in replies().items():
        if isinstance(reply, list) and "pending" not in question:
            found += reply[0][1] if "read" in question or "own" in question else reply
    return [entry for entry in found if entry is not None]


@st.composite
def mutated(draw, seeds: list[bytes]) -> bytes:
    """A seed after a few accidents."""
    found = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(found)))
        _spoil(draw, found, at, seeds)
    return bytes(found)


def _spoil(draw, found: bytearray, at: int, seeds: list[bytes]) -> None:
    match draw(st.sampled_from(["flip", "cut", "insert", "double", "splice", "head"])):
        case "flip" if at < len(found):
            found[at] ^= draw(st.integers(1, 255))
        case "cut":
            del found[at:]
        case "insert":
            found[at:at] = draw(st.binary(min_size=1, max_size=6))
        case "double":
            found += found[at:]
        case "splice":
            found[at:] = draw(st.sampled_from(seeds))[at:]
        case "head":
            found[at:at] = draw(st.sampled_from(_HEADS))


# Beginnings of MessagePack values that promise a lot.
_HEADS = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01", b"\xc7\x04\xff", b"\xd6\xff\x00\x00\x00\x00", b"\xc1",
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xcb\x7f\xf8" + b"\x00" * 6, b"\x91" * 1_100,
    b"\x81" * 600,
]  # fmt: skip


def _harvest(found: object, key: str) -> list[bytes]:
    match found:
        case dict():
            here = [raw(found[key])] if found.get(key) else []
            return here + [one for inner in found.values() for one in _harvest(inner, key)]
        case list():
            return [one for inner in found for one in _harvest(inner, key)]
        case _:
            return []


def _parsed(reply: bytes) -> object:
    reader = hiredis.Reader()
    reader.feed(reply)
    return reader.gets()
