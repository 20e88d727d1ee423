"""The ceilings of the floor plan: what the tree may have, and what it is to have.

`now` is a ratchet: who brings a figure down writes the new one here, and nobody writes a larger
one. A figure that is below its target has the target as its ceiling.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Ceiling(NamedTuple):
    """The most that a figure may be, and the most it should be."""

    now: int
    target: int


CEILINGS = {
    "modules without spark": Ceiling(178, target=170),
    "modules with one importer, in the same room": Ceiling(21, target=25),
    "class names in more than one module": Ceiling(5, target=5),
    "median length of a function": Ceiling(8, target=8),
    "p90 of the lengths of functions": Ceiling(20, target=20),
    "lines of a file": Ceiling(450, target=450),
    "lines of a file in LONG_FILES": Ceiling(625, target=450),
    "modules in a room": Ceiling(20, target=20),
    "files of the path add": Ceiling(8, target=7),
    "hops of the path add": Ceiling(4, target=4),
    "files of the path run": Ceiling(11, target=11),
    "files of the path run, fail and renew": Ceiling(22, target=18),
    "files of the path dlq replay": Ceiling(33, target=14),
    "files of the path history to report": Ceiling(73, target=30),
}

# Files that may be longer, and why.
LONG_FILES = {
    "chasquimq.compat": "the classes of ChasquiMQ (Rust) beside each other",
    "chasquimq.engine.settlement": "one settlement: judge, batch, call, tell",
    "chasquimq.model.queue_diagnosis": "one rule after the other",
    "chasquimq.queue.queue": "every method of Queue, with signature and docstring",
    "chasquimq.wire.history": "one format, written and read",
}


def check(figure: str, found: Collection[str] | int) -> None:
    """Say the figure, and fail where it is above its ceiling."""
    count = found if isinstance(found, int) else len(found)
    ceiling = CEILINGS[figure]
    print(f"{figure}: {count} (ceiling {ceiling.now}, target {ceiling.target})")
    listed = "" if isinstance(found, int) else "".join(f"\n  {one}" for one in sorted(found))
    assert count <= ceiling.now, f"{figure} must be at most {ceiling.now}, found {count}:{listed}"
