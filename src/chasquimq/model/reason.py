"""Why a job lies in the DLQ."""

from __future__ import annotations

from enum import StrEnum


class DlqReason(StrEnum):
    """The label in a DLQ entry's `reason` field; the first five are the original's."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    DECODE_FAILED = "decode_failed"
    MALFORMED = "malformed"
    OVERSIZE_PAYLOAD = "oversize_payload"
    UNRECOVERABLE = "unrecoverable"
    CRASH_LOOP = "crash_loop"
    UNKNOWN_NAME = "unknown_name"
    MALFORMED_DELAYED = "malformed_delayed"
    EXPIRED = "expired"
