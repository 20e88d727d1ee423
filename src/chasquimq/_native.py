"""Offers the handles under the module name of ChasquiMQ (Rust), and its switch for log lines."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from chasquimq import version
from chasquimq.compat import BytesJob as _Job
from chasquimq.compat import Consumer, Producer, Scheduler

__all__ = ["Consumer", "Producer", "Scheduler", "_Job", "_init_tracing", "version"]

_LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}
_ROOT = "chasquimq"
_tracing: list[logging.Handler] = []


def _init_tracing() -> bool:
    """Write log lines to stderr; False: that was done before.

    `RUST_LOG`, else `CHASQUIMQ_LOG`, says which: a level (`warn` without either), or a list
    such as `info,chasquimq::store=debug`. What cannot be read is skipped.
    """
    if _tracing:
        return False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    _tracing.append(handler)
    wanted = os.environ.get("RUST_LOG") or os.environ.get("CHASQUIMQ_LOG") or ""
    logging.getLogger(_ROOT).setLevel(logging.WARNING)
    for target, level in _directives(wanted):
        logging.getLogger(target).setLevel(level)
    logging.getLogger(_ROOT).addHandler(handler)
    return True


def _directives(wanted: str) -> Iterator[tuple[str, int]]:
    for directive in wanted.split(","):
        target, _, level = directive.strip().rpartition("=")
        name = target.strip().replace("::", ".") or _ROOT
        # Lines of other packages are not ours to switch on.
        is_ours = name == _ROOT or name.startswith(f"{_ROOT}.")
        if is_ours and level.strip().lower() in _LEVELS:
            yield name, _LEVELS[level.strip().lower()]
