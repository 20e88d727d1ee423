"""Adds and cancels jobs over one connection, which it makes ready for adds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import uuid4

from chasquimq.errors import ConnectionLost, DurabilityNotMet, StoreError
from chasquimq.model.chunks import slices
from chasquimq.model.job_options import SERVER, Durability
from chasquimq.store.events import DelayEvents
from chasquimq.store.net.abilities import (
    NATIVE_ADD,
    PLAIN_ADD,
    PRODUCER,
    Abilities,
    Role,
    missing_rights,
    needs,
    probe,
    refusal_of,
)
from chasquimq.store.net.connection import Connection, pack
from chasquimq.store.net.errors import about
from chasquimq.store.net.reconnect import Deadline, ReconnectingConnection
from chasquimq.store.net.script import REQUEST_TTL_S, ScriptRequest
from chasquimq.store.producer.durability import Confirmation
from chasquimq.store.producer.sender import AddSender, UnconfirmedJobs
from chasquimq.store.producer.unconfirmed import UnconfirmedBytes
from chasquimq.store.producer.writes import (
    COSTLY_JOBS_PER_WRITE_MAX,
    JOBS_PER_WRITE_MAX,
    AddEncoder,
    AddMark,
    AddWrite,
    Chunk,
    chunks,
    has_own_ids,
    ids_of,
    payload_bytes,
)
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.settings import AbilitySettings, ConnectionSettings, ProducerSettings
    from chasquimq.store.net.connection import Part, Reply

# The server remembers this many ids for each producer; more must never be unconfirmed at once.
_UNCONFIRMED_MAX = 10_000
_GROUP = "default"
_CANCELS_PER_CALL_MAX = 50
_wait_of = attrgetter("wait")


_COMMAND = "command_timeout_ms"


def _limit_of(add_timeout_ms: int) -> str:
    """Which setting limits an add: with 0 it may take as long as a command."""
    return "add_timeout_ms" if add_timeout_ms else _COMMAND


class ProducerStore:
    """Adds and cancels jobs of one queue, in one event loop; each loop has a store of its own."""

    def __init__(
        self,
        queue: str,
        connection: ConnectionSettings,
        settings: ProducerSettings,
        abilities: AbilitySettings,
        durability: Durability = SERVER,
        *,
        producer_id: str | None = None,
    ) -> None:
        self.producer_id = producer_id or str(uuid4())
        self.keys = QueueKeys(queue)
        mark_key = self.keys.token(self.producer_id)
        self.confirmation = Confirmation(durability, mark_key) if durability.waits else None
        self._command_ms = connection.command_timeout_ms
        self.connection = ReconnectingConnection(
            connection, name="chasqui-producer", prepare=self._prepare,
            patience_s=self._command_ms / 1000,
        )  # fmt: skip
        self.unconfirmed_jobs = UnconfirmedJobs(_UNCONFIRMED_MAX)
        self.unconfirmed = UnconfirmedBytes(settings.unconfirmed_max_bytes)
        self.encoder = AddEncoder(self.keys, settings, self.producer_id)
        self._waits = settings.resend and settings.add_timeout_ms > 0
        self.sender = AddSender(
            self.connection, self.encoder, self.confirmation, self._prepared_connection,
            self.unconfirmed_jobs, self.unconfirmed,
            settings.add_timeout_ms or self._command_ms, waits=self._waits,
            setting=_limit_of(settings.add_timeout_ms),
        )  # fmt: skip
        self.queue = queue
        self._settings = settings
        self._wanted = abilities
        self._delay_events: DelayEvents | None = None
        if settings.events_enabled:
            self._delay_events = DelayEvents(queue, settings.events_max_stream_len, self.connection)
        self._preparing = asyncio.Lock()
        self._prepared: Connection | None = None
        # What the user of that connection may not run, of all that producers do.
        self._missing: frozenset[str] = frozenset()
        self._asked: Connection | None = None

    async def abilities(self) -> Abilities:
        """What the server can do, asked once for each connection."""
        await self.connection.connection()
        assert self.encoder.abilities is not None, (
            "a connection probes the server before it is used"
        )
        return self.encoder.abilities

    def deadline(self, timeout_ms: int | None = None) -> Deadline:
        """Until when a call that begins now must be answered; None: as the settings say.

        With 0 it waits for an answer, but not for a server that is away.
        """
        given_ms = self._settings.add_timeout_ms if timeout_ms is None else timeout_ms
        limit_ms = given_ms or self._command_ms
        at_s = asyncio.get_running_loop().time() + limit_ms / 1000
        waits = self._settings.resend and given_ms > 0
        return Deadline(at_s, limit_ms, waits, _limit_of(given_ms))

    async def room(self, deadline: Deadline) -> None:
        """Wait for a turn to encode and add, where too much is unconfirmed.

        Raises:
            ConnectionLost: it did not come in time, and nothing was added.
        """
        try:
            async with asyncio.timeout_at(deadline.at_s):
                await self.unconfirmed.room()
        except TimeoutError:
            raise ConnectionLost(
                f"the server at {self.connection.address} must confirm earlier adds {deadline}, "
                f"{self.unconfirmed.size:,} bytes "
                "of them are unconfirmed; nothing was added: add again, give it longer with "
                "add_timeout_ms, or let more adds start with a larger unconfirmed_max_bytes",
                outcome="not_done",
            ) from self.connection.refusal

    def add(
        self, job: NewJob, unique_ms: int, deadline: Deadline | None = None
    ) -> Awaitable[AddMark]:
        """Add one job; it leaves at once, or with the others of this loop tick."""
        connection = self._prepared
        is_alone = self.encoder.is_capped or job.digest or job.wait is not None
        if is_alone or connection is None or not connection.is_open:
            return self._add_alone(job, unique_ms, deadline or self.deadline())
        if deadline is not None and deadline.waits is not self._waits:
            # What is sent together is sent again together.
            return self._add_alone(job, unique_ms, deadline)
        return self.sender.add(job, connection, deadline)

    def add_many(
        self, jobs: Sequence[NewJob], unique_ms: int, deadline: Deadline | None = None
    ) -> Awaitable[list[AddMark]]:
        """Add jobs in writes of at most a thousand; the marks come in the same order.

        Where nothing is in the way they have left when this returns; the caller can use the time
        until the server has answered. Each write that is confirmed gives the next one as long.
        """
        size = payload_bytes(jobs)
        deadline = deadline or self.deadline()
        connection = None if self.confirmation is not None else self._ready_connection()
        if connection is not None and len(chunks(jobs, size)) == 1:
            write = self._write_ready(jobs, unique_ms)
            if write is not None:
                self.unconfirmed.take(size)
                return self.sender.add_bulk(write, size, deadline, connection)
        return self._add_all(jobs, unique_ms, size, deadline)

    async def cancel(self, job_ids: Sequence[str]) -> list[bool]:
        """Remove delayed jobs; True: that job will never run."""
        marks: list[int] = []
        for some in slices(len(job_ids), _CANCELS_PER_CALL_MAX):
            try:
                marks += await self._cancel_some(job_ids[some])
            except StoreError as error:
                # The caller must learn of every job that may still run.
                raise about(error, job_ids[some.start :]) from error.__cause__
        return [mark == 1 for mark in marks]

    async def _add_alone(self, job: NewJob, unique_ms: int, deadline: Deadline) -> AddMark:
        return (await self._add_all([job], unique_ms, len(job.payload), deadline))[0]

    async def _add_all(
        self, jobs: Sequence[NewJob], unique_ms: int, size: int, deadline: Deadline
    ) -> list[AddMark]:
        self.unconfirmed.take(size)
        try:
            await self._connect(jobs, deadline)
        except BaseException:
            self.unconfirmed.free(size)
            raise
        later = [job for job in jobs if job.wait is not None]
        if not later:
            return await self._add_parts(_cut(jobs, size), unique_ms, deadline)
        ready = [job for job in jobs if job.wait is None]
        later_size = payload_bytes(later)
        later_parts = chunks(later, later_size, COSTLY_JOBS_PER_WRITE_MAX)
        parts = [*_cut(ready, size - later_size), *later_parts]
        marks = await self._add_parts(parts, unique_ms, deadline)
        ready_marks, later_marks = iter(marks[: len(ready)]), iter(marks[len(ready) :])
        return [next(ready_marks if job.wait is None else later_marks) for job in jobs]

    async def _cancel_some(self, job_ids: Sequence[str]) -> list[int]:
        reply = await self._send_cancel(job_ids)
        if not _is_unfinished(reply):
            return reply
        return [await self._cancel_patiently(job_id) for job_id in job_ids]

    async def _cancel_patiently(self, job_id: str) -> int:
        """Look for a job among many names of one due time, in as many calls as that takes."""
        reply = await self._send_cancel([job_id])
        while _is_unfinished(reply):
            reply = await self._send_cancel([job_id], reply[1])
        return reply[0]

    async def _send_cancel(self, job_ids: Sequence[str], *cursor: bytes) -> Reply:
        keys = [self.keys.delayed, self.keys.dix, self.keys.token(secrets.token_hex(12))]
        for job_id in job_ids:
            keys += (self.keys.didx(job_id), self.keys.dlid(job_id), self.keys.uniq(job_id))
        return await self.request("cancel", keys, REQUEST_TTL_S, *job_ids, *cursor)

    async def request(
        self,
        name: str,
        keys: Sequence[str],
        *args: Part,
        deadline: Deadline | None = None,
    ) -> Reply:
        """Run a script that remembers its answer by a token, until the server has answered.

        It takes no longer than an add or one command may, whichever is shorter.
        """
        request = ScriptRequest(name, keys, args, deadline or self._request_deadline())
        return await request.run(
            self.connection, lambda connection: self._permit(connection, lambda: [PRODUCER[name]])
        )

    def _request_deadline(self) -> Deadline:
        usual = self.deadline()
        if usual.limit_ms <= self._command_ms:
            return usual
        at_s = usual.at_s - (usual.limit_ms - self._command_ms) / 1000
        return Deadline(at_s, self._command_ms, usual.waits, _COMMAND)

    async def _add_parts(
        self, parts: Sequence[Chunk], unique_ms: int, deadline: Deadline
    ) -> list[AddMark]:
        """Add what was taken from `unconfirmed`, part by part; each gives its bytes back."""
        marks: list[AddMark] = []
        unmet: list[DurabilityNotMet] = []
        for at, part in enumerate(parts):
            try:
                marks += await self._add_part(part, unique_ms, deadline)
            except DurabilityNotMet as error:
                # These jobs are written; the rest must be too, and then the caller gets all.
                unmet.append(error)
            except BaseException as error:
                rest = parts[at + 1 :]
                self.unconfirmed.free(sum(size for _, size in rest))
                if not isinstance(error, StoreError):
                    raise
                # The caller must learn of every job that is not surely in the queue.
                unsure = [*error.job_ids, *ids_of(*[jobs for jobs, _ in rest])]
                raise about(error, unsure) from error.__cause__
            if len(parts) > 1:
                # The server gets on: a bulk is not too late because it is large.
                deadline = deadline.renewed(asyncio.get_running_loop().time())
        if unmet:
            raise about(unmet[0], [job_id for error in unmet for job_id in error.job_ids])
        return marks

    async def _add_part(self, part: Chunk, unique_ms: int, deadline: Deadline) -> list[AddMark]:
        jobs, size = part
        try:
            write = self.encoder.encode(jobs, unique_ms)
        except BaseException:
            self.unconfirmed.free(size)
            raise
        marks = await self.sender.add_bulk(write, size, deadline, self._ready_connection())
        if self._delay_events is not None:
            self._delay_events.added(jobs, marks)
        return marks

    def _ready_connection(self) -> Connection | None:
        """The open connection, if it is ready for adds."""
        connection = self.connection.current
        return connection if connection is self._prepared else None

    def _write_ready(self, jobs: Sequence[NewJob], unique_ms: int) -> AddWrite | None:
        """One write for all jobs; None: they need several, or what `_connect` looks at."""
        if any(map(_wait_of, jobs)):
            return None
        if not self.encoder.needs_script(jobs):
            return self.encoder.encode_ready(jobs)
        if has_own_ids(jobs) and len(jobs) > COSTLY_JOBS_PER_WRITE_MAX:
            return None
        return self.encoder.encode(jobs, unique_ms)

    @property
    def events_dropped_count(self) -> int:
        """`delayed` events that are not in the events stream."""
        return 0 if self._delay_events is None else self._delay_events.dropped_count

    @property
    def events_unproven_count(self) -> int:
        """`delayed` events whose reply was lost."""
        return 0 if self._delay_events is None else self._delay_events.unproven_count

    async def close(self) -> None:
        """Close the connection; the outcome of what was not confirmed is unknown."""
        if self._delay_events is not None:
            self._delay_events.flush()
        self.sender.close()
        await self.connection.close()

    async def _connect(self, jobs: Sequence[NewJob], deadline: Deadline) -> None:
        """Have a connection that may add these jobs; where there is none, nothing has left."""
        try:
            async with asyncio.timeout_at(deadline.at_s):
                connection = await self.connection.connection(
                    within_s=deadline.left_s, waits=deadline.waits
                )
                await self._permit(connection, lambda: self._roles(jobs))
        except TimeoutError:
            late = self.sender.errors.too_late(jobs, deadline)
            raise late from late.__cause__
        except StoreError as error:
            if deadline.left_s <= 0 and isinstance(error, ConnectionLost):
                late = self.sender.errors.too_late(jobs, deadline)
                raise late from late.__cause__
            raise about(error, ids_of(jobs)) from error.__cause__

    async def _prepared_connection(self, deadline: Deadline) -> Connection:
        """The open connection, to a server that remembers as many ids as a resend may need."""
        connection = await self.connection.connection(
            within_s=deadline.left_s, waits=deadline.waits
        )
        if connection is self._prepared:
            return connection
        async with self._preparing:
            if connection is not self._prepared:
                if self._remembers_natively and connection is not self._asked:
                    await self._ask_rights(connection)
                await self._widen_memory(connection)
                self._prepared = connection
        return connection

    async def _permit(self, connection: Connection, roles: Callable[[], Sequence[Role]]) -> None:
        """Raise which commands the user may not run of all that this act needs.

        Asked when a connection first writes: a user that only looks needs no right to add.
        """
        if connection is not self._asked:
            async with self._preparing:
                if connection is not self._asked:
                    await self._ask_rights(connection)
        if self._missing and any(needs(role) & self._missing for role in roles()):
            # They may have been granted since.
            await self._ask_rights(connection)
            refusal = await refusal_of(connection, self.keys, self._missing, roles())
            if refusal is not None:
                raise refusal

    async def _ask_rights(self, connection: Connection) -> None:
        try:
            roles = (NATIVE_ADD, *PRODUCER.values())
            self._missing = await missing_rights(connection, self.keys, roles)
        except StoreError:
            return  # the act itself meets the same error, and knows what to do about it
        self._asked = connection
        if self.encoder.abilities and "xgroup|create" in self._missing:
            # The memory of ids cannot be widened; a script remembers instead.
            self.encoder.abilities = replace(self.encoder.abilities, idempotent_add=False)

    def _roles(self, jobs: Sequence[NewJob]) -> list[Role]:
        roles = [PRODUCER["schedule"]] if any(map(_wait_of, jobs)) else []
        ready = [job for job in jobs if job.wait is None]
        if self.encoder.needs_script(ready):
            roles.append(PRODUCER["add"])
        elif ready:
            roles.append(self._plain_role())
        return roles

    def _plain_role(self) -> Role:
        if not self._settings.resend:
            return PLAIN_ADD
        return NATIVE_ADD if self.encoder.has_idempotent_add else PRODUCER["add"]

    async def _prepare(self, connection: Connection) -> None:
        self.encoder.abilities = await probe(connection, self.keys, self._wanted)
        if self.confirmation is not None:
            await self.confirmation.probe(connection)

    @property
    def _remembers_natively(self) -> bool:
        return self.encoder.has_idempotent_add and self._settings.resend

    async def _widen_memory(self, connection: Connection) -> None:
        if not self._remembers_natively:
            return
        # The default window of 100 ids would double a resent bulk; only a stream that
        # exists can be widened, and to widen it again changes nothing.
        replies = await connection.send(
            pack(("XGROUP", "CREATE", self.keys.stream, _GROUP, "0", "MKSTREAM"))
            + pack(("XCFGSET", self.keys.stream, "IDMP-MAXSIZE", _UNCONFIRMED_MAX)),
            2,
        )
        made, widened = replies
        if isinstance(widened, StoreError):
            # A stream that could not be made cannot be widened; why is in the first reply.
            raise made if isinstance(made, StoreError) and _is_no_key(widened) else widened


def _cut(jobs: Sequence[NewJob], size: int) -> Sequence[Chunk]:
    """Jobs that are ready now, in slices that the server is done with soon."""
    is_costly = has_own_ids(jobs)
    return chunks(jobs, size, COSTLY_JOBS_PER_WRITE_MAX if is_costly else JOBS_PER_WRITE_MAX)


def _is_no_key(error: StoreError) -> bool:
    return "no such key" in str(error)


def _is_unfinished(reply: Reply) -> bool:
    return reply[0] == b"more"
