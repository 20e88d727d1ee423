"""Probes what a server can do natively: by trying, because version texts lie."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from chasquimq.errors import AbilityMissing, ServerOutOfMemory, ServerRefused, StoreError
from chasquimq.model.log import get_logger
from chasquimq.store.net.connection import pack
from chasquimq.store.net.errors import Action, action_for

if TYPE_CHECKING:
    from chasquimq.settings import AbilitySettings
    from chasquimq.store.net.connection import Connection, Reply
    from chasquimq.wire.keys import QueueKeys

logger = get_logger(__name__)
_TROUBLE = (Action.WAIT, Action.REDIAL, Action.REDISCOVER)
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
    _raise_trouble(replies)
    del replies[3:]
    answers = (not _is_error(replies[0]), _is_no_group(replies[1]), _is_known(replies[2]))
    tried = zip(Abilities.__slots__, answers, replies, strict=True)
    return {name: None if _is_forbidden(reply) else answer for name, answer, reply in tried}


def many_set_question(keys: QueueKeys) -> bytes:
    """Asks for MSETEX on a key that must be there and is not, so nothing is written; two replies."""
    scratch = f"{keys.stream}:probe"
    # As above: only a command that is known tells of the wrong node.
    return pack(("MSETEX", 1, scratch, "", "XX", "PX", 1)) + pack(("EXISTS", scratch))


def has_many_set(replies: list[Reply]) -> bool:
    """Whether many keys can be set at once with a time to live, by this user on this server.

    Raises:
        StoreError: the server says nothing about it now.
    """
    _raise_trouble(replies)
    # A server that is out of memory looks at the command and its user first.
    return replies[0] == 0 or isinstance(replies[0], ServerOutOfMemory)


def _choose(name: str, wanted: bool | None, is_native: bool | None) -> bool:
    if wanted and not is_native:
        raise AbilityMissing(
            f"{name} was asked for, but this server lacks the command; "
            "use a newer server, or leave the choice to the probe"
        )
    return bool(is_native) if wanted is None else wanted


def _raise_trouble(replies: list[Reply]) -> None:
    # A server that is loading, or the wrong one, says nothing about what it can do.
    for reply in replies:
        if isinstance(reply, ServerRefused) and action_for(reply) in _TROUBLE:
            raise reply


def _is_error(reply: Reply) -> bool:
    return isinstance(reply, StoreError)


def _is_forbidden(reply: Reply) -> bool:
    return isinstance(reply, ServerRefused) and reply.code == "NOPERM"


def _is_no_group(reply: Reply) -> bool:
    return isinstance(reply, ServerRefused) and reply.code == "NOGROUP"


def _is_known(reply: Reply) -> bool:
    return not _is_error(reply) or "no such key" in str(reply)
