"""Golden bytes of the original, read from the files beside this one."""

import hashlib
import json
from pathlib import Path

import pytest

_GOLDEN = Path(__file__).parent / "golden"


def load(name):
    return json.loads((_GOLDEN / f"{name}.json").read_text())


def cases(entries, key="case"):
    """Turn a list of vectors into parameters with readable ids."""
    return [pytest.param(entry, id=str(entry.get(key, at))) for at, entry in enumerate(entries)]


def raw(spelled):
    """Return the bytes of a vector; long ones are stored as head, tail and checksum."""
    if isinstance(spelled, str):
        return bytes.fromhex(spelled)
    head, tail = bytes.fromhex(spelled["head_hex"]), bytes.fromhex(spelled["tail_hex"])
    whole = head + head[-1:] * (spelled["len"] - len(head) - len(tail)) + tail
    assert hashlib.sha256(whole).hexdigest() == spelled["sha256"]
    return whole


def flat(fields):
    """Return the fields of an entry as Redis answers them."""
    return [part for name, value in fields for part in (name.encode(), raw(value))]


def value(spelled):
    """Return a payload value whose bytes and big ints were spelled for JSON."""
    match spelled:
        case {"hex": text} if len(spelled) == 1:
            return bytes.fromhex(text)
        case {"int": text} if len(spelled) == 1:
            return int(text)
        case dict():
            return {key: value(inner) for key, inner in spelled.items()}
        case list():
            return [value(inner) for inner in spelled]
        case _:
            return spelled
