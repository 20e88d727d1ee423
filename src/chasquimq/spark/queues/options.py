"""The options of the source `chasqui`, read once into a frozen value that travels to executors."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.settings import MIB, ConnectionSettings
from chasquimq.store.net.address import dialled_url, normal_url
from chasquimq.store.producer.rows import ROWS_PER_WRITE_MAX
from chasquimq.wire.keys import check_job_name, check_queue_name

Place = Literal["stream", "delayed", "dlq", "results"]
OnError = Literal["fail", "skip"]
PLACES: Final = ("stream", "delayed", "dlq", "results")
ON_ERROR: Final = ("fail", "skip")
PAYLOADS: Final = ("json", "binary")
_URL: Final = "chasqui.redis.url"
_INT_MAX = 2**31 - 1
_MS_MAX = 2**52
_RUN_ID_BYTES_MAX = 128
# Spark hands these on although they are not for the sink.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What a read or a write was asked for; the URL may carry a password and is never printed."""

    url: str | None = field(default=None, repr=False)
    queue: str = ""
    # Reading.
    read: Place = "stream"
    payload: Literal["json", "binary"] = "json"
    payload_schema: str = ""
    min_partitions: int = 2
    fetch_size: int = 1_000
    # Writing.
    id_column: str = ""
    name_column: str = ""
    name: str = ""
    allow_unnamed: bool = False
    payload_column: str = ""
    delay_column: str = ""
    attempts_column: str = ""
    corrupt_column: str = ""
    pipeline_size: int = ROWS_PER_WRITE_MAX
    max_rate: float | None = None
    max_stream_len: int = 0
    queue_full_timeout_ms: int = 600_000
    # Longer than any write with its retries takes.
    unique_for_ms: int = 6 * 3_600_000
    max_payload_bytes: int = MIB
    run_id: str = ""
    on_error: OnError = "fail"
    dry_run: bool = False
    report_progress: bool = False

    @property
    def connection(self) -> ConnectionSettings:
        return ConnectionSettings(url=self.url, queue=self.queue)


def parse_options(given: Mapping[str, str]) -> QueueOptions:
    """Read what Spark hands over.

    Raises:
        SettingsError: an option is not known, is missing, or its value is refused.
    """
    known = {name.lower(): name for name in _READERS}
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key.lower() in _SPARKS_OWN:
            continue
        name = known.get(key.lower())
        if name is None:
            raise _unknown(key, list(known.values()))
        attribute, read = _READERS[name]
        values[attribute] = read(name, text)
    # Looked up once, where the query is planned: executors may run on other machines.
    if "url" not in values:
        values["url"] = dialled_url(ConnectionSettings())
    options = QueueOptions(**values)
    _check_together(options)
    return options


def refuse_for(options: QueueOptions, act: Literal["read", "write"]) -> None:
    """Refuse options that mean something only for the other act."""
    plain = QueueOptions(url=options.url, queue=options.queue)
    other = _WRITING if act == "read" else _READING
    for name in other:
        attribute = _READERS[name][0]
        if getattr(options, attribute) != getattr(plain, attribute):
            raise SettingsError(
                name, getattr(options, attribute), f"left out of a {act}; it is for the other one"
            )
    if act == "write":
        refuse_nameless(
            name=options.name, name_column=options.name_column, allow_unnamed=options.allow_unnamed
        )


def refuse_nameless(*, name: str, name_column: str, allow_unnamed: bool) -> None:
    """Refuse a write whose jobs would have no name, unless that is what is asked for.

    Raises:
        SettingsError: no row was written.
    """
    if not (name.strip() or name_column or allow_unnamed):
        raise SettingsError(
            "nameColumn or name", name, "given",
            hint="a job without a name runs only where one function handles every name; "
            "allowUnnamed=true adds such jobs",
        )  # fmt: skip


def _check_together(options: QueueOptions) -> None:
    if not options.queue:
        raise SettingsError(
            "queue", options.queue, "given", hint='add .option("queue", "emails") or the like'
        )
    if options.name and options.name_column:
        raise SettingsError("name and nameColumn", "both", "given one at a time")
    if options.payload_schema and options.payload == "binary":
        raise SettingsError("payloadSchema", options.payload_schema, "left out with payload=binary")


def _unknown(key: str, known: list[str]) -> SettingsError:
    close = difflib.get_close_matches(key.lower(), [name.lower() for name in known], 1)
    meant = next((name for name in known if close and name.lower() == close[0]), "")
    hint = f"did you mean {meant}?" if meant else "the page spark-queues lists them all"
    return SettingsError("an option", key, "one that this source knows", hint=hint)


def _url(name: str, text: str) -> str:
    return normal_url(text)


def _queue(name: str, text: str) -> str:
    return check_queue_name(text.strip())


def _text(name: str, text: str) -> str:
    return text


def _job_name(name: str, text: str) -> str:
    return check_job_name(text)


def _run_id(name: str, text: str) -> str:
    if not text.strip() or len(text.encode()) > _RUN_ID_BYTES_MAX:
        raise SettingsError(name, text, f"a text of 1 to {_RUN_ID_BYTES_MAX} bytes, not blank")
    return text


def _one_of(*words: str) -> Any:
    def read(name: str, text: str) -> str:
        if text.strip().lower() not in words:
            raise SettingsError(name, text, f"one of {', '.join(words)}")
        return text.strip().lower()

    return read


def _whole(least: int, most: int = _INT_MAX) -> Any:
    def read(name: str, text: str) -> int:
        if not text.strip().isdecimal():
            raise SettingsError(name, text, "a whole number")
        number = int(text)
        if not least <= number <= most:
            raise LimitExceeded(name, number, f"from {least} to {most}")
        return number

    return read


def _rate(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise SettingsError(name, text, "a number of rows a second above 0")
    return number


def _truth(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise SettingsError(name, text, "true or false")
    return text.strip().lower() == "true"


_READERS: Final[dict[str, tuple[str, Any]]] = {
    _URL: ("url", _url),
    "queue": ("queue", _queue),
    "read": ("read", _one_of(*PLACES)),
    "payload": ("payload", _one_of(*PAYLOADS)),
    "payloadSchema": ("payload_schema", _text),
    "minPartitions": ("min_partitions", _whole(1)),
    "fetchSize": ("fetch_size", _whole(1, 10_000)),
    "idColumn": ("id_column", _text),
    "nameColumn": ("name_column", _text),
    "name": ("name", _job_name),
    "allowUnnamed": ("allow_unnamed", _truth),
    "payloadColumn": ("payload_column", _text),
    "delayColumn": ("delay_column", _text),
    "attemptsColumn": ("attempts_column", _text),
    "corruptColumn": ("corrupt_column", _text),
    "pipelineSize": ("pipeline_size", _whole(1, ROWS_PER_WRITE_MAX)),
    "maxRate": ("max_rate", _rate),
    "maxStreamLen": ("max_stream_len", _whole(1, _MS_MAX)),
    "queueFullTimeoutMs": ("queue_full_timeout_ms", _whole(0, _MS_MAX)),
    "uniqueForMs": ("unique_for_ms", _whole(1, _MS_MAX)),
    "maxPayloadBytes": ("max_payload_bytes", _whole(1)),
    "runId": ("run_id", _run_id),
    "onError": ("on_error", _one_of(*ON_ERROR)),
    "dryRun": ("dry_run", _truth),
    "reportProgress": ("report_progress", _truth),
}
OPTION_NAMES: Final = tuple(_READERS)
_READING: Final = ("read", "payload", "payloadSchema", "minPartitions", "fetchSize")
_WRITING: Final = tuple(name for name in OPTION_NAMES if name not in (_URL, "queue", *_READING))
