"""One short mark for all errors that are the same but for their details."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

_PLACEHOLDERS = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<uuid>"),
    # A quotation mark after a letter is an apostrophe, except in a literal such as b'…'.
    (re.compile(r"(?<!\w)[bru]?'[^']*'(?!\w)|(?<!\w)[bru]?\"[^\"]*\"|`[^`]*`"), "<text>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.\-+@~]+){2,}"), "<path>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "<hex>"),
    # After the hex runs, whose marks are kept on servers; before digits would cut it to pieces.
    (re.compile(r"(?<![^\W_])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![^\W_])", re.IGNORECASE), "<ulid>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)
_MESSAGE_CHARS_MAX = 2_048


def normalise(message: str) -> str:
    """The message with digits, hex runs, UUIDs, ULIDs, quoted text and paths replaced."""
    message = message[:_MESSAGE_CHARS_MAX]
    for pattern, placeholder in _PLACEHOLDERS:
        message = pattern.sub(placeholder, message)
    return " ".join(message.split())


@lru_cache(maxsize=1_024)
def fingerprint(error_type: str, message: str) -> str:
    """Sixteen hex digits: equal for errors of one kind, whatever their details."""
    text = f"{error_type}\0{normalise(message)}".encode(errors="backslashreplace")
    return blake2b(text, digest_size=8).hexdigest()
