"""Says what an error of the server or of its client library means, and what to do about it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl, urlsplit

from chasquimq.errors import (
    ConnectionLost,
    CredentialsRefused,
    ScriptFailed,
    ServerOutOfMemory,
    ServerRefused,
    ServerUnreachable,
    StoreError,
)
from chasquimq.store.net.address import shown_server, tls_file_fault, url_of

if TYPE_CHECKING:
    from chasquimq.server.finder import Found
    from chasquimq.settings import ConnectionSettings

P = ParamSpec("P")
T = TypeVar("T")


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
    # The node has lost the others, which may have made another one the owner.
    "CLUSTERDOWN": Action.REDISCOVER,
    "NOSCRIPT": Action.RELOAD,
    "NOGROUP": Action.REGROUP,
}
_PASSING = (Action.WAIT, Action.REDIAL, Action.REDISCOVER)
# These are worth a wait inside a loop, but a caller of `add` should get them at once.
_FOR_CALLERS = frozenset({"OOM", "MISCONF", "NOREPLICAS"})
_LOGIN = frozenset({"WRONGPASS", "NOAUTH"})
_NO_RIGHT = "NOPERM"
# Before 7.0 an error that ended a script came wrapped in one of the script's own.
_OLD_SCRIPT_ERROR = re.compile(
    r"@user_script:(?: ?\d+:)? -?(?P<said>(?P<code>[A-Z]{2,}) .*)", re.DOTALL
)
# What a server that was made a replica answers to WAIT.
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
    """Which user lacks which right, and the command that grants it."""
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
    """Whether the server denied user and password, or no provider could name them."""
    if isinstance(error, CredentialsRefused):
        return True
    return isinstance(error, ServerRefused) and error.code in _LOGIN


def is_worth_asking_again(reply: object) -> bool:
    """Whether a reply is an error that says nothing about what was asked."""
    return isinstance(reply, ServerRefused) and action_for(reply) in _PASSING


def is_worth_resending(error: StoreError) -> bool:
    """Whether a gated write may be sent again without an error for the caller."""
    if isinstance(error, ServerOutOfMemory):
        return False
    if isinstance(error, ServerRefused) and error.code in _FOR_CALLERS:
        return False
    return action_for(error) not in (Action.RAISE, Action.REGROUP)


def may_have_left(error: StoreError) -> bool:
    """Whether what was asked may have been done all the same."""
    return isinstance(error, ConnectionLost) and error.outcome == "unknown"


# ── errors of the client library ──────────────────────────────────────────────────────────────────

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@contextmanager
def client_errors_as_ours(settings: ConnectionSettings) -> Generator[None]:
    """Turn whatever the client library raises into one of our errors."""
    from redis.exceptions import RedisError as ClientError

    try:
        yield
    except (ClientError, OSError, TimeoutError) as error:
        # Over a unix socket the library wraps the refusal in a broken connection.
        inner = error.__cause__ or error.__context__
        if isinstance(inner, StoreError):
            # It is ours already: what the credential provider came to.
            raise inner from inner.__cause__
        refusal = _refusal(settings, error) or _refusal(settings, inner)
        raise refusal or _unreachable(settings, error) from error


def _refusal(settings: ConnectionSettings, error: BaseException | None) -> StoreError | None:
    """What the server answered instead of a welcome; None where it did not answer."""
    from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

    if isinstance(error, AuthenticationError):
        return _refused(shown_server(settings), error)
    if isinstance(error, NoPermissionError):
        # The library takes the code off its messages.
        return error_from_reply(f"NOPERM {error}")
    if not isinstance(error, ResponseError):
        return None
    is_database = "DB index is out of range" in str(error)
    return _no_database(settings, error) if is_database else error_from_reply(str(error))


def _refused(address: str, error: Exception) -> ServerRefused:
    return ServerRefused(
        f"the server at {address} must accept the credentials, it says: {str(error).rstrip('.')}; "
        "correct user and password in the URL or the credential provider",
        code="WRONGPASS",
    )


def _no_database(settings: ConnectionSettings, error: Exception) -> ServerRefused:
    return ServerRefused(
        f"the server at {shown_server(settings)} must have database {_database(settings)}, it says: "
        f"{str(error).rstrip('.')}; choose a smaller number in the URL, or raise `databases` in the "
        "server's configuration",
        code="ERR",
    )


def _unreachable(settings: ConnectionSettings, error: BaseException) -> ServerUnreachable:
    fault = tls_file_fault(settings)
    cause = _cause(error) if fault is None else " ".join(fault)
    hint = "correct the file or its name" if fault is not None else _hint(settings, error)
    return ServerUnreachable(
        f"a server must answer at {shown_server(settings)}, found none ({cause}); {hint}"
    )


def _hint(settings: ConnectionSettings, error: BaseException) -> str:
    """What to try: it depends on what was dialled, and on what came back."""
    url = url_of(settings)
    if url.startswith("rediss"):
        return _tls_hint(error)
    is_hung_up = "closed" in str(error) or _is_caused_by(error, ConnectionResetError)
    if is_hung_up and not url.startswith("unix"):
        return "it may be stopping, or the port may speak TLS only: try rediss://"
    if settings.lookup is not None:
        return _lookup_hint(settings.lookup.found)
    is_local = url.startswith("unix") or urlsplit(url).hostname in _LOOPBACK
    start = "start one with `chasqui server start`" if is_local else "start it"
    return f"{start}, or correct the URL"


def _lookup_hint(found: Found) -> str:
    if found.variable:
        return f"start it, or correct {found.variable}"
    if found.is_project:
        return "see `chasqui server status`, or set CHASQUI_REDIS_URL"
    return "set CHASQUI_REDIS_URL or pass redis_url, or start one here with `chasqui server start`"


def _tls_hint(error: BaseException) -> str:
    if _is_caused_by(error, ssl.SSLCertVerificationError):
        return (
            "name the file of its authority with ssl_ca_certs= in the URL, or correct the host name"
        )
    if _is_caused_by(error, ssl.SSLError, TimeoutError, ConnectionResetError):
        return "the port may not speak TLS: try redis://, or correct the URL"
    return "start it, or correct the URL"


def _is_caused_by(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    """Whether it is one of these, or the library wrapped one of them."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__ or error.__context__
    return False


def _database(settings: ConnectionSettings) -> str:
    parts = urlsplit(url_of(settings))
    named = dict(parse_qsl(parts.query)).get("db")
    return named or parts.path.strip("/")


def _cause(error: BaseException) -> str:
    silence = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = str(error).strip() or silence
    return text.rstrip(".").splitlines()[0]


def changes_nothing(
    question: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a question that gets no answer say that nothing was done, whatever was sent."""

    @wraps(question)
    async def asked(*args: P.args, **more: P.kwargs) -> T:
        try:
            return await question(*args, **more)
        except ConnectionLost as error:
            error.outcome = "not_done"
            raise

    return asked
