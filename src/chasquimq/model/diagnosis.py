"""Checks the settings and the state of a server; says what was found and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from chasquimq.model.json_value import ToDict

# ── a diagnosis ───────────────────────────────────────────────────────────────────────────────────

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Diagnosis(ToDict):
    """The result of one check: `found` describes it, `remedy` says what to do about a problem."""

    check: str
    level: Level
    found: str
    remedy: str = ""
    queue: str | None = None

    @property
    def is_problem(self) -> bool:
        return self.level in ("warning", "error")


def ok(check: str, found: str) -> Diagnosis:
    return Diagnosis(check, "ok", found)


def note(check: str, found: str) -> Diagnosis:
    """Worth knowing; there is nothing to do."""
    return Diagnosis(check, "note", found)


def warning(check: str, found: str, remedy: str) -> Diagnosis:
    """A problem that will do harm later."""
    return Diagnosis(check, "warning", found, remedy)


def error(check: str, found: str, remedy: str) -> Diagnosis:
    """A problem that does harm now, or at the next restart."""
    return Diagnosis(check, "error", found, remedy)


def size_text(size_bytes: float) -> str:
    """A number of bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


# ── the checks of a server ────────────────────────────────────────────────────────────────────────

VERSION_MIN = (6, 2)
CLOCK_SKEW_MS_MAX = 1_000
MEMORY_SHARE_MAX = 0.8
CLIENTS_SHARE_MAX = 0.8

# Ability, its command, and what stands in for it.
ABILITIES = (
    ("ack_delete", "XACKDEL", "a script acks and deletes"),
    ("claim_on_read", "XREADGROUP … CLAIM", "one claimer per worker asks XPENDING"),
    ("idempotent_add", "XADD … IDMP", "a script remembers a token per write"),
)


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server reports about itself; None where it does not report it.

    A `version` of None: this user may not ask, and most of the others mean nothing. An ability
    of None: this user may not try. `clock_ahead_ms` is how far the server's clock is ahead of
    ours, `rtt_ms` how long one question took. `saves` says whether snapshots to disk are
    configured.
    """

    kind: str
    version: str | None
    role: str
    is_loading: bool
    rtt_ms: float
    clock_ahead_ms: float
    abilities: dict[str, bool | None]
    eviction_policy: str | None
    used_bytes: int
    maxmemory_bytes: int
    system_bytes: int | None
    has_aof: bool
    appendfsync: str | None
    saves: bool | None
    last_aof_write: str | None
    last_save: str | None
    client_count: int
    client_max: int | None


def check_server(facts: ServerFacts) -> list[Diagnosis]:
    """Every check of a server, in the order to read them."""
    if facts.version is None:
        return [_info_refused(facts), *_abilities(facts), _clock(facts)]
    return [
        _version(facts, facts.version),
        *_role(facts),
        *_abilities(facts),
        _eviction(facts),
        _persistence(facts),
        *_last_writes(facts),
        _memory(facts),
        _clock(facts),
        *_clients(facts),
    ]


def _info_refused(facts: ServerFacts) -> Diagnosis:
    return note(
        "server",
        f"it answers in {facts.rtt_ms:.1f} ms; this user may not run INFO, so version, role, "
        "eviction, persistence, memory and connections are not checked",
    )


def _version(facts: ServerFacts, version: str) -> Diagnosis:
    found = f"{facts.kind} {version} answers in {facts.rtt_ms:.1f} ms"
    if _numbers(version) < VERSION_MIN:
        return error("server", found, "use Redis 6.2 or newer, or Valkey")
    return ok("server", found)


def _role(facts: ServerFacts) -> Iterator[Diagnosis]:
    if facts.is_loading:
        yield error("role", "the server is still loading its data", "wait until it has")
    if facts.role not in ("master", "primary"):
        remedy = "give the URL of the primary; nothing can be written here"
        yield error("role", f"this server is a {facts.role}", remedy)


def _abilities(facts: ServerFacts) -> Iterator[Diagnosis]:
    for name, command, fallback in ABILITIES:
        is_native = facts.abilities.get(name)
        if is_native is None:
            yield note(name, f"not known: this user may not try {command} here")
        elif is_native:
            yield ok(name, f"{command} is native")
        else:
            yield note(name, f"no {command} here, so {fallback}")


def _eviction(facts: ServerFacts) -> Diagnosis:
    policy = facts.eviction_policy
    if policy is None:
        return note("eviction policy", "the server does not report it")
    if policy == "noeviction":
        return ok("eviction policy", policy)
    remedy = "CONFIG SET maxmemory-policy noeviction, and write it to the configuration"
    if not facts.maxmemory_bytes:
        found = f"{policy}, harmless only while maxmemory is not set"
        return warning("eviction policy", found, remedy)
    return error("eviction policy", f"{policy}: jobs vanish when memory runs short", remedy)


def _persistence(facts: ServerFacts) -> Diagnosis:
    remedy = "CONFIG SET appendonly yes, and write it to the configuration"
    if facts.has_aof and facts.appendfsync == "no":
        found = "appendonly is on, but appendfsync is no: the system decides when it is safe"
        return warning("persistence", found, "CONFIG SET appendfsync everysec")
    if facts.has_aof:
        return ok("persistence", f"appendonly is on, appendfsync {facts.appendfsync or 'unknown'}")
    if facts.saves is None:
        return note(
            "persistence",
            "appendonly is off; the server does not report whether it saves snapshots",
        )
    if facts.saves:
        found = "snapshots only: a crash loses the jobs since the last one"
        return warning("persistence", found, remedy)
    return error("persistence", "none: a restart loses every job", remedy)


def _last_writes(facts: ServerFacts) -> Iterator[Diagnosis]:
    remedy = "read the server's log; most often its disk is full"
    if facts.has_aof and facts.last_aof_write not in (None, "ok"):
        yield error("persistence", "the last write to the append-only file failed", remedy)
    if facts.saves and facts.last_save not in (None, "ok"):
        yield error("persistence", "the last snapshot failed", remedy)


def _memory(facts: ServerFacts) -> Diagnosis:
    used = size_text(facts.used_bytes)
    limit = facts.maxmemory_bytes or facts.system_bytes
    of = "maxmemory" if facts.maxmemory_bytes else "the machine's memory, maxmemory is not set"
    if not limit:
        return note("memory", f"{used} used, no limit known")
    share = facts.used_bytes / limit
    found = f"{used} used, {share:.0%} of {size_text(limit)} ({of})"
    if share < MEMORY_SHARE_MAX:
        return ok("memory", found)
    return warning("memory", found, "raise maxmemory, or let workers drain and purge the DLQ")


def _clock(facts: ServerFacts) -> Diagnosis:
    ahead_ms = facts.clock_ahead_ms
    if abs(ahead_ms) <= facts.rtt_ms / 2 + 1:
        return ok("clock", "the same here and there")
    found = f"the server is {abs(ahead_ms):,.0f} ms {'ahead of' if ahead_ms > 0 else 'behind'} us"
    if abs(ahead_ms) - facts.rtt_ms / 2 <= CLOCK_SKEW_MS_MAX:
        return ok("clock", found)
    return warning("clock", found, "keep both machines on network time")


def _clients(facts: ServerFacts) -> Iterator[Diagnosis]:
    if facts.client_max and facts.client_count > CLIENTS_SHARE_MAX * facts.client_max:
        found = f"{facts.client_count:,} of {facts.client_max:,} connections are in use"
        yield warning("clients", found, "raise maxclients, or find the program that opens so many")


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
