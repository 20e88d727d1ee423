"""The payload codec as the engine's child program sees it, which may not read the wire itself."""

from __future__ import annotations

from typing import Any

from chasquimq.wire.codec import decode_payload as decode
from chasquimq.wire.codec import encode_payload as encode

__all__ = ["decode", "encode", "encode_result"]


def encode_result(value: Any) -> bytes:
    """Spell what a handler returned; an error speaks of the result."""
    return encode(value, root="result")
