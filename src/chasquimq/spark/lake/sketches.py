"""Reads and merges the sketches of run and wait times that the tables carry, without a JVM.

The functions for SQL have the names that Spark has for them, so that a query runs in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from datasketches import kll_doubles_sketch
from duckdb.func import SPECIAL

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Weights = np.ndarray[Any, np.dtype[np.float64]]

# For what is written: one sketch, in which coins were thrown.
MERGE_LIST_SQL: Final = "kll_merge_list"
# For what is asked: all sketches side by side, so that the same question has the same answer.
GATHER_LIST_SQL: Final = "kll_gather_list"
# No sketch begins like this: its first byte says how long its head is.
_BUNDLE: Final = b"\0kll"
_INCLUSIVE: Final = True
_SIZE: Final = Struct("<I")


def register_functions(connection: DuckDBPyConnection) -> None:
    """Teach a connection what Spark knows about sketches of doubles."""
    teach = partial(connection.create_function, null_handling=SPECIAL)
    teach("kll_sketch_get_quantile_double", quantile_of, ["BLOB", "DOUBLE"], "DOUBLE")
    teach("kll_sketch_get_n_double", count_of, ["BLOB"], "BIGINT")
    teach(MERGE_LIST_SQL, merged, ["BLOB[]"], "BLOB")
    teach(GATHER_LIST_SQL, gathered, ["BLOB[]"], "BLOB")
    connection.execute(
        f"create macro kll_merge_agg_double(sketch) as {GATHER_LIST_SQL}(list(sketch))"
    )


def quantiles(sketches: Iterable[bytes | None], ranks: Sequence[float]) -> list[float | None]:
    """The values at these ranks of all sketches together; None where they hold nothing."""
    return values_at(weigh(sketches), ranks)


def weigh(sketches: Iterable[bytes | None]) -> Weights:
    """All that the sketches have kept: values, and how many each of them stands for.

    Merging throws coins. Weighing does not: the same sketches always answer the same.
    """
    kept = chain.from_iterable(map(_read, _parts(sketches)))
    return np.fromiter(chain.from_iterable(kept), dtype=np.float64).reshape(-1, 2)


def values_at(weights: Weights, ranks: Sequence[float]) -> list[float | None]:
    """The least values that these shares of all do not exceed."""
    if not len(weights):
        return [None] * len(ranks)
    ordered = weights[np.argsort(weights[:, 0])]
    reached = np.cumsum(ordered[:, 1])
    places = [int(np.argmax(reached >= rank * reached[-1])) for rank in ranks]
    return [float(ordered[place, 0]) for place in places]


def quantile_of(sketch: bytes | None, rank: float | None) -> float | None:
    """The value at a rank between 0 and 1; None where there is none."""
    if not sketch or rank is None:
        return None
    if not 0 <= rank <= 1:
        raise ValueError(f"rank must be between 0 and 1, got {rank:g}")
    if sketch.startswith(_BUNDLE):
        return quantiles([sketch], [rank])[0]
    # A single one knows by itself what weighing it would yield, and sooner.
    read = _read(bytes(sketch))
    return None if read.is_empty() else read.get_quantile(rank, _INCLUSIVE)


def count_of(sketch: bytes | None) -> int | None:
    """How many values the sketch stands for."""
    return None if sketch is None else sum(_read(part).n for part in _parts([sketch]))


def gathered(sketches: Sequence[bytes | None] | None) -> bytes | None:
    """All of these side by side, for the functions here to read; None where none is known."""
    known = list(_parts(sketches or ()))
    if len(known) < 2:
        return known[0] if known else None
    return _BUNDLE + b"".join(_SIZE.pack(len(part)) + part for part in known)


def merged(sketches: Sequence[bytes | None] | None) -> bytes | None:
    """One sketch of all that these stand for; None where none of them is known."""
    known = list(_parts(sketches or ()))
    if len(known) < 2:
        return known[0] if known else None
    union = _read(known[0])
    for sketch in known[1:]:
        union.merge(_read(sketch))
    return union.serialize()


def _parts(sketches: Iterable[bytes | None]) -> Iterator[bytes]:
    """Every sketch by itself, also those that were gathered."""
    for sketch in filter(None, sketches):
        if sketch.startswith(_BUNDLE):
            yield from _unbundled(sketch)
        else:
            yield bytes(sketch)


def _unbundled(bundle: bytes) -> Iterator[bytes]:
    at = len(_BUNDLE)
    while at < len(bundle):
        (size,) = _SIZE.unpack_from(bundle, at)
        at += _SIZE.size + size
        yield bytes(bundle[at - size : at])


def _read(sketch: bytes) -> kll_doubles_sketch:
    return kll_doubles_sketch.deserialize(sketch)
