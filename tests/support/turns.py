"""Where what the server does is not the point, its kinds take turns: each test is run on one."""

from __future__ import annotations

import os
import zlib

import pytest

from support.servers import ServerKind, server_kinds

_IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
_KINDS = server_kinds()


def left_to_another_kind(items: list[pytest.Item]) -> list[pytest.Item]:
    """What a short run leaves out; the long one leaves out nothing."""
    return [] if _IS_BIG else [item for item in items if _is_anothers(item)]


def _is_anothers(item: pytest.Item) -> bool:
    called = getattr(item, "callspec", None)
    kind = called.params.get("kind") if called else None
    if not isinstance(kind, ServerKind) or item.get_closest_marker("takes_turns") is None:
        return False
    # The same name for all kinds, so that exactly one of them has its turn.
    name = item.nodeid.partition("[")[0] + called.id.replace(kind.label, "", 1)
    return kind != _KINDS[zlib.crc32(name.encode()) % len(_KINDS)]
