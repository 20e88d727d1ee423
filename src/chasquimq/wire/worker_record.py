"""The record of a worker: a MessagePack map under the worker's own key."""

from __future__ import annotations

import msgspec

from chasquimq.model.worker_record import WorkerRecord

_decode = msgspec.msgpack.Decoder(WorkerRecord).decode
encode_worker_record = msgspec.msgpack.Encoder().encode


def decode_worker_record(raw: bytes) -> WorkerRecord | None:
    """Read a record; keys of newer writers are ignored, and what is no record is none."""
    try:
        return _decode(raw)
    except (ValueError, RecursionError):
        return None
