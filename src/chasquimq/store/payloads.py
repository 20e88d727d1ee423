"""The payload codec as the engine's child program sees it, which may not read the wire itself."""

from __future__ import annotations

from chasquimq.wire.codec import decode_payload as decode
from chasquimq.wire.codec import encode_payload as encode

__all__ = ["decode", "encode"]
