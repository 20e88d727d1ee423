"""Every key of a queue; all share one hash tag so that scripts stay on one cluster slot."""

from __future__ import annotations

from chasquimq.wire.names import check_queue_name


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
        """The marker that somebody of the group has looked for silent jobs."""
        return f"{self._prefix}claim:{group}"

    def worker(self, consumer: str) -> str:
        """What a worker says of itself; found by the names of the group's consumers."""
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
