"""When one signature takes every call that another one takes."""

from __future__ import annotations

from collections.abc import Iterator

BY_NAME_OR_PLACE = "POSITIONAL_OR_KEYWORD"
BY_NAME = "KEYWORD_ONLY"
# What a compiled signature says where a default cannot be written down.
UNTOLD = "Ellipsis"

Parameter = tuple[str, str, str | None]


def differences(what: str, theirs: dict, ours: dict) -> list[str]:
    """One sentence for each call that theirs takes and ours does not, or takes differently."""
    found = [
        f"{what} must be a {base}" for base in theirs.get("bases", []) if base not in ours["bases"]
    ]
    if "call" in theirs:
        found += call_differences(what, theirs["call"], ours["call"])
    for name, parameters in theirs.get("members", {}).items():
        found += _member_differences(f"{what}.{name}", parameters, ours["members"], name)
    return found


def call_differences(what: str, theirs: list, ours: list) -> Iterator[str]:
    """The same for the parameters of one callable."""
    own = {name: (place, kind, default) for place, (name, kind, default) in enumerate(ours)}
    for place, (name, kind, default) in enumerate(theirs):
        if name not in own:
            yield f"{what} must take {name}"
            continue
        own_place, own_kind, own_default = own[name]
        if kind == BY_NAME_OR_PLACE and (own_place, own_kind) != (place, kind):
            yield f"{what} must take {name} in place {place}"
        if kind == BY_NAME and own_kind not in (BY_NAME, BY_NAME_OR_PLACE):
            yield f"{what} must take {name} by name"
        if default not in (None, UNTOLD, own_default):
            yield f"{what} must default {name} to {default}, not to {own_default}"
    known = {name for name, _, _ in theirs}
    for name, kind, default in ours:
        if name not in known and default is None and not kind.startswith("VAR_"):
            yield f"{what} must not demand {name}"


def _member_differences(what: str, theirs: list | None, members: dict, name: str) -> Iterator[str]:
    if name not in members:
        yield f"{what} must be there"
    elif theirs is not None and members[name] is None:
        yield f"{what} must be callable"
    elif theirs is not None:
        yield from call_differences(what, theirs, members[name])
