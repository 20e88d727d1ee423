"""Everything a queue has on the server, taken in one round trip."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from chasquimq.errors import StoreError
from chasquimq.store.net.connection import pack
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.stream_entry import split_member
from support.raw import Raw

# Kinds of keys by what follows the hash tag; True: it must go away by itself.
KINDS = {
    "stream": False, "wake": False, "delayed": False, "dlq": False, "events": False, "dix": False,
    "repeat": False, "repeat:bad": False, "repeat:spec": False,
    "result": True, "outcome": True, "dlid": True, "didx": True, "uniq": True, "token": True,
    "promoter:lock": True, "scheduler:lock": True, "promoter:bell": True, "janitor:turn": True,
    "claim": True, "worker": True,
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """Job ids by place; an entry or member is one occurrence of its job."""

    now_ms: int
    stream: dict[bytes, str]
    pending: dict[bytes, str]
    delayed: list[tuple[str, float]]
    dlq: list[str]
    dlq_reasons: dict[str, str]
    specs: dict[str, float]
    keys: list[str]

    @classmethod
    async def take(cls, raw: Raw) -> Picture:
        time, stream, pending, delayed, dlq, repeat, keys = await _ask(raw)
        members = zip(delayed[::2], delayed[1::2], strict=True)
        prefix = raw.keys.stream.removesuffix("stream")
        dead = [dict(zip(row[1][::2], row[1][1::2], strict=True)) for row in dlq]
        return cls(
            now_ms=int(time[0]) * 1000 + int(time[1]) // 1000,
            stream={row[0]: decode_envelope(row[1][1]).id for row in stream},
            pending={}
            if isinstance(pending, StoreError)
            else {row[0]: row[1].decode() for row in pending},
            delayed=[(_member_id(member), float(score)) for member, score in members],
            dlq=[decode_envelope(fields[b"d"]).id for fields in dead],
            dlq_reasons={
                decode_envelope(fields[b"d"]).id: fields[b"reason"].decode() for fields in dead
            },
            specs={
                key.decode(): float(score)
                for key, score in zip(repeat[::2], repeat[1::2], strict=True)
            },
            keys=[key.decode().removeprefix(prefix) for key in keys],
        )

    @property
    def places(self) -> Counter[str]:
        """How many times each job is there."""
        waiting = [job_id for job_id, _ in self.delayed]
        return Counter([*self.stream.values(), *waiting, *self.dlq])

    def ids_of(self, kind: str) -> set[str]:
        """The job ids that have a key of this kind."""
        head = f"{kind}:"
        return {key.removeprefix(head) for key in self.keys if key.startswith(head)}

    def future_ids(self, now_ms: int) -> set[str]:
        return {job_id for job_id, due_ms in self.delayed if due_ms > now_ms}


def kind_of(key: str) -> str | None:
    """The kind of a key, None for one that is none of ours."""
    found = [kind for kind in KINDS if key == kind or key.startswith(f"{kind}:")]
    return max(found, key=len, default=None)


async def _ask(raw: Raw) -> list:
    keys = raw.keys
    questions = [
        ("TIME",),
        ("XRANGE", keys.stream, "-", "+"),
        ("XPENDING", keys.stream, "default", "-", "+", 10_000),
        ("ZRANGE", keys.delayed, 0, -1, "WITHSCORES"),
        ("XRANGE", keys.dlq, "-", "+"),
        ("ZRANGE", keys.repeat, 0, -1, "WITHSCORES"),
        ("KEYS", keys.stream.removesuffix("stream") + "*"),
    ]
    return await raw.connection.send(b"".join(map(pack, questions)), len(questions))


def _member_id(member: bytes) -> str:
    return decode_envelope(split_member(member)[1]).id
