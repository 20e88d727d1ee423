"""Traces real runs: which files of the package a reader must open to follow what happens.

A file is to be opened when one of its functions runs that has steps of its own or leads on: it has
more than one statement, or it calls another function of the package. Left out are

- what runs while modules are imported, which is not part of any call,
- what makes, opens and closes objects and connections, with all that it calls: a path uses them,
- accessors that lead nowhere: their names say what they give, where they are used.

A hop is a call from one file into another. Counted are those on the stack at the moment at which
the bytes are handed to the transport, that one included.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from inspect import CO_OPTIMIZED
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

import chasquimq

PACKAGE = Path(chasquimq.__file__).parent
_PREFIX = f"{PACKAGE}/"
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_COMPOUND = (
    ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.Match
)
_DIALLING = "chasqui-dial-"
_SETS_UP = {
    "__init__", "__post_init__", "__aenter__", "__aexit__", "__enter__", "__exit__", "close",
}  # fmt: skip
_LEFT_OUT = {"<module>", *_SETS_UP}


class Function(NamedTuple):
    """A function of the package."""

    file: str
    name: str


class Step(NamedTuple):
    """A call of a function, or a write to a transport; with the bytes that came or left."""

    thread_id: int
    function: Function | None
    caller: Function | None
    data: bytes = b""
    stack: tuple[Function, ...] = ()

    @property
    def is_write(self) -> bool:
        return self.function is None


class CallLog:
    """All calls of functions of the package while it is open, from all threads that begin then."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.dials = 0

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def of_thread(self, thread_id: int, *, since: int = 0) -> list[Step]:
        return [step for step in self.steps[since:] if step.thread_id == thread_id]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (_is_ours(frame) or _is_transport_write(frame)):
            return
        stack = list(_our_frames(frame))
        if any(one.f_code.co_name in _LEFT_OUT for one in stack):
            return
        if _is_dialling():
            self.dials += 1
        elif _is_ours(frame):
            caller = _function(stack[1]) if len(stack) > 1 else None
            self._add(frame, _function(frame), caller)
        else:
            self._add(frame, None, None, tuple(map(_function, stack)))

    def _add(
        self,
        frame: FrameType,
        function: Function | None,
        caller: Function | None,
        stack: tuple[Function, ...] = (),
    ) -> None:
        moves = function is None or function.name.endswith("data_received")
        data = bytes(frame.f_locals["data"]) if moves else b""
        self.steps.append(Step(threading.get_ident(), function, caller, data, stack))


def files_to_open(steps: Iterable[Step]) -> set[str]:
    """The files that a reader opens to follow these steps."""
    steps = list(steps)
    callers = {step.caller for step in steps if step.caller != step.function}
    ran = {step.function for step in steps if step.function is not None}
    return {one.file for one in ran if one in callers or one.name in _with_steps(one.file)}


def hops(write: Step) -> int:
    """The calls from file to file that lead to a write, and that of the transport."""
    return 1 + sum(one.file != other.file for one, other in pairwise(write.stack))


def _is_ours(frame: FrameType) -> bool:
    """Whether it runs a function of the package, and not the body of a class or a module."""
    return bool(frame.f_code.co_flags & CO_OPTIMIZED) and _lies_here(frame)


def _lies_here(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PREFIX)


def _our_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if _lies_here(frame):
            yield frame
        frame = frame.f_back


def _is_transport_write(frame: FrameType) -> bool:
    return frame.f_code.co_name == "write" and "asyncio" in frame.f_code.co_filename


def _is_dialling() -> bool:
    """Whether the task that runs is one of those that open connections."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.get_name().startswith(_DIALLING)


def _function(frame: FrameType) -> Function:
    """The function of a frame; a lambda or a comprehension belongs to the function around it."""
    name = frame.f_code.co_qualname
    while name.endswith(">") and "." in name:
        name = name.rpartition(".<locals>.")[0]
    return Function(frame.f_code.co_filename.removeprefix(_PREFIX), name)


@cache
def _with_steps(file: str) -> frozenset[str]:
    tree = ast.parse((PACKAGE / file).read_text())
    return frozenset(name for name, node in _functions(tree.body, "") if _has_steps(node))


def _functions(
    body: Iterable[ast.stmt], prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, _FUNCTION):
            yield prefix + node.name, node
            yield from _functions(node.body, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _has_steps(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return len(body) > 1 or any(isinstance(one, _COMPOUND) for one in body)
