"""Says what an error reply of the server means, and what to do about it: one table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

from chasquimq.errors import (
    ConnectionLost,
    CredentialsRefused,
    ScriptFailed,
    ServerOutOfMemory,
    ServerRefused,
    StoreError,
)


class Action(Enum):
    """What the caller should do with an error."""

    WAIT = "the server is busy with itself: ask again on the same connection"
    REDIAL = "the connection is of no more use: open a new one"
    REDISCOVER = "another node leads: find it, then open a new connection"
    RELOAD = "the server forgot the script: send its text"
    REGROUP = "the group is gone: create it again"
    RAISE = "asking again will not help"


_ACTIONS: dict[str, Action] = {
    "LOADING": Action.WAIT,
    "BUSY": Action.WAIT,
    # Some keys of the queue are here and some where its slot moves to: this ends with the move.
    "TRYAGAIN": Action.WAIT,
    "ASK": Action.WAIT,
    "NOREPLICAS": Action.WAIT,
    "MISCONF": Action.WAIT,
    "OOM": Action.WAIT,
    "NOAUTH": Action.REDIAL,
    "UNBLOCKED": Action.WAIT,
    "READONLY": Action.REDISCOVER,
    "MASTERDOWN": Action.REDISCOVER,
    "MOVED": Action.REDISCOVER,
    # The node has lost the others, who may have made another one the owner.
    "CLUSTERDOWN": Action.REDISCOVER,
    "NOSCRIPT": Action.RELOAD,
    "NOGROUP": Action.REGROUP,
}
_PASSING = (Action.WAIT, Action.REDIAL, Action.REDISCOVER)
# These are worth a wait inside a loop, but a caller of `add` should hear of them at once.
_TOLD_TO_CALLERS = frozenset({"OOM", "MISCONF", "NOREPLICAS"})
_LOGIN = frozenset({"WRONGPASS", "NOAUTH"})
_NO_RIGHT = "NOPERM"
# Before 7.0 an error that ended a script came wrapped in one of the script's own.
_OLD_SCRIPT_ERROR = re.compile(
    r"@user_script:(?: ?\d+:)? -?(?P<said>(?P<code>[A-Z]{2,}) .*)", re.DOTALL
)
# What the server that was made a replica says to those who wait for copies.
_REPLICA_CANNOT_WAIT = "cannot be used with replica instances"
# A right that is missing inside a script comes under the code of any bug.
_NO_RIGHT_IN_SCRIPT = re.compile("ACL failure in script|The user executing the script can't")
_MOVED_HINT = "this server is one node of a cluster, which a redis+cluster:// URL knows to follow"
_NO_COMMAND = re.compile(
    r"(?:User (?P<user>\S+)|this user) has no permissions to run the '(?P<command>[^']+)' command"
)
_NO_KEY = re.compile(r"permissions to access (?:a key|one of the keys)|can't access at least one")


def error_from_reply(text: str) -> StoreError:
    """Our error for the text of an error reply."""
    text = _as_said_outside_scripts(text)
    code = text.split(" ", 1)[0]
    if code == "OOM" or "OOM command not allowed" in text:
        return ServerOutOfMemory(
            f"the server must have memory for the write, it says: {text.rstrip('.')}; "
            "raise maxmemory, or let the workers drain the queue"
        )
    if code == _NO_RIGHT or _NO_RIGHT_IN_SCRIPT.search(text):
        return ServerRefused(_missing_right(text), code=_NO_RIGHT)
    if "user_script" in text and code == "ERR":
        return ScriptFailed(text)
    if _REPLICA_CANNOT_WAIT in text:
        return ServerRefused(f"READONLY {text}", code="READONLY")
    if code == "MOVED":
        return ServerRefused(f"{text}; {_MOVED_HINT}", code=code)
    return ServerRefused(text, code=code)


def _as_said_outside_scripts(text: str) -> str:
    wrapped = _OLD_SCRIPT_ERROR.search(text) if text.startswith("ERR ") else None
    if wrapped is None or wrapped["code"] == "ERR":
        return text
    return wrapped["said"].strip()


def _missing_right(text: str) -> str:
    """Who lacks what, and the words that grant it."""
    command = _NO_COMMAND.search(text)
    if command is not None:
        user = command["user"]
        shown = command["command"].upper().replace("|", " ")
        return (
            f"{f'the user {user!r}' if user else 'this user'} must be allowed to run {shown} "
            f"and is not ({_NO_RIGHT}); "
            f"grant it with ACL SETUSER {user or '<user>'} +{command['command']}"
        )
    if _NO_KEY.search(text):
        return (
            f"this user must be allowed to use the keys of the queue and is not ({_NO_RIGHT}); "
            "grant them with ACL SETUSER <user> ~{chasqui:<queue>}:*"
        )
    return (
        f"this user must be allowed to do this, the server says: {text.rstrip('.')}; "
        "see ACL WHOAMI and ACL GETUSER"
    )


def action_for(error: StoreError) -> Action:
    """What to do about it; connections that broke are redialled."""
    if isinstance(error, ServerOutOfMemory):
        return Action.WAIT
    if isinstance(error, ServerRefused):
        return _ACTIONS.get(error.code, Action.RAISE)
    return Action.REDIAL if isinstance(error, ConnectionLost) else Action.RAISE


def about(error: StoreError, job_ids: Sequence[str]) -> StoreError:
    """The same error for the caller whose jobs these are; one write may serve many callers."""
    own = type(error).__new__(type(error), *error.args)
    vars(own).update(vars(error))
    own.job_ids = list(job_ids)
    own.__cause__ = error.__cause__
    return own


def without_errors(replies: list[Any]) -> list[Any]:
    """The same replies; the first that is an error is raised."""
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


def is_login_refused(error: StoreError) -> bool:
    """Whether the server denied user and password, or nobody could name them."""
    if isinstance(error, CredentialsRefused):
        return True
    return isinstance(error, ServerRefused) and error.code in _LOGIN


def is_worth_asking_again(reply: object) -> bool:
    """Whether a reply is an error that says nothing about what was asked."""
    return isinstance(reply, ServerRefused) and action_for(reply) in _PASSING


def is_worth_resending(error: StoreError) -> bool:
    """Whether a gated write may be sent again without telling the caller."""
    if isinstance(error, ServerOutOfMemory):
        return False
    if isinstance(error, ServerRefused) and error.code in _TOLD_TO_CALLERS:
        return False
    return action_for(error) not in (Action.RAISE, Action.REGROUP)


def may_have_left(error: StoreError) -> bool:
    """Whether what was asked may have been done all the same."""
    return isinstance(error, ConnectionLost) and error.outcome == "unknown"
