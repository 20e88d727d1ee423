"""Asks a server what it can do natively, and what its user may not run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING

from chasquimq.errors import AbilityMissing, ServerOutOfMemory, ServerRefused, StoreError
from chasquimq.model.log import get_logger
from chasquimq.store.net.connection import pack
from chasquimq.store.net.errors import is_worth_asking_again
from chasquimq.store.net.script import needed_text, run
from chasquimq.wire.stream_entry import read_text

if TYPE_CHECKING:
    from chasquimq.settings import AbilitySettings, UpkeepSettings
    from chasquimq.store.net.connection import Connection, Part, Reply
    from chasquimq.wire.keys import QueueKeys

logger = get_logger(__name__)
# ── what the server can do natively ───────────────────────────────────────────────────────────────

_CLAIMING_READ = ("XREADGROUP", "GROUP", "probe", "probe", "COUNT", 1, "CLAIM", 1, "STREAMS")


@dataclass(frozen=True, slots=True)
class Abilities:
    """Each False has a fallback that keeps the same promises; in the order they are tried."""

    ack_delete: bool
    claim_on_read: bool
    idempotent_add: bool


async def probe(connection: Connection, keys: QueueKeys, wanted: AbilitySettings) -> Abilities:
    """What to use; a command that this user may not try is done without."""
    native = await natives(connection, keys)
    found = Abilities(
        ack_delete=_choose("ack_delete", wanted.ack_delete, native["ack_delete"]),
        claim_on_read=_choose("claim_on_read", wanted.claim_on_read, native["claim_on_read"]),
        idempotent_add=_choose("idempotent_add", wanted.idempotent_add, native["idempotent_add"]),
    )
    shown = asdict(found)
    logger.debug("abilities of the server of queue %s: %s", keys.queue, shown, extra=shown)
    return found


async def natives(connection: Connection, keys: QueueKeys) -> dict[str, bool | None]:
    """Try each command on a key that does not exist; nothing is written.

    None: an access list keeps this user from trying.
    """
    scratch = f"{keys.stream}:probe"
    replies = await connection.send(
        pack(("XACKDEL", scratch, "probe", "IDS", 1, "0-1"))
        + pack((*_CLAIMING_READ, scratch, ">"))
        # Comes with idempotent adds, and is answered even by a server that is out of memory.
        + pack(("XCFGSET", scratch, "IDMP-MAXSIZE", 100))
        # A node of a cluster says nothing about whose key it is in a command it does not know.
        + pack(("EXISTS", scratch)),
        4,
    )
    _raise_passing(replies)
    del replies[3:]
    answers = (not _is_error(replies[0]), _is_no_group(replies[1]), _is_known(replies[2]))
    tried = zip(Abilities.__slots__, answers, replies, strict=True)
    return {name: None if _is_forbidden(reply) else answer for name, answer, reply in tried}


def many_set_question(keys: QueueKeys) -> bytes:
    """Asks for MSETEX on a key that must be there and is not, so nothing is written; two replies."""
    scratch = f"{keys.stream}:probe"
    # As above: only a command that is known is refused by the wrong node.
    return pack(("MSETEX", 1, scratch, "", "XX", "PX", 1)) + pack(("EXISTS", scratch))


def has_many_set(replies: list[Reply]) -> bool:
    """Whether many keys can be set at once with a time to live, by this user on this server.

    Raises:
        StoreError: the server says nothing about it now.
    """
    _raise_passing(replies)
    # A server that is out of memory looks at the command and its user first.
    return replies[0] == 0 or isinstance(replies[0], ServerOutOfMemory)


def _choose(name: str, wanted: bool | None, is_native: bool | None) -> bool:
    if wanted and not is_native:
        raise AbilityMissing(
            f"{name} was asked for, but this server lacks the command; "
            "use a newer server, or leave the choice to the probe"
        )
    return bool(is_native) if wanted is None else wanted


def _raise_passing(replies: list[Reply]) -> None:
    # A server that is loading, or the wrong one, says nothing about what it can do.
    for reply in replies:
        if is_worth_asking_again(reply):
            raise reply


def _is_error(reply: Reply) -> bool:
    return isinstance(reply, StoreError)


def _is_forbidden(reply: Reply) -> bool:
    return isinstance(reply, ServerRefused) and reply.code == "NOPERM"


def _is_no_group(reply: Reply) -> bool:
    return isinstance(reply, ServerRefused) and reply.code == "NOGROUP"


def _is_known(reply: Reply) -> bool:
    return not _is_error(reply) or "no such key" in str(reply)


# ── what its user may not run ─────────────────────────────────────────────────────────────────────

_KEY = "<key>"
# Every command that a role may need, in a form that changes nothing on a key that does not exist.
# A command that is new in a role or a script needs a line here; nothing else lists commands.
FORMS: dict[str, tuple[Part, ...]] = {
    "client|id": (),
    "client|unblock": (0,),
    "del": (_KEY,),
    "eval": ("return 0", 0),
    "evalsha": ("0" * 40, 0),
    "exists": (_KEY,),
    "expire": (_KEY, 1),
    "get": (_KEY,),
    "hdel": (_KEY, "f"),
    "hget": (_KEY, "f"),
    "hgetall": (_KEY,),
    "hincrby": (_KEY, "f", "no number"),
    "hlen": (_KEY,),
    "hmget": (_KEY, "f"),
    "hscan": (_KEY, 0),
    "hset": (_KEY, "f", "v", "no value"),
    "memory|usage": (_KEY,),
    "mget": (_KEY,),
    "msetex": (1, _KEY, "", "XX", "PX", 1),
    "pexpire": (_KEY, 1),
    "pttl": (_KEY,),
    "set": (_KEY, "", "XX"),
    "time": (),
    "xack": (_KEY, "g", "0-1"),
    "xackdel": (_KEY, "g", "IDS", 1, "0-1"),
    "xadd": (_KEY, "NOMKSTREAM", "*", "f", "v"),
    "xcfgset": (_KEY, "IDMP-MAXSIZE", 100),
    "xclaim": (_KEY, "g", "c", 0, "0-1"),
    "xdel": (_KEY, "0-1"),
    "xgroup|create": (_KEY, "g", "0"),
    "xgroup|delconsumer": (_KEY, "g", "c"),
    "xgroup|destroy": (_KEY, "g"),
    "xinfo|consumers": (_KEY, "g"),
    "xinfo|groups": (_KEY,),
    "xinfo|stream": (_KEY,),
    "xlen": (_KEY,),
    "xpending": (_KEY, "g", "-", "+", 1),
    "xrange": (_KEY, "-", "+"),
    "xread": ("STREAMS", _KEY, "0"),
    "xreadgroup": ("GROUP", "g", "c", "STREAMS", _KEY, ">"),
    "xrevrange": (_KEY, "+", "-"),
    "xtrim": (_KEY, "MAXLEN", 0),
    "zadd": (_KEY, "XX", 0, "m"),
    "zcard": (_KEY,),
    "zcount": (_KEY, 0, 0),
    "zrange": (_KEY, 0, 0),
    "zrangebyscore": (_KEY, 0, 0),
    "zrem": (_KEY, "m"),
    "zremrangebyrank": (_KEY, 0, 0),
    "zscore": (_KEY, "m"),
}
# The probe of abilities tries these, and does without what the user may not run.
OPTIONAL = frozenset({"msetex", "xackdel", "xcfgset"})
# A worker that may not wake others or be woken by them looks more often, and keeps all promises.
WAKING = frozenset({"blpop", "ltrim", "rpush"})
_WITH_SUBCOMMANDS = frozenset({"CLIENT", "MEMORY", "XGROUP", "XINFO"})
_IN_SCRIPTS = re.compile(r"\b(?:p?call|try)\('([A-Z]+)'(?:, '([A-Z]+)')?")
_GRANTED_BY = re.compile(r"ACL SETUSER (?P<user>\S+) \+")
# Servers before 7.0 do not say which user they refuse.
_UNKNOWN = "<user>"


@dataclass(frozen=True, slots=True)
class Role:
    """What a part of the program needs rights for: the commands it sends and the scripts it runs.

    `keys` are those beside the stream that it cannot do without, each with a command for it.
    """

    name: str
    commands: str = ""
    scripts: str = ""
    keys: str = ""


WORKER = Role(
    "a worker",
    "client|id client|unblock time xpending xreadgroup",
    "ack bury charge claim hand_back join_group reap_consumer renew retry",
    "delayed:zadd dlq:xadd",
)
RESULTS = Role("a worker that keeps results", "exists", "complete")
PROMOTER = Role(
    "promotion",
    "xinfo|consumers xlen",
    "lead promote_due reap_consumer release_lock sweep sweep_index unindex",
    "delayed:zremrangebyrank promoter_lock:set",
)
SCHEDULER = Role(
    "the scheduler",
    "hmget time zrange",
    "fire lead quarantine_spec release_lock",
    "repeat:zadd scheduler_lock:set",
)
# Best effort: what they cannot write is dropped and counted, and no job waits for it.
EVENTS = Role("publishing events", "xadd xtrim", keys="events:xadd")
HISTORY = Role("history", "memory|usage xlen", "record", "history:xadd")
# What a producer does, by the script that does it; each is asked about when it is first done.
PLAIN_ADD = Role("adding jobs", "xadd")
NATIVE_ADD = Role("adding jobs", "xadd xgroup|create")
PRODUCER = {
    "add": Role("adding jobs", scripts="add"),
    "schedule": Role("adding delayed jobs", scripts="schedule"),
    "cancel": Role("cancelling delayed jobs", scripts="cancel"),
    "cancel_members": Role(
        "cancelling delayed jobs by a filter", "zrangebyscore", "cancel_members"
    ),
    "drain": Role("draining a queue", "xrange xrevrange", "drain"),
    "import_dead": Role("importing dead jobs", scripts="import_dead"),
    "upsert_repeatable": Role("planning repeatable jobs", scripts="upsert_repeatable"),
    "remove_repeatable": Role("removing repeatable jobs", scripts="remove_repeatable"),
    "replay": Role("replaying dead jobs", "time xrange xrevrange", "replay"),
    "purge": Role("purging dead jobs", "time xrange xrevrange", "purge"),
}


@cache
def needs(role: Role) -> frozenset[str]:
    """The commands of a role, as access lists name them; those that wake others may be missing."""
    names = role.scripts.split()
    in_scripts = [command for name in names for command in commands_of(needed_text(name))]
    callers = ("eval", "evalsha") if names else ()
    return frozenset((*role.commands.split(), *in_scripts, *callers)) - OPTIONAL - WAKING


def commands_of(text: str) -> set[str]:
    """The commands that the text of a script runs."""
    return {
        f"{command}|{word}".lower() if command in _WITH_SUBCOMMANDS else command.lower()
        for command, word in _IN_SCRIPTS.findall(text)
    }


async def missing_rights(
    connection: Connection, keys: QueueKeys, roles: Iterable[Role]
) -> frozenset[str]:
    """What of these roles the user may not do; one round trip, nothing is run.

    Commands by name, and keys as the roles name them: with a command that is refused there.
    """
    roles = tuple(roles)
    commands = sorted(frozenset[str]().union(*map(needs, roles)))
    fenced = sorted({key for role in roles for key in role.keys.split()})
    forms = [_encode(command, keys.stream) for command in commands]
    forms += [_encode_on(key, keys) for key in fenced]
    args = [part for form in forms for part in _counted(form)]
    try:
        places: list[int] | None = await run(connection, "missing_rights", [keys.stream], *args)
    except ServerRefused as error:
        if error.code != "NOPERM":
            raise
        places = None
    if places is None:
        return frozenset(await _tried(connection, keys, commands))
    wanted = [*commands, *fenced]
    return frozenset(wanted[place - 1] for place in places)


async def demand(
    connection: Connection, keys: QueueKeys, roles: Sequence[Role], wished: Sequence[Role] = ()
) -> None:
    """Raise what the user may not run of all that these roles need, in one error.

    What only the wished ones need is logged.
    """
    missing = await missing_rights(connection, keys, (*roles, *wished))
    if not missing:
        return
    refusal = await refusal_of(connection, keys, missing, roles)
    if refusal is not None:
        raise refusal
    refusal = await refusal_of(connection, keys, missing, wished)
    if refusal is not None:
        logger.warning("events or history of queue %s will be incomplete: %s", keys.queue, refusal)


async def refusal_of(
    connection: Connection, keys: QueueKeys, missing: frozenset[str], roles: Sequence[Role]
) -> ServerRefused | None:
    """The error for those of the missing commands that these roles need.

    They are tried, which gives the name of the user and whether commands or keys are missing.
    """
    lacking = [role for role in roles if needs(role) & missing]
    if not lacking:
        fenced = [role for role in roles if not missing.isdisjoint(role.keys.split())]
        return await _fenced_off(connection, keys, fenced) if fenced else None
    wanted = sorted(frozenset[str]().union(*map(needs, lacking)) & missing)
    found = await _tried(connection, keys, wanted)
    if not found:
        return None
    refusal = _commands_refused(found, _purpose(lacking))
    return refusal or await _fenced_off(connection, keys, lacking)


def upkeep_roles(settings: UpkeepSettings) -> list[Role]:
    """Those whose loops are switched on."""
    roles = [PROMOTER] if settings.delayed_enabled else []
    return [*roles, SCHEDULER] if settings.run_scheduler else roles


async def _tried(
    connection: Connection, keys: QueueKeys, commands: list[str]
) -> dict[str, ServerRefused]:
    """The commands that are refused when they are sent, in a form that changes nothing."""
    scratch = f"{keys.stream}:probe"
    request = b"".join(pack(_encode(command, scratch)) for command in commands)
    replies: list[Reply] = await connection.send(request, len(commands))
    return {
        command: reply
        for command, reply in zip(commands, replies, strict=True)
        if isinstance(reply, ServerRefused) and reply.code == "NOPERM"
    }


def _encode(command: str, key: str) -> tuple[Part, ...]:
    parts = [key if part == _KEY else part for part in FORMS[command]]
    return (*command.upper().split("|"), *parts)


def _encode_on(key: str, keys: QueueKeys) -> tuple[Part, ...]:
    name, _, command = key.partition(":")
    return _encode(command, getattr(keys, name))


def _counted(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return (len(parts), *parts)


async def _user(connection: Connection) -> str | None:
    """The name of the user; newer servers name it in the refusal, where it may not be asked for."""
    (reply,) = await connection.send(pack(("ACL", "WHOAMI")))
    if not isinstance(reply, ServerRefused):
        return read_text(reply)
    return _granted_to(reply)


def _granted_to(error: ServerRefused) -> str | None:
    match = _GRANTED_BY.search(str(error))
    return match["user"] if match and match["user"] != _UNKNOWN else None


def _commands_refused(found: dict[str, ServerRefused], purpose: str) -> ServerRefused | None:
    """One sentence for all commands; None where only a fence around the keys is in the way."""
    commands = [name for name, error in found.items() if _GRANTED_BY.search(str(error))]
    if len(commands) <= 1:
        return found[commands[0]] if commands else None
    user = _granted_to(found[commands[0]])
    named = [name.upper().replace("|", " ") for name in commands]
    return _refused(
        user, f"run {_listed(named)}", purpose, " ".join(f"+{name}" for name in commands)
    )


async def _fenced_off(
    connection: Connection, keys: QueueKeys, roles: Sequence[Role]
) -> ServerRefused:
    """The user may not use all keys; to try a command on a key in use could change it."""
    pattern = f"~{keys.stream.removesuffix('stream')}*"
    act = f"use the keys of queue {keys.queue!r}"
    return _refused(await _user(connection), act, _purpose(roles), pattern)


def _refused(user: str | None, act: str, purpose: str, grants: str) -> ServerRefused:
    named = f"the user {user!r}" if user else "this user"
    return ServerRefused(
        f"{named} must be allowed to {act} and is not (NOPERM), which {purpose}; "
        f"grant them with ACL SETUSER {user or _UNKNOWN} {grants}",
        code="NOPERM",
    )


def _purpose(roles: Sequence[Role]) -> str:
    verb = "needs" if len(roles) == 1 else "need"
    return f"{_listed([role.name for role in roles])} {verb}"


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
