"""A user's value as JSON can say it: bytes, moments and odd keys get a readable form."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

BYTES_KEY = "$base64"


def json_value(value: Any) -> Any:
    """The same value made of what JSON has; bytes become {"$base64": …}."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_key(key): json_value(one) for key, one in items}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return {BYTES_KEY: b64encode(value).decode()}
    return value.isoformat() if isinstance(value, datetime) else value


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
