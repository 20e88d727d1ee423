"""Lists names that other programs see: metrics, keys, loggers, events, history and variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from chasquimq.model.delivery import DlqReason
from chasquimq.telemetry.families import FAMILIES
from chasquimq.telemetry.otel import otel_name, otel_unit
from chasquimq.wire import events as event_fields
from chasquimq.wire.history import AttemptOutcome, HistoryColumns
from chasquimq.wire.keys import QueueKeys

SOURCE = Path(__file__).parents[2] / "src"
FIXED_LOGGER = re.compile(r"""getLogger\(["'](chasquimq[\w.]*)["']\)""")
VARIABLE = re.compile(r"""["'](_?CHASQUI(?:MQ)?_[A-Z][A-Z_]*|REDIS_URL|RUST_LOG)["']""")
PLACEHOLDER = "<{}>"


def metrics() -> Iterator[str]:
    """Every metric, as Prometheus and as OpenTelemetry name it."""
    for family in sorted(FAMILIES, key=lambda one: one.name):
        labels = "{" + ", ".join(family.labels) + "}" if family.labels else ""
        yield f"{family.name}{labels} {family.kind}"
        # The other one of a pair has the base unit, as OpenTelemetry wants it.
        if not family.has_twin:
            yield f"    OpenTelemetry: {otel_name(family)}, unit {otel_unit(family)}"


def keys() -> Iterator[str]:
    """Every key of a queue."""
    made = QueueKeys("QUEUE")
    for name in sorted(name for name in dir(QueueKeys) if not name.startswith("_")):
        key = getattr(made, name)
        if callable(key):
            code = key.__func__.__code__
            key = key(
                *(PLACEHOLDER.format(word) for word in code.co_varnames[1 : code.co_argcount])
            )
        if name != "queue":
            yield key.replace("QUEUE", "<queue>")


def loggers() -> Iterator[str]:
    """Every logger: users set levels and write filters by these names."""
    found: set[str] = set()
    for path in sorted((SOURCE / "chasquimq").rglob("*.py")):
        text = path.read_text()
        found.update(FIXED_LOGGER.findall(text))
        if _logs_by_own_name(text):
            found.add(_module(path))
    yield from sorted(found)


def records() -> Iterator[str]:
    """Events, reasons, outcomes and columns of the history."""
    fields = [field for field, _ in event_fields._OPTIONAL_FIELDS]
    yield from _titled("kinds of events", event_fields.EventKind)
    yield from _titled("fields of events", ["e", "id", "n", "ts", *fields])
    yield from _titled("reasons of a burial", DlqReason)
    yield from _titled("outcomes of an attempt", [one.label for one in AttemptOutcome])
    yield from _titled("columns of the history", HistoryColumns.__struct_fields__)


def variables() -> Iterator[str]:
    """Every variable of the environment that the source names."""
    texts = (path.read_text() for path in SOURCE.rglob("*.py"))
    yield from sorted({name for text in texts for name in VARIABLE.findall(text)})


def _titled(title: str, names: Iterable[str]) -> Iterator[str]:
    yield f"{title}:"
    yield from (f"    {name}" for name in names)


def _logs_by_own_name(text: str) -> bool:
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return any(ast.unparse(call) == "get_logger(__name__)" for call in calls)


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
