"""The arguments a server is started with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from chasquimq.errors import SettingsError
from chasquimq.server.address import LOOPBACK_HOST, Address

# One name for every server: whoever starts on a directory meets the same lock.
DATA_LOCK_NAME = "data.lock"

AofMode = Literal["no", "everysec", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """All that a server process needs to know before it starts."""

    binary: Path
    address: Address
    data_dir: Path
    log_path: Path
    lock_path: Path
    aof: AofMode = "everysec"
    extra: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.aof not in get_args(AofMode):
            raise SettingsError("aof", self.aof, '"no", "everysec" or "always"')

    @property
    def command(self) -> list[str]:
        return [str(self.binary), *self._storage(), *self._listening(), *self.extra]

    def _storage(self) -> list[str]:
        fsync = [] if self.aof == "no" else ["--appendfsync", self.aof]
        appendonly = ["--appendonly", "no" if self.aof == "no" else "yes", *fsync]
        # A queue that evicts loses jobs; a full server must say so instead.
        evicting = ["--maxmemory-policy", "noeviction"]
        return ["--dir", str(self.data_dir), "--save", "", *appendonly, *evicting]

    def _listening(self) -> list[str]:
        tcp = ["--bind", LOOPBACK_HOST, "--port", str(self.address.port)]
        if self.address.socket_path is None:
            return tcp
        return [*tcp, "--unixsocket", str(self.address.socket_path), "--unixsocketperm", "700"]
