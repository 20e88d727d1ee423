"""The few numbers at the head of a report, each with a tone: good, fair or bad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chasquimq.spark.query.audit import Completeness
from chasquimq.spark.query.traffic import ENDS, Traffic, failed_share
from chasquimq.spark.report.format import count_text, share_text, text_of
from chasquimq.spark.report.shape import Figure, Tone

# Shares of failed attempts up to which a queue does well, and fairly.
GOOD_FAILED_SHARE: Final = 0.01
FAIR_FAILED_SHARE: Final = 0.05


def figures_of(traffic: Traffic, whole: Completeness) -> list[Figure]:
    """What a reader sees first."""
    names, overall = traffic
    ends = {name: sum(row[name] or 0 for row in names) for name in ENDS}
    return [
        _count("attempts", "attempts", sum(ends.values())),
        _count("completed", "completed", ends["completed"]),
        _failed(failed_share(ends)),
        _count("buried", "dead", ends["dead"], "bad" if ends["dead"] else "good"),
        _count("snoozed", "snoozed", ends["snoozed"]),
        _ms("wait p99", "wait_p99_ms", overall),
        _ms("run p99", "run_p99_ms", overall),
        _complete(whole),
    ]


def _count(label: str, name: str, count: int, tone: Tone = "plain") -> Figure:
    return Figure(label, count_text(count), name, count, tone)


def _ms(label: str, name: str, overall: Mapping[str, float | None]) -> Figure:
    return Figure(label, text_of(overall[name], "ms"), name, overall[name])


def _failed(share: float | None) -> Figure:
    tone: Tone = "plain"
    if share is not None:
        tone = "good" if share <= GOOD_FAILED_SHARE else "fair"
        tone = tone if share <= FAIR_FAILED_SHARE else "bad"
    return Figure("failed", text_of(share, "share"), "failed_share", share, tone)


def _complete(whole: Completeness) -> Figure:
    text, tone = _complete_text(whole)
    label = "completeness" if whole.since is None else "completeness of the days"
    return Figure(label, text, "completeness_share", whole.share, tone)


def _complete_text(whole: Completeness) -> tuple[str, Tone]:
    if whole.share is None:
        return text_of(None, "share"), "plain"
    if whole.surplus or (whole.unknown_gaps and not whole.missing):
        return "not known", "bad"
    if whole.share == 1 and not whole.is_proven:
        return "not proven", "fair"
    if whole.share == 1 and not whole.is_settled:
        return "100 % so far", "fair"
    return share_text(whole.share), "good" if whole.is_whole else "bad"
