"""How a server is reached, and which of its abilities are used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chasquimq.errors import SettingsError
from chasquimq.settings.rules import at_least, true_or_false

if TYPE_CHECKING:
    from chasquimq.server.finder import ServerLookup

CredentialProvider = Callable[[str], Awaitable[tuple[str | None, str | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach the server; never printed with its password.

    Without `url` the server is looked up when the first connection is dialled; connections that
    share a `lookup` go to the same one.
    """

    url: str | None = field(default=None, repr=False)
    lookup: ServerLookup | None = field(default=None, repr=False, compare=False)
    tls: bool = False
    insecure_tls: bool = False
    credential_provider: CredentialProvider | None = field(default=None, repr=False)
    connect_timeout_ms: int = 5_000
    command_timeout_ms: int = 10_000
    # In a cluster the connection goes to the node that holds this queue; empty: to any master.
    queue: str = ""

    def __post_init__(self) -> None:
        true_or_false("insecure_tls", self.insecure_tls)
        provider = self.credential_provider
        if provider is not None and not callable(provider):
            # What it is instead may be the password.
            found, rule = type(provider).__name__, "an async function of the server's address"
            raise SettingsError("credential_provider", found, rule)
        at_least("connect_timeout_ms", self.connect_timeout_ms, 1)
        at_least("command_timeout_ms", self.command_timeout_ms, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilitySettings:
    """None lets the probe decide; False forces the fallback: one server can be tested both ways."""

    ack_delete: bool | None = None
    claim_on_read: bool | None = None
    idempotent_add: bool | None = None
