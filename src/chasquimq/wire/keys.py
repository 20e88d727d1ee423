"""Makes the keys of a queue and of its lanes, and checks names and ids before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from chasquimq.errors import KindRefused, LimitExceeded, SettingsError
from chasquimq.model.delivery import Count, entry_key, lane_and_id

# ── names and ids ─────────────────────────────────────────────────────────────────────────────────

QUEUE_NAME_BYTES_MAX = 128
JOB_NAME_BYTES_MAX = 256
JOB_ID_BYTES_MAX = 256
CONSUMER_ID_BYTES_MAX = 1024
SPEC_KEY_BYTES_MAX = 1024

# Braces would break the cluster hash tag, the others a SCAN pattern or a log line.
_REFUSED_IN_KEYS = re.compile(r"[\x00-\x1f\x7f-\x9f\s{}*?\[\]\\]")


def check_queue_name(name: str) -> str:
    """Return the queue name if it may stand inside a key."""
    return _check_key_part("queue name", name)


def check_group_name(name: str) -> str:
    """Return the consumer group name if it obeys the rule of queue names."""
    return _check_key_part("group name", name)


def check_consumer_id(consumer_id: str) -> str:
    """Return the name of a worker if it is neither blank nor too long."""
    return _check_not_blank("consumer_id", consumer_id, CONSUMER_ID_BYTES_MAX)


def check_job_id(job_id: str) -> str:
    """Return the job id as a plain str if it is neither blank nor too long."""
    return _check_not_blank("job id", job_id, JOB_ID_BYTES_MAX)


def check_job_ids(job_ids: Iterable[str]) -> list[str]:
    """Return many job ids as a list; one bare id would be cut into its letters."""
    many = check_many("job_ids", job_ids, "a list of job ids", hint="for one, pass [job_id]")
    return [check_job_id(job_id) for job_id in many]


def check_many(what: str, given: Iterable[Any], rule: str, *, hint: str) -> Iterable[Any]:
    """Return what holds many values; a text is no list of its letters."""
    # Arguments of users may be of any type.
    is_many = isinstance(given, Iterable)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_many or isinstance(given, str | bytes | bytearray):
        raise KindRefused(what, given, rule, hint=hint)
    return given


def check_job_name(name: str) -> str:
    """Return the job name as a plain str if it is short enough; empty means no name."""
    return _check_text("job name", name, JOB_NAME_BYTES_MAX)


def check_spec_key(key: str) -> str:
    """Return the key of a repeat spec if it is neither blank nor too long."""
    return _check_not_blank("spec key", key, SPEC_KEY_BYTES_MAX)


def _check_key_part(what: str, name: str) -> str:
    text = _check_text(what, name, QUEUE_NAME_BYTES_MAX)
    if not text:
        raise SettingsError(what, text, f"1 to {QUEUE_NAME_BYTES_MAX} bytes of UTF-8")
    if _REFUSED_IN_KEYS.search(text):
        rule = "free of white space, control characters and any of {}*?[]\\"
        raise SettingsError(what, text, rule)
    return text


def _check_not_blank(what: str, name: str, bytes_max: int) -> str:
    text = _check_text(what, name, bytes_max)
    if not text.strip():
        raise SettingsError(what, text, "a string that is not blank")
    return text


def _check_text(what: str, name: str, bytes_max: int) -> str:
    # The common case first: this runs once per added job.
    if type(name) is str and len(name) <= bytes_max and name.isascii():
        return name
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  callers lie
        raise SettingsError(what, name, "a string")
    size = len(_utf8(what, name))
    if size > bytes_max:
        raise LimitExceeded(what, size, f"at most {bytes_max} bytes of UTF-8", hint="shorten it")
    # A str enum member hashes and prints unlike its text, so only the text goes on.
    return str.__str__(name)


def _utf8(what: str, name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(what, name, "valid Unicode without lone surrogates") from error


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


class QueueKeys:
    """The keys of one queue; attributes for the fixed ones, methods for those with an id."""

    __slots__ = (
        "_prefix",
        "bell",
        "delayed",
        "dix",
        "dlq",
        "events",
        "history",
        "janitor_turn",
        "promoter_lock",
        "queue",
        "repeat",
        "repeat_bad",
        "scheduler_lock",
        "stream",
        "wake",
    )

    def __init__(self, queue: str) -> None:
        self.queue = check_queue_name(queue)
        self._prefix = prefix = "{chasqui:" + self.queue + "}:"
        self.stream = prefix + "stream"
        self.delayed = prefix + "delayed"
        self.dlq = prefix + "dlq"
        self.events = prefix + "events"
        self.history = prefix + "history"
        self.repeat = prefix + "repeat"
        self.promoter_lock = prefix + "promoter:lock"
        self.scheduler_lock = prefix + "scheduler:lock"
        self.dix = prefix + "dix"
        self.repeat_bad = prefix + "repeat:bad"
        self.bell = prefix + "promoter:bell"
        self.wake = prefix + "wake"
        self.janitor_turn = prefix + "janitor:turn"

    def claim_gate(self, group: str) -> str:
        """The marker that a worker of the group has claimed expired jobs lately."""
        return f"{self._prefix}claim:{group}"

    def worker(self, consumer: str) -> str:
        """The record of a worker; found by the names of the group's consumers."""
        return f"{self._prefix}worker:{consumer}"

    def result(self, job_id: str) -> str:
        """Where a handler's return value is kept."""
        return f"{self._prefix}result:{job_id}"

    def outcome(self, job_id: str) -> str:
        """Where status and error of a finished job are kept."""
        return f"{self._prefix}outcome:{job_id}"

    def dlid(self, job_id: str) -> str:
        """The marker that a delayed job with this id was added."""
        return f"{self._prefix}dlid:{job_id}"

    def didx(self, job_id: str) -> str:
        """The delayed member of a job added with this id."""
        return f"{self._prefix}didx:{job_id}"

    def uniq(self, job_id: str) -> str:
        """The marker of an id within its unique window."""
        return f"{self._prefix}uniq:{job_id}"

    def token(self, text: str) -> str:
        """The marker that a write with this token has happened."""
        return f"{self._prefix}token:{text}"

    def repeat_spec(self, key: str) -> str:
        """The hash of one repeat spec."""
        return f"{self._prefix}repeat:spec:{key}"


# ── lanes ─────────────────────────────────────────────────────────────────────────────────────────


class _InLane(Protocol):
    @property
    def lane(self) -> int: ...


_Move = TypeVar("_Move", bound=_InLane)
_lane_of = attrgetter("lane")


class Lane(NamedTuple):
    """A stream, and where its jobs wait for their next run."""

    number: int
    stream: str
    delayed: str
    dix: str

    def key(self, entry_id: bytes) -> bytes:
        """What identifies an entry among those of all lanes."""
        return entry_key(self.number, entry_id)


class Lanes:
    """The streams that one consumer reads, the queue's own first; sorts entries by them."""

    def __init__(self, keys: QueueKeys, others: Sequence[Lane] = ()) -> None:
        self.main = Lane(0, keys.stream, keys.delayed, keys.dix)
        self.is_single = not others
        self._by_number = {lane.number: lane for lane in (self.main, *others)}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._by_number.values())

    def __getitem__(self, number: int) -> Lane:
        return self._by_number[number]

    def runs(self, moves: Sequence[_Move]) -> Iterator[tuple[Lane, Sequence[_Move]]]:
        """Cut moves where the lane changes; their order stays."""
        if self.is_single:
            yield self.main, moves
            return
        for number, run in groupby(moves, _lane_of):
            yield self._by_number[number], list(run)

    def runs_of_ids(self, keys: Sequence[bytes]) -> Iterator[tuple[Lane, Sequence[bytes]]]:
        """The entry ids that these keys name, cut where the lane changes; their order stays."""
        for number, run in groupby(map(lane_and_id, keys), itemgetter(0)):
            yield self._by_number[number], [entry_id for _, entry_id in run]

    def ids(self, keys: Iterable[bytes]) -> Iterator[tuple[Lane, Iterable[bytes]]]:
        """The entry ids of each lane that these keys name."""
        if self.is_single:
            yield self.main, keys
            return
        found: dict[int, list[bytes]] = {}
        for number, entry_id in map(lane_and_id, keys):
            found.setdefault(number, []).append(entry_id)
        for number, entry_ids in found.items():
            yield self._by_number[number], entry_ids

    def counts(self, counts: Sequence[Count]) -> Iterator[tuple[Lane, Sequence[Count]]]:
        """The counts of each lane, with entry ids in place of keys."""
        if self.is_single:
            yield self.main, counts
            return
        by_key = dict(counts)
        for lane, entry_ids in self.ids(by_key):
            yield lane, [(one, by_key[lane.key(one)]) for one in entry_ids]
