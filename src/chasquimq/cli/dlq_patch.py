"""Changes to the data of dead jobs: `$.to[0].name=Ana`, read once and made in each job."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import click

from chasquimq.errors import EditRefused

_STEP = re.compile(r"\.(?P<key>[^.\[\]=]+)|\[(?P<at>\d+)\]|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\")\]")


class Patch(NamedTuple):
    """A value to put at a path; keys of objects and places in lists lead there."""

    text: str
    path: tuple[str | int, ...]
    value: Any

    def __call__(self, data: Any) -> Any:
        """The data with the value in its place; the data itself stays as it is."""
        if not self.path:
            return self.value
        changed = copy.deepcopy(data)
        holder = changed
        for at, step in enumerate(self.path[:-1]):
            holder = self._step(holder, at, step)
        self._put(holder, self.path[-1])
        return changed

    def _step(self, holder: Any, at: int, step: str | int) -> Any:
        try:
            return holder[step] if _leads(holder, step) else self._refuse(holder, at)
        except (KeyError, IndexError):
            raise EditRefused(f"there is nothing at {_spelled(self.path[: at + 1])}") from None

    def _put(self, holder: Any, last: str | int) -> None:
        if not _leads(holder, last):
            self._refuse(holder, len(self.path) - 1)
        if isinstance(last, int) and last >= len(holder):
            raise EditRefused(f"there is nothing at {_spelled(self.path)}")
        holder[last] = self.value

    def _refuse(self, holder: Any, at: int) -> Any:
        wanted = "a list" if isinstance(self.path[at], int) else "an object"
        where = _spelled(self.path[:at])
        raise EditRefused(f"{where} must be {wanted}, found {type(holder).__name__}")


class PatchType(click.ParamType[Patch]):
    """PATH=VALUE: the value is JSON; what is no JSON is taken as a text."""

    name = "PATH=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Patch:
        if isinstance(value, Patch):
            return value
        text = str(value)
        try:
            path, end = _path_of(text)
            put = _value(text[end + 1 :])
        except (ValueError, RecursionError):
            path, end, put = None, 0, None
        if path is None or text[end : end + 1] != "=":
            self.fail(
                f"{text!r} is no change; write PATH=VALUE, such as $.to=ana@example.org or "
                "$.items[0].price=12",
                param,
                ctx,
            )
        return Patch(text, path, put)


def patched(data: Any, patches: Sequence[Patch]) -> Any:
    """The data with every change made, in their order."""
    for patch in patches:
        data = patch(data)
    return data


def _path_of(text: str) -> tuple[tuple[str | int, ...] | None, int]:
    """The steps of a path, and where it ends; `$` may be left out before a key."""
    if text.startswith("$"):
        body, at = text, 1
    else:
        body, at = f".{text}", 0
    steps: list[str | int] = []
    while found := _STEP.match(body, at):
        steps.append(_step_of(found))
        at = found.end()
    shift = len(body) - len(text)
    has_start = text.startswith("$") or steps
    return (tuple(steps) if has_start else None), at - shift


def _step_of(found: re.Match[str]) -> str | int:
    if found["at"] is not None:
        return int(found["at"])
    return found["key"] if found["key"] is not None else json.loads(found["quoted"])


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON")


def _leads(holder: Any, step: str | int) -> bool:
    return isinstance(holder, list if isinstance(step, int) else dict)


def _spelled(path: Sequence[str | int]) -> str:
    steps = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    return "$" + "".join(cast("Sequence[str]", list(steps)))
