"""Adds jobs: in one write where possible, sent again in a form that a server recognises."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import uuid4

from chasquimq.errors import ConnectionLost, DurabilityNotMet, ServerUnreachable, StoreError
from chasquimq.model.job_options import SERVER, Durability
from chasquimq.store.events import DelayEvents
from chasquimq.store.net import script
from chasquimq.store.net.abilities import Abilities, probe
from chasquimq.store.net.connection import Connection, pack
from chasquimq.store.net.errors import about, is_worth_resending
from chasquimq.store.net.reconnect import Link, pause
from chasquimq.store.net.rights import (
    NATIVE_ADD,
    PLAIN_ADD,
    PRODUCER,
    Role,
    missing_rights,
    needs,
    refusal_of,
)
from chasquimq.store.producer.batcher import Outbox
from chasquimq.store.producer.sender import AddSender, Confirmation, ids_of, left_s, may_have_left
from chasquimq.store.producer.unconfirmed import Deadlines, UnconfirmedBytes, Window
from chasquimq.store.producer.writes import (
    COSTLY_JOBS_PER_WRITE_MAX,
    JOBS_PER_WRITE_MAX,
    AddDeadline,
    AddMark,
    AddWrite,
    Chunk,
    DelayWrite,
    PendingWrite,
    PlainWrite,
    ScriptWrite,
    SentWrite,
    chunks,
    payload_bytes,
    send_pieces,
)
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.new_job import NewJob
from chasquimq.wire.stream_entry import XaddTemplate

if TYPE_CHECKING:
    from chasquimq.settings import AbilitySettings, ConnectionSettings, ProducerSettings
    from chasquimq.store.net.connection import Part, Reply

# The server remembers this many ids for each producer; more must never be unconfirmed at once.
_UNCONFIRMED_MAX = 10_000
_GROUP = "default"
# How long a request's answer is remembered for a resend.
_REQUEST_TTL_S = 60
_CANCELS_PER_CALL_MAX = 50
# Only ids of callers have a window.
_UNUSED_MS = 1
_wait_of, _digest_of = attrgetter("wait"), attrgetter("digest")


class ProducerStore:
    """The adding side of one queue, in one event loop; a caller in another has its own."""

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
        self.link = Link(
            connection, name="chasqui-producer", prepare=self._prepare,
            patience_s=self._command_ms / 1000,
        )  # fmt: skip
        self.window = Window(_UNCONFIRMED_MAX)
        self.unconfirmed = UnconfirmedBytes(settings.unconfirmed_max_bytes)
        self.deadlines = Deadlines()
        self.sender = AddSender(
            queue, settings, self.link, self.confirmation, self._connection, self._fit
        )
        self.queue = queue
        self._settings = settings
        # Under a cap each job is judged alone, so that one too many refuses only itself.
        self._is_capped = settings.max_stream_len is not None
        self._wanted = abilities
        self._abilities: Abilities | None = None
        self._plain = XaddTemplate(self.keys.stream, producer_id=None)
        self._gated = XaddTemplate(self.keys.stream, producer_id=self.producer_id)
        self._waits = settings.resend and settings.add_timeout_ms > 0
        self._outbox = Outbox(self, settings.add_timeout_ms or self._command_ms, waits=self._waits)
        self._delay_events: DelayEvents | None = None
        if settings.events_enabled:
            self._delay_events = DelayEvents(queue, settings.events_max_stream_len, self.link)
        self._preparing = asyncio.Lock()
        self._prepared: Connection | None = None
        # What the user of that connection may not run, of all that producers do.
        self._missing: frozenset[str] = frozenset()
        self._asked: Connection | None = None

    async def abilities(self) -> Abilities:
        """What the server can do, asked once for each connection."""
        await self.link.connection()
        assert self._abilities is not None, "a connection probes the server before it is used"
        return self._abilities

    def deadline(self, timeout_ms: int | None = None) -> AddDeadline:
        """Until when a call that begins now must be answered; None: as the settings say.

        With 0 it waits for an answer, but not for a server that is away.
        """
        given_ms = self._settings.add_timeout_ms if timeout_ms is None else timeout_ms
        limit_ms = given_ms or self._command_ms
        at_s = asyncio.get_running_loop().time() + limit_ms / 1000
        return AddDeadline(at_s, limit_ms, self._settings.resend and given_ms > 0)

    async def room(self, deadline: AddDeadline) -> None:
        """Wait for a turn to encode and add, where too much is unconfirmed.

        Raises:
            ConnectionLost: it did not come in time, and nothing was added.
        """
        try:
            async with asyncio.timeout_at(deadline.at_s):
                await self.unconfirmed.room()
        except TimeoutError:
            raise ConnectionLost(
                f"the server at {self.link.address} must confirm earlier adds within "
                f"{deadline.limit_ms / 1000:g} s (add_timeout_ms), {self.unconfirmed.size:,} bytes "
                "of them are unconfirmed; nothing was added: add again, give it longer with "
                "add_timeout_ms, or let more adds start with a larger unconfirmed_max_bytes",
                outcome="not_done",
            ) from self.link.refusal

    def add(
        self, job: NewJob, unique_ms: int, deadline: AddDeadline | None = None
    ) -> Awaitable[AddMark]:
        """Add one job; it leaves at once, or with the others of this loop tick."""
        connection = self._prepared
        is_alone = self._is_capped or job.digest or job.wait is not None
        if is_alone or connection is None or not connection.is_open:
            return self._add_alone(job, unique_ms, deadline or self.deadline())
        if deadline is not None and deadline.waits is not self._waits:
            # What is sent together is sent again together.
            return self._add_alone(job, unique_ms, deadline)
        return self._outbox.put(job, connection, deadline)

    def add_many(
        self, jobs: Sequence[NewJob], unique_ms: int, deadline: AddDeadline | None = None
    ) -> Awaitable[list[AddMark]]:
        """Add jobs in writes of at most a thousand; the marks come in the same order.

        Where nothing is in the way they have left when this returns; the caller can use the time
        until the server has answered. Each write that is confirmed gives the next one as long.
        """
        size = payload_bytes(jobs)
        parts = chunks(jobs, size)
        deadline = deadline or self.deadline()
        sent = self._send_at_once(parts, unique_ms, deadline)
        if sent is None:
            return self._add_all(jobs, unique_ms, size, deadline)
        self.unconfirmed.take(size)
        return self._write_all(parts, unique_ms, deadline, sent)

    async def cancel(self, job_ids: Sequence[str]) -> list[bool]:
        """Remove delayed jobs; True: that job will never run."""
        marks: list[int] = []
        for at in range(0, len(job_ids), _CANCELS_PER_CALL_MAX):
            try:
                marks += await self._cancel_some(job_ids[at : at + _CANCELS_PER_CALL_MAX])
            except StoreError as error:
                # Who catches it must learn of every job that may still run.
                raise about(error, job_ids[at:]) from error.__cause__
        return [mark == 1 for mark in marks]

    async def _add_alone(self, job: NewJob, unique_ms: int, deadline: AddDeadline) -> AddMark:
        return (await self._add_all([job], unique_ms, len(job.payload), deadline))[0]

    async def _add_all(
        self, jobs: Sequence[NewJob], unique_ms: int, size: int, deadline: AddDeadline
    ) -> list[AddMark]:
        self.unconfirmed.take(size)
        try:
            await self._connect(jobs, deadline)
        except BaseException:
            self.unconfirmed.free(size)
            raise
        later = [job for job in jobs if job.wait is not None]
        if not later:
            return await self._write_all(_cut(jobs, size), unique_ms, deadline)
        ready = [job for job in jobs if job.wait is None]
        later_size = payload_bytes(later)
        later_parts = chunks(later, later_size, COSTLY_JOBS_PER_WRITE_MAX)
        parts = [*_cut(ready, size - later_size), *later_parts]
        marks = await self._write_all(parts, unique_ms, deadline)
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
        return await self.request("cancel", keys, _REQUEST_TTL_S, *job_ids, *cursor)

    async def request(
        self,
        name: str,
        keys: Sequence[str],
        *args: Part,
        deadline: AddDeadline | None = None,
    ) -> Reply:
        """Run a script that remembers its answer by a token, until the server has answered.

        It takes no longer than an add or one command may, whichever is shorter.
        """
        act = _Act(name, keys, args, deadline or self._request_deadline())
        try:
            async with asyncio.timeout_at(act.deadline.at_s):
                return await self._run_until_answered(act)
        except TimeoutError:
            raise self._unanswered(act) from (act.trouble or self.link.refusal)

    def _request_deadline(self) -> AddDeadline:
        usual = self.deadline()
        if usual.limit_ms <= self._command_ms:
            return usual
        at_s = usual.at_s - (usual.limit_ms - self._command_ms) / 1000
        return AddDeadline(at_s, self._command_ms, usual.waits)

    async def _run_until_answered(self, act: _Act) -> Reply:
        deadline = act.deadline
        while True:
            try:
                connection = await self.link.connection(
                    within_s=left_s(deadline), waits=deadline.waits
                )
                await self._permit(connection, lambda: [PRODUCER[act.name]])
                return await act.run(connection)
            except StoreError as error:
                # Once it may have been done, no later trouble can say that it was not.
                trouble = act.trouble if act.may_be_done and act.trouble else error
                act.trouble = trouble
                is_over = left_s(deadline) <= 0 or not deadline.waits
                if is_over or not is_worth_resending(error) or self.link.is_closed:
                    raise self._ended(act, trouble) from trouble.__cause__
                self.link.heed(error)
                await pause(error)

    def _ended(self, act: _Act, trouble: StoreError) -> StoreError:
        if not isinstance(trouble, ConnectionLost) or isinstance(trouble, ServerUnreachable):
            return trouble
        outcome = "unknown" if act.may_be_done else "not_done"
        return ConnectionLost(str(trouble), job_ids=trouble.job_ids, outcome=outcome)

    def _unanswered(self, act: _Act) -> ConnectionLost:
        outcome, hint = "not_done", "nothing was done: ask again when it is back"
        if act.may_be_done:
            outcome, hint = "unknown", "it may be done or not: look before you ask again"
        return ConnectionLost(
            f"the server at {self.link.address} must answer within "
            f"{act.deadline.limit_ms / 1000:g} s and did not; {hint}",
            outcome=outcome,
        )

    def _send_at_once(
        self, parts: Sequence[Chunk], unique_ms: int, deadline: AddDeadline
    ) -> SentWrite | None:
        connection = self.link.current
        if connection is None or connection is not self._prepared or self.confirmation is not None:
            return None
        if len(parts) != 1 or any(map(_wait_of, parts[0][0])):
            return None
        jobs, _ = parts[0]
        has_ids = any(map(_digest_of, jobs))
        if has_ids and len(jobs) > COSTLY_JOBS_PER_WRITE_MAX:
            return None
        is_scripted = has_ids or self._is_capped
        write = self.spell(jobs, unique_ms) if is_scripted else self.spell_ready(jobs)
        if not self.window.try_enter(len(jobs)):
            return None
        try:
            write.may_be_done = True
            answers = send_pieces(connection, write.pieces())
            return SentWrite(write, deadline, answers)
        except BaseException:
            self.window.leave(len(jobs))
            raise

    async def _write_all(
        self,
        parts: Sequence[Chunk],
        unique_ms: int,
        deadline: AddDeadline,
        sent: SentWrite | None = None,
    ) -> list[AddMark]:
        """Write what was taken from `unconfirmed`, and give it back part by part."""
        marks: list[AddMark] = []
        unmet: list[DurabilityNotMet] = []
        for at, (jobs, size) in enumerate(parts):
            try:
                marks += await self._write(jobs, size, unique_ms, deadline, sent)
            except DurabilityNotMet as error:
                # These jobs are written; the rest must be too, and then the caller hears of all.
                unmet.append(error)
            except BaseException as error:
                rest = parts[at + 1 :]
                self.unconfirmed.free(sum(size for _, size in rest))
                if not isinstance(error, StoreError):
                    raise
                # Who catches it must learn of every job that is not surely in the queue.
                failed = error.job_ids or ids_of(jobs)
                unsure = [*failed, *ids_of(*[jobs for jobs, _ in rest])]
                raise about(error, unsure) from error.__cause__
            if len(parts) > 1:
                # The server gets on: a bulk is not too late because it is large.
                deadline = deadline.renewed(asyncio.get_running_loop().time())
        if unmet:
            raise about(unmet[0], [job_id for error in unmet for job_id in error.job_ids])
        return marks

    async def _write(
        self,
        jobs: Sequence[NewJob],
        size: int,
        unique_ms: int,
        deadline: AddDeadline,
        sent: SentWrite | None,
    ) -> list[AddMark]:
        place = _Place(self, jobs, size, sent)
        try:
            marks = None if sent is None else await self._heard(sent)
            if marks is None:
                async with asyncio.timeout_at(deadline.at_s):
                    marks = await self._confirmed(jobs, unique_ms, deadline, place)
        except TimeoutError:
            place.leave_when_answered()
            late = self.sender.too_late(jobs, deadline.limit_ms, place.pending)
            raise late from late.__cause__
        except asyncio.CancelledError:
            place.leave_when_answered()
            raise
        except BaseException:
            place.leave()
            raise
        place.leave()
        if self._delay_events is not None:
            self._delay_events.added(jobs, marks)
        return marks

    async def _heard(self, sent: SentWrite) -> list[AddMark] | None:
        # A timer of its own would cost each bulk more than all that is shared here.
        self.deadlines.watch(sent)
        try:
            return await self.sender.hear(sent)
        finally:
            self.deadlines.forget(sent)

    async def _confirmed(
        self, jobs: Sequence[NewJob], unique_ms: int, deadline: AddDeadline, place: _Place
    ) -> list[AddMark]:
        if place.pending is None:
            await self.window.enter(len(jobs))
            place.entered_count = len(jobs)
            place.pending = PendingWrite(self.spell(jobs, unique_ms), deadline)
        return await self.sender.confirm(place.pending)

    def spell(self, jobs: Sequence[NewJob], unique_ms: int) -> AddWrite:
        """The cheapest spelling that keeps the promises these jobs ask for."""
        if jobs[0].wait is not None:
            return DelayWrite(jobs, self.keys, self._settings, unique_ms)
        if self._needs_script(jobs):
            return ScriptWrite(jobs, self.keys, self._settings, unique_ms)
        return self.spell_ready(jobs)

    def _needs_script(self, jobs: Sequence[NewJob]) -> bool:
        return self._is_capped or any(map(_digest_of, jobs))

    def spell_ready(self, jobs: Sequence[NewJob]) -> AddWrite:
        """The same for jobs that are ready now, under fresh ids and no cap."""
        assert self._abilities is not None, "a connection probes the server before it is used"
        if not self._settings.resend:
            return PlainWrite(jobs, self._plain)
        if self._abilities.idempotent_add:
            return PlainWrite(jobs, self._gated)
        return ScriptWrite(jobs, self.keys, self._settings, _UNUSED_MS)

    def _fit(self, pending: PendingWrite) -> None:
        """Bring a write into the form in which it may leave now.

        That is without jobs whose callers heard that they are not added, and for the server that
        answers now, which may be of another kind.

        Raises:
            ConnectionLost: jobs may be added already, and this server would not recognise them.
        """
        assert self._abilities is not None, "a connection probes the server before it is used"
        if not pending.write.may_be_done:
            pending.leave_out_gone(self.spell_ready)
        write = pending.write
        if not self._settings.resend or write.jobs[0].wait is not None:
            return
        by_server, is_plain = self._abilities.idempotent_add, isinstance(write, PlainWrite)
        if is_plain is by_server or self._needs_script(write.jobs):
            return
        if not write.may_be_done:
            pending.write = self.spell_ready(write.jobs)
        elif is_plain:
            raise _not_recognised(write.jobs)
        # Every server knows scripts, and one with the same jobs has the token of this write too.

    @property
    def events_dropped_count(self) -> int:
        """`delayed` events that are not in the events stream."""
        return 0 if self._delay_events is None else self._delay_events.dropped_count

    @property
    def events_unproven_count(self) -> int:
        """`delayed` events whose reply was lost."""
        return 0 if self._delay_events is None else self._delay_events.unproven_count

    async def close(self) -> None:
        """Close the connection; what was not confirmed hears that its outcome is unknown."""
        if self._delay_events is not None:
            self._delay_events.flush()
        self.deadlines.close()
        await self.link.close()

    async def _connect(self, jobs: Sequence[NewJob], deadline: AddDeadline) -> None:
        """Have a connection that may add these jobs; where there is none, nothing has left."""
        try:
            async with asyncio.timeout_at(deadline.at_s):
                connection = await self.link.connection(
                    within_s=left_s(deadline), waits=deadline.waits
                )
                await self._permit(connection, lambda: self._roles(jobs))
        except TimeoutError:
            late = self.sender.too_late(jobs, deadline.limit_ms)
            raise late from late.__cause__
        except StoreError as error:
            if left_s(deadline) <= 0 and isinstance(error, ConnectionLost):
                late = self.sender.too_late(jobs, deadline.limit_ms)
                raise late from late.__cause__
            raise about(error, ids_of(jobs)) from error.__cause__

    async def _connection(self, deadline: AddDeadline) -> Connection:
        """The open connection, to a server that remembers as many ids as a resend may need."""
        connection = await self.link.connection(within_s=left_s(deadline), waits=deadline.waits)
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

        Asked when a connection first writes: who only looks needs no right to add.
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
            return  # the act itself meets the same trouble, and knows what to do about it
        self._asked = connection
        if self._abilities and "xgroup|create" in self._missing:
            # The memory of ids cannot be widened; a script remembers instead.
            self._abilities = replace(self._abilities, idempotent_add=False)

    def _roles(self, jobs: Sequence[NewJob]) -> list[Role]:
        roles = [PRODUCER["schedule"]] if any(map(_wait_of, jobs)) else []
        ready = [job for job in jobs if job.wait is None]
        if self._needs_script(ready):
            roles.append(PRODUCER["add"])
        elif ready:
            roles.append(self._plain_role())
        return roles

    def _plain_role(self) -> Role:
        if not self._settings.resend:
            return PLAIN_ADD
        assert self._abilities is not None, "a connection probes the server before it is used"
        return NATIVE_ADD if self._abilities.idempotent_add else PRODUCER["add"]

    async def _prepare(self, connection: Connection) -> None:
        self._abilities = await probe(connection, self.keys, self._wanted)
        if self.confirmation is not None:
            await self.confirmation.probe(connection)

    @property
    def _remembers_natively(self) -> bool:
        assert self._abilities is not None, "a connection probes the server before it is used"
        return self._abilities.idempotent_add and self._settings.resend

    async def _widen_memory(self, connection: Connection) -> None:
        if not self._remembers_natively:
            return
        # The default window of 100 ids would double a resent bulk; only a stream that
        # exists can be told, and telling it the same again changes nothing.
        replies = await connection.send(
            pack(("XGROUP", "CREATE", self.keys.stream, _GROUP, "0", "MKSTREAM"))
            + pack(("XCFGSET", self.keys.stream, "IDMP-MAXSIZE", _UNCONFIRMED_MAX)),
            2,
        )
        made, told = replies
        if isinstance(told, StoreError):
            # A stream that could not be made cannot be told anything; why is in the first reply.
            raise made if isinstance(made, StoreError) and _is_no_key(told) else told


class _Act:
    """A script call until it is answered."""

    def __init__(
        self, name: str, keys: Sequence[str], args: Sequence[Part], deadline: AddDeadline
    ) -> None:
        self.name = name
        self.deadline = deadline
        # Whether the server may have done it; true while an answer is awaited.
        self.may_be_done = False
        self.trouble: StoreError | None = None
        self._keys = keys
        self._args = args

    async def run(self, connection: Connection) -> Reply:
        was_done, self.may_be_done = self.may_be_done, True
        try:
            return await script.run(connection, self.name, self._keys, *self._args)
        except StoreError as error:
            self.may_be_done = was_done or may_have_left(error)
            raise


class _Place:
    """What a write takes of the window and of the bytes until it is confirmed."""

    __slots__ = ("_size", "_store", "entered_count", "pending")

    def __init__(
        self, store: ProducerStore, jobs: Sequence[NewJob], size: int, sent: SentWrite | None
    ) -> None:
        self._store = store
        self._size = size
        self.entered_count = 0 if sent is None else len(jobs)
        self.pending: PendingWrite | None = sent

    def leave(self) -> None:
        self._store.window.leave(self.entered_count)
        self._store.unconfirmed.free(self._size)

    def leave_when_answered(self) -> None:
        """The caller has gone, and its bytes may still be on their way to the server."""
        connection = self._store.link.current
        if connection is None or self.pending is None or not self.pending.write.may_be_done:
            self.leave()
        else:
            connection.after_all_sent(self.leave)


def _cut(jobs: Sequence[NewJob], size: int) -> Sequence[Chunk]:
    """Jobs that are ready now, in slices that the server is done with soon."""
    has_ids = any(map(_digest_of, jobs))
    return chunks(jobs, size, COSTLY_JOBS_PER_WRITE_MAX if has_ids else JOBS_PER_WRITE_MAX)


def _not_recognised(jobs: Sequence[NewJob]) -> ConnectionLost:
    return ConnectionLost(
        "a write that may have been done must be sent again to a server that remembers it, and "
        "the one that answers now lacks XADD IDMP, by which it was sent: the jobs may have been "
        "added or not; look for them before you add them again",
        job_ids=ids_of(jobs),
    )


def _is_no_key(error: StoreError) -> bool:
    return "no such key" in str(error)


def _is_unfinished(reply: Reply) -> bool:
    return reply[0] == b"more"
