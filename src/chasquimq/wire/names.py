"""Which names and ids may enter a key or an entry; refusals come before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from chasquimq.errors import KindRefused, LimitExceeded, SettingsError

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
    # Callers lie.
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
