"""Puts a report together: the head, and one section for each thing a person asks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from chasquimq.spark.query.audit import completeness
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import known_queues, newest_at, oldest_at, scope_of
from chasquimq.spark.query.traffic import by_name
from chasquimq.spark.report.audit import audit_section
from chasquimq.spark.report.backlog import backlog_section, target_section
from chasquimq.spark.report.failures import failures_section, retries_section
from chasquimq.spark.report.head import figures_of
from chasquimq.spark.report.shape import Report
from chasquimq.spark.report.traffic import speed_section, throughput_section


def make_report(
    answers: Answers, queues: Sequence[str] = (), last: timedelta | None = None
) -> Report:
    """All about these queues, or about every one; `last`: only the end of the time they cover."""
    scope = scope_of(answers, queues, last)
    traffic = by_name(answers, scope)
    whole = completeness(answers, scope)
    proof = whole.sentence()
    return Report(
        queues=list(queues) or known_queues(answers),
        first_at=oldest_at(answers, scope),
        last_at=newest_at(answers, queues),
        figures=figures_of(traffic, whole),
        sections=[
            throughput_section(answers, scope, traffic.names, proof),
            speed_section(traffic.names, proof),
            failures_section(answers, scope, proof),
            retries_section(answers, scope, proof),
            backlog_section(answers, scope),
            target_section(answers, scope, proof),
            audit_section(answers, scope, whole),
        ],
    )
