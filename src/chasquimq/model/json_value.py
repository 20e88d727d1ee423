"""Converts values to what JSON can hold, and back: bytes, datetimes and odd keys."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, cast

BYTES_KEY = "$base64"


class ToDict:
    """A dataclass that converts to a dict, which web frameworks can return."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Its fields, made of what JSON has; bytes become {"$base64": …}."""
        own: Any = self
        return {one.name: json_value(getattr(self, one.name)) for one in fields(own)}


class JsonForm:
    """Marks a field that may hold bytes: pydantic, and so FastAPI, gives it as `json_value` does."""

    __slots__ = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        form = {"type": "function-plain", "function": json_value, "when_used": "json"}
        return {**handler(source), "serialization": form}


def json_value(value: Any) -> Any:
    """The same value made of what JSON has; bytes become {"$base64": …}, and answers dicts."""
    if isinstance(value, ToDict):
        return json_value(value.to_dict())
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


def value_of_json(value: Any) -> Any:
    """The value that JSON of `json_value` stands for; {"$base64": …} becomes bytes again."""
    if isinstance(value, list):
        return [value_of_json(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, Any]", value)
    if items.keys() == {BYTES_KEY} and isinstance(items[BYTES_KEY], str):
        return b64decode(items[BYTES_KEY], validate=True)
    return {key: value_of_json(one) for key, one in items.items()}


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
