"""`enqueue`: a DataFrame into a queue, and what became of its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chasquimq.errors import RowsRefused, StoreError, WriteFailed
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.failures import complaint, complaint_kind, first_line
from chasquimq.spark.queues.options import QueueOptions, refuse_nameless
from chasquimq.spark.queues.report import Summary, faults_text
from chasquimq.spark.queues.sink import FORGET_AFTER_MS, SUMMARY_FIELD
from chasquimq.spark.queues.source import register
from chasquimq.store.net.address import dialled_url
from chasquimq.store.producer.rows import RowWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Gets how many rows were read so far.
OnRows = Callable[[int], None]
_LOOK_EVERY_S = 0.5


def enqueue(
    frame: DataFrame,
    queue: str,
    *,
    redis_url: str | None = None,
    on_rows: OnRows | None = None,
    check_first: bool = False,
    **options: Any,
) -> Summary:
    """Write every row as a job and answer the figures.

    Options are those of the source, as Python writes them: `id_column="id"`. Without `run_id`
    each call is a run of its own. `check_first` reads the rows twice: where one of them cannot
    become a job, none is added, unless `on_error="skip"` leaves such rows out.

    Raises:
        SettingsError: neither `name` nor `name_column` is given, nor `allow_unnamed`.
        RowsRefused: `check_first` found rows that cannot become jobs; none was added.
        WriteFailed: columns, rows or the server were not as they must be. Rows that were added
            stay; a second write of the same run adds the others.
        StoreError: the server does not answer.
    """
    refuse_nameless(
        name=options.get("name") or "",
        name_column=options.get("name_column") or "",
        allow_unnamed=bool(options.get("allow_unnamed")),
    )
    url = dialled_url(ConnectionSettings(url=redis_url))
    own_run = options.pop("run_id", "")
    run = own_run or uuid4().hex[:12]
    if check_first and options.get("on_error") != "skip":
        _refuse_faults(frame, queue, url, options, run)
    named = {
        "chasqui.redis.url": url, "queue": queue, "runId": run, "reportProgress": "true",
        **{_option_name(name): _option_text(value) for name, value in options.items() if value not in ("", None)},
    }  # fmt: skip
    settings = QueueOptions(url=url, queue=queue)
    writer = RowWriter(queue, settings.connection, lambda _write, _marks: None)
    try:
        if own_run:
            # A former write of this run left figures of its own.
            writer.drop_notes(run)
        with _watched(settings, run, on_rows):
            _save(frame, named)
        if not own_run and not options.get("id_column"):
            writer.forget_run(run, FORGET_AFTER_MS)
        return _summary(writer.notes(run))
    finally:
        writer.close()


def _refuse_faults(
    frame: DataFrame, queue: str, url: str, options: dict[str, Any], run: str
) -> None:
    looking: dict[str, Any] = {**options, "dry_run": True}
    try:
        found = enqueue(frame, queue, redis_url=url, **looking)
    except WriteFailed as failed:
        # A look is a run of its own; what was added before was added by the run of the caller.
        failed.run = run
        raise
    if found.faults:
        raise RowsRefused(
            f"rows must be rows that can become jobs, found {faults_text(found.faults)} among "
            f"{found.rows:,}; none was added: correct them, or let onError=skip leave them out",
            faults=found.faults,
            rows=found.rows,
        )


def _summary(notes: dict[str, str]) -> Summary:
    if SUMMARY_FIELD not in notes:
        raise StoreError("the rows are in the queue, but the server did not keep their figures")
    return Summary.from_json(notes[SUMMARY_FIELD])


def _save(frame: DataFrame, options: dict[str, str]) -> None:
    _make_active(frame.sparkSession)
    try:
        register(frame.sparkSession)
        frame.write.format("chasqui").options(**options).mode("append").save()
    except (PySparkException, Py4JError) as error:
        run, is_look = options["runId"], options.get("dryRun") == "true"
        reason = complaint(error) or (_unread(error) if is_look else _unwritten(error, run))
        raise WriteFailed(reason, kind=complaint_kind(error), run=run) from error


def _unread(error: Exception) -> str:
    return (
        f"Spark must read every row before the first is added, but said: {first_line(error)}; "
        "put that right and try again: none was added"
    )


def _unwritten(error: Exception, run: str) -> str:
    return (
        f"Spark must write every row, but said: {first_line(error)}; put that right and write "
        f"again, where runId={run} adds only rows that are missing"
    )


def _make_active(session: Any) -> None:
    """Spark looks for sources in the session of the thread, and a new thread has none."""
    jvm = getattr(session, "_jvm", None)
    if jvm is not None:
        jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001  the one way


def _option_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _watched(options: QueueOptions, run: str, on_rows: OnRows | None) -> Generator[None]:
    """Reports progress from a thread of its own, while Spark keeps this one."""
    if on_rows is None:
        yield
        return
    stop = threading.Event()
    watching = threading.Thread(target=_watch, args=(options, run, on_rows, stop), daemon=True)
    watching.start()
    try:
        yield
    finally:
        stop.set()
        watching.join()


def _watch(options: QueueOptions, run: str, on_rows: OnRows, stop: threading.Event) -> None:
    writer = RowWriter(options.queue, options.connection, lambda _write, _marks: None)
    while not stop.wait(_LOOK_EVERY_S):
        try:
            notes = writer.notes(run)
        except StoreError:
            # The write itself will report it.
            continue
        on_rows(sum(int(count) for name, count in notes.items() if name != SUMMARY_FIELD))
    writer.close()
