"""Prints the public surface of whichever `chasquimq` this interpreter has, as JSON."""

from __future__ import annotations

import importlib
import inspect
import json
import typing

import chasquimq

MODULES = ("errors", "job", "queue", "queue_events", "repeat", "worker")


async def handler(job: object) -> None: ...


# Some members are there only once the object is made; none of these connects.
INSTANCES = {
    "Queue": lambda: chasquimq.Queue("q"),
    "QueueEvents": lambda: chasquimq.QueueEvents("q"),
    "Worker": lambda: chasquimq.Worker("q", handler),
}


def public() -> dict:
    return {name: describe(name, getattr(chasquimq, name)) for name in sorted(chasquimq.__all__)}


def describe(name: str, value: object) -> dict:
    """How it is called, what it is, and what can be called on it."""
    if not inspect.isclass(value):
        return {"call": parameters(value)} if inspect.isroutine(value) else {}
    if typing.is_typeddict(value):
        return {}
    if issubclass(value, BaseException):
        return {"bases": [base.__name__ for base in value.__mro__ if is_builtin(base)]}
    return {"call": parameters(value), "members": members(INSTANCES.get(name, lambda: value)())}


def members(owner: object) -> dict:
    """The public ones: parameters of what can be called, None for what can be read."""
    return {
        name: parameters(value) if callable(value) else None
        for name, value in ((name, getattr(owner, name)) for name in dir(owner))
        if not name.startswith("_")
    }


def parameters(function: typing.Any) -> list[list]:
    """Name, kind and default of each; null stands for no default."""
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:
        # What a built-in class hands down says nothing.
        return []
    return [
        [one.name, one.kind.name, None if one.default is one.empty else repr(one.default)]
        for one in found
        if one.name != "self"
    ]


def modules() -> dict[str, dict[str, list[str]]]:
    """What each module holds, and which of it is its own."""
    return {name: names_in(f"chasquimq.{name}") for name in MODULES}


def names_in(path: str) -> dict[str, list[str]]:
    try:
        module = importlib.import_module(path)
    except ImportError:
        return {"holds": [], "own": []}
    held = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = [name for name, value in held.items() if is_own(path, name, value)]
    return {"holds": sorted(held), "own": sorted(own)}


def is_own(path: str, name: str, value: object) -> bool:
    is_alias = typing.get_origin(value) is not None and name not in vars(typing)
    return is_alias or getattr(value, "__module__", None) == path


def is_builtin(base: type) -> bool:
    return base.__module__ == "builtins"


if __name__ == "__main__":
    # First, because every import of a module makes it reachable.
    reachable = [name for name in MODULES if hasattr(chasquimq, name)]
    print(json.dumps({"reachable": reachable, "public": public(), "modules": modules()}))
