"""Lists what programs may import: modules with their names, signatures and errors.

The names of classes and functions are told without the module that defines them, so that a module
may move behind the place where programs import its names from.
"""

from __future__ import annotations

import enum
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, ForwardRef, is_typeddict

import click

from chasquimq import errors

# What a program, an example or a page imports; None: the names of its `__all__`.
PUBLIC: dict[str, tuple[str, ...] | None] = {
    "chasquimq": None,
    "chasquimq._native": None,
    "chasquimq.blocking": None,
    "chasquimq.errors": tuple(
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    ),
    "chasquimq.job": ("Job", "current_job"),
    "chasquimq.queue": None,
    "chasquimq.queue_events": ("QueueEvent", "QueueEvents"),
    "chasquimq.repeat": (
        "BackoffSpec", "MissedFiresPolicy", "QuarantinedRepeatable", "RepeatPattern",
        "RepeatableMeta",
    ),
    "chasquimq.server": None,
    "chasquimq.settings": None,
    "chasquimq.spark.queues.enqueue": ("Summary", "enqueue"),
    "chasquimq.spark.queues.source": ("register",),
    "chasquimq.spark.session": ("SessionSettings", "open_session"),
    "chasquimq.telemetry.http": ("MetricsServer",),
    "chasquimq.telemetry.sink": ("Labeled", "QueueLabeled"),
    "chasquimq.worker": None,
    "pyspark_chasqui": None,
    "pyspark_chasqui_events": None,
    "pyspark_chasqui_history": None,
}  # fmt: skip
# They need an extra, so a star import leaves them out.
BESIDE_ALL = {"chasquimq": ("OtelSink", "PrometheusSink")}
MODULE_OF_NAME = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
ADDRESS = re.compile(r"<(\w+(?:\.\w+)*) .*?>")
WIDTH_MAX = 96


def modules() -> Iterator[str]:
    """Every public module, and the names that it gives."""
    for module in PUBLIC:
        yield module
        yield from (f"    {name}" for name in names_of(module))


def signatures() -> Iterator[str]:
    """Every public class and function once, with all that it takes and gives."""
    described: list[object] = []
    for module in PUBLIC:
        for name in names_of(module):
            thing = getattr(import_module(module), name)
            if any(thing is other for other in described) or is_error(thing):
                continue
            described.append(thing)
            yield from ("", f"{module}.{name}", *_description(name, thing))


def error_tree() -> Iterator[str]:
    """Every error with its bases, arguments and documented attributes."""
    for name, kind in inspect.getmembers(errors, is_error):
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        yield f"{name}({bases})"
        if "__init__" in vars(kind):
            yield from _indented(_call(name, kind))
        yield from _indented(_members(kind, own_only=True))


def names_of(module: str) -> list[str]:
    """The public names of a module, sorted."""
    named = PUBLIC[module]
    listed: Iterable[str] = import_module(module).__all__ if named is None else named
    return sorted([*listed, *BESIDE_ALL.get(module, ())])


def is_error(thing: object) -> bool:
    """Whether it belongs to the tree of errors."""
    return inspect.isclass(thing) and issubclass(thing, errors.ChasquiError)


def _description(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        yield from (f"    {one.name} = {one.value!r}" for one in thing)
    elif is_typeddict(thing):
        yield from (f"    {key}: {_kind(kind)}" for key, kind in thing.__annotations__.items())
    elif inspect.isclass(thing):
        yield from _indented(_call(name, thing))
        yield from _indented(_members(thing))
    elif inspect.isroutine(thing):
        yield from _indented(_call(name, thing))
    elif isinstance(thing, click.Command):
        yield "    a command"
    else:
        yield f"    {_plain(str(thing))}"


def _members(kind: type, *, own_only: bool = False) -> Iterator[str]:
    # What a call is given is told once: the fields of a settings class are its arguments.
    given = _parameters(kind)
    for name in sorted(dir(kind)):
        home = next(base for base in kind.__mro__ if name in vars(base))
        is_ours = home.__module__.partition(".")[0] == "chasquimq"
        if name.startswith("_") or name in given or not is_ours:
            continue
        if home is kind or not own_only:
            yield from _member(name, vars(home)[name])


def _parameters(kind: type) -> set[str]:
    try:
        return set(inspect.signature(kind).parameters)
    except ValueError:
        # An error without arguments of its own: what Python's take is written nowhere.
        return set()


def _member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property):
        assert member.fget is not None, f"{name} must be readable"
        yield f"property {name}: {_kind(inspect.signature(member.fget).return_annotation)}"
    elif isinstance(member, staticmethod | classmethod):
        yield from _call(f"{type(member).__name__} {name}", member.__func__)
    elif inspect.isfunction(member):
        yield from _call(name, member)
    elif inspect.isdatadescriptor(member):
        yield f"attribute {name}"
    else:
        yield f"attribute {name} = {_default(member)}"


def _call(name: str, thing: Any) -> Iterator[str]:
    """A call on one line if it fits, else with a line for each argument."""
    opening = f"async {name}(" if inspect.iscoroutinefunction(thing) else f"{name}("
    signature = inspect.signature(thing)
    arguments = list(_arguments(signature))
    returned = signature.return_annotation
    is_told = returned is not signature.empty and returned is not None
    closing = f") -> {_kind(returned)}" if is_told and returned != "None" else ")"
    whole = opening + ", ".join(arguments) + closing
    if len(whole) <= WIDTH_MAX:
        yield whole
        return
    yield opening
    yield from (f"    {argument}," for argument in arguments)
    yield closing


def _arguments(signature: inspect.Signature) -> Iterator[str]:
    has_star = False
    for one in signature.parameters.values():
        if one.name.startswith("_") or one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not has_star:
            yield "*"
        has_star = has_star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        yield _argument(one)


def _argument(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is one.empty else f": {_kind(one.annotation)}"
    default = "" if one.default is one.empty else f" = {_default(one.default)}"
    return f"{stars}{one.name}{kind}{default}"


def _default(value: object) -> str:
    # Its text is the whole environment of whoever freezes the surface.
    if value is os.environ:
        return "os.environ"
    return ADDRESS.sub(r"<\1>", _plain(repr(value)))


def _kind(kind: object) -> str:
    """A type as it was written, whether Python kept its words or made it a class."""
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__
    return kind.__name__ if isinstance(kind, type) else _plain(str(kind))


def _plain(text: str) -> str:
    return MODULE_OF_NAME.sub("", text)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)
