"""Makes the traceback that the DLQ keeps: frames of the user, and text that a hook may redact."""

from __future__ import annotations

import asyncio
import linecache
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, cast

import msgspec

from chasquimq.model.delivery import Failure, describe, type_name
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from chasquimq.settings import Redact

logger = get_logger(__name__)
WITHHELD = "<withheld: the redact hook failed>"


class Redaction:
    """The hook of one worker; where it fails, no word of the error is logged or stored."""

    def __init__(self, hook: Redact) -> None:
        self._hook = hook
        self._has_warned = False

    def __call__(self, error_type: str, message: str) -> str:
        try:
            redacted = self._hook(error_type, message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's hook may raise anything
            return self._withhold(f"raised {describe(error).error_type}")
        # Callers lie.
        if not isinstance(redacted, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return self._withhold(f"returned {type(redacted).__name__}")
        return redacted

    def _withhold(self, what: str) -> str:
        # Only the kind of error: its words may be the very ones that must not be shown.
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the redact hook must return text, errors are withheld: it %s", what)
        return WITHHELD


CHARS_MAX = 16 * 1024
UNREADABLE = "<no traceback: the exception cannot be formatted>"
# The innermost frames of one error; its errors, with all causes and members of groups.
_FRAMES_MAX = 40
_ERRORS_MAX = 16
_DEPTH_MAX = 8
_SOURCE_CHARS_MAX = 200
_WORDS_CHARS_MAX = 2_048
_SHOWN_REPEATS_MAX = 3
_HEADER = "Traceback (most recent call last):"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n"
_ROOM = Path(__file__).parents[1]
# How a handler came to be called is the same for every job.
_OURS = (
    f"{_ROOM / 'worker'}{os.sep}",
    f"{_ROOM / 'engine'}{os.sep}",
    f"{_ROOM / 'telemetry'}{os.sep}",
    f"{Path(asyncio.__file__).parent}{os.sep}",
)


class TracePart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line or two of a trace; `depth` is how deep in groups.

    A `place` has the line of source as its `more`; an `error` and a `note` have their words. The
    error that was caught is the `top`.
    """

    kind: Literal["place", "error", "top", "note"]
    text: str
    more: str = ""
    depth: int = 0


Trace: TypeAlias = list[TracePart]


def trace_of(error: BaseException) -> Trace:
    """Where the error and those that led to it came from, the oldest first; raises nothing."""
    try:
        for one in (error, error.__cause__):
            remote: Any = None if one is None else vars(one).get("trace")
            if _is_trace(remote):
                return remote
        return list(_Collector().parts(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a user's exception may resist being looked at
        return [TracePart("place", UNREADABLE)]


def _is_trace(found: Any) -> TypeGuard[Trace]:
    # An attribute of this name may be the user's.
    if not isinstance(found, list) or not found:
        return False
    return all(isinstance(part, TracePart) for part in cast("list[object]", found))


def traceback_text(
    trace: Trace, failure: Failure | None = None, redact: Redact | None = None
) -> str:
    """The trace as text, empty where it says no more than the error does.

    With `redact` it has no lines of source, whose literals are words, too; the words of the error
    itself are those of `failure`, and those of others are what the hook makes of them. Of a long
    text the beginning and the end are left, above all the end.
    """
    if len(trace) < 2 and not any(part.kind == "place" for part in trace):
        return ""
    lines = (line for part in trace for line in _lines(part, failure, redact))
    text = _cut("\n".join(lines))
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class _Collector:
    """Collects one trace; each error is met once, whatever its causes lead to."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def parts(self, error: BaseException, depth: int = 0) -> Iterator[TracePart]:
        for one, joined_by in reversed(self._chain(error)):
            yield from _frames(one, depth)
            yield from _words(one, depth, is_top=one is error and not depth)
            if isinstance(one, BaseExceptionGroup) and depth < _DEPTH_MAX:
                members = cast("Sequence[BaseException]", one.exceptions)
                yield from self._members(members, depth)
            if joined_by:
                yield TracePart("place", joined_by, depth=depth)

    def _chain(self, error: BaseException) -> list[tuple[BaseException, str]]:
        """The error and what led to it, the newest first, each with what joins it to a newer one."""
        chain: list[tuple[BaseException, str]] = []
        joined_by, one = "", error
        while one is not None and id(one) not in self._seen and len(self._seen) < _ERRORS_MAX:
            self._seen.add(id(one))
            chain.append((one, joined_by))
            if one.__cause__ is not None:
                joined_by, one = _CAUSE, one.__cause__
            else:
                joined_by, one = _CONTEXT, None if one.__suppress_context__ else one.__context__
        return chain

    def _members(self, errors: Sequence[BaseException], depth: int) -> Iterator[TracePart]:
        for number, one in enumerate(errors, 1):
            if len(self._seen) >= _ERRORS_MAX:
                left = len(errors) - number + 1
                yield TracePart("place", f"and {left} errors more", depth=depth + 1)
                return
            title = f"error {number} of {len(errors)} in the group:"
            yield TracePart("place", title, depth=depth + 1)
            yield from self.parts(one, depth + 1)


def _frames(error: BaseException, depth: int) -> Iterator[TracePart]:
    runs = [_run(list(run)) for _, run in groupby(_steps(error.__traceback__), _site)]
    if not runs:
        return
    yield TracePart("place", _HEADER, depth=depth)
    if len(runs) > _FRAMES_MAX:
        left_out = sum(count for _, count in runs[:-_FRAMES_MAX])
        yield TracePart("place", f"  [{left_out} outer frames left out]", depth=depth)
    for step, count in runs[-_FRAMES_MAX:]:
        yield from [_place(step, depth)] * min(count, _SHOWN_REPEATS_MAX)
        if count > _SHOWN_REPEATS_MAX:
            more = f"  [Previous line repeated {count - _SHOWN_REPEATS_MAX} more times]"
            yield TracePart("place", more, depth=depth)


def _steps(found: TracebackType | None) -> Iterator[TracebackType]:
    """Where the error passed, from the handler on."""
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    while found is not None:
        yield found
        found = found.tb_next


def _site(step: TracebackType) -> tuple[str, int, str]:
    code = step.tb_frame.f_code
    return code.co_filename, step.tb_lineno, code.co_name


def _run(steps: list[TracebackType]) -> tuple[TracebackType, int]:
    return steps[0], len(steps)


def _place(step: TracebackType, depth: int) -> TracePart:
    path, line, function = _site(step)
    source = linecache.getline(path, line, step.tb_frame.f_globals).strip()
    where = f'  File "{path}", line {line}, in {function}'
    return TracePart("place", where, source[:_SOURCE_CHARS_MAX], depth)


def _words(error: BaseException, depth: int, *, is_top: bool) -> Iterator[TracePart]:
    name = _full_name(type(error))
    try:
        message = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a user's __str__ may raise anything
        message = "<exception str() failed>"
    yield TracePart("top" if is_top else "error", name, message, depth)
    notes: Any = getattr(error, "__notes__", ())
    for note in cast("list[Any]", notes) if isinstance(notes, list) else ():
        yield TracePart("note", name, str(note), depth)


def _full_name(kind: type) -> str:
    """The name as the interpreter shows it, with the module."""
    module = vars(kind).get("__module__")
    is_plain = not isinstance(module, str) or module in ("builtins", "__main__")
    return type_name(kind) if is_plain else f"{module}.{type_name(kind)}"


def _lines(part: TracePart, failure: Failure | None, redact: Redact | None) -> Iterator[str]:
    indent = "    " * part.depth
    if part.kind == "place":
        yield indent + part.text
        if part.more and redact is None:
            yield f"{indent}    {part.more}"
        return
    words = part.more
    if redact is not None:
        if part.kind == "top" and failure is not None:
            words = failure.message
        else:
            words = redact(part.text.rpartition(".")[2], words)
    words = words if len(words) <= _WORDS_CHARS_MAX else f"{words[:_WORDS_CHARS_MAX]}…"
    line = words if part.kind == "note" else f"{part.text}: {words}" if words else part.text
    yield indent + line.replace("\n", f"\n{indent}")


def _cut(text: str) -> str:
    if len(text) <= CHARS_MAX:
        return text
    head = text[: text.rfind("\n", 0, CHARS_MAX // 4) + 1]
    tail = text[text.find("\n", len(text) - CHARS_MAX * 3 // 4 + 100) + 1 :]
    return f"{head}[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"
