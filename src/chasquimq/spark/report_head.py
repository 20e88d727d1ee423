"""The few numbers at the head of a report, each with a tone: good, fair or bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from chasquimq.spark.answers_audit import Completeness
from chasquimq.spark.answers_traffic import Traffic
from chasquimq.spark.report_format import count_text, share_text, text_of
from chasquimq.spark.report_shape import Figure, Tone

# Shares of failed attempts up to which a queue does well, and fairly.
GOOD_FAILED_SHARE: Final = 0.01
FAIR_FAILED_SHARE: Final = 0.05


def figures_of(traffic: Traffic, whole: Completeness) -> list[Figure]:
    """What a reader sees first."""
    names, overall = traffic
    completed, retried, dead = (_total(names, name) for name in ("completed", "retried", "dead"))
    ended = completed + retried + dead
    return [
        Figure("attempts", count_text(ended)),
        Figure("completed", count_text(completed)),
        _failed(retried + dead, ended),
        Figure("buried", count_text(dead), "bad" if dead else "good"),
        Figure("wait p99", text_of(overall["wait_p99_ms"], "ms")),
        Figure("run p99", text_of(overall["run_p99_ms"], "ms")),
        _complete(whole),
    ]


def _total(names: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in names)


def _failed(failed: int, ended: int) -> Figure:
    if not ended:
        return Figure("failed", text_of(None, "share"))
    share = failed / ended
    tone: Tone = "good" if share <= GOOD_FAILED_SHARE else "fair"
    return Figure("failed", share_text(share), tone if share <= FAIR_FAILED_SHARE else "bad")


def _complete(whole: Completeness) -> Figure:
    if whole.share is None:
        return Figure("completeness", text_of(None, "share"))
    if whole.share == 1 and not whole.is_proven:
        return Figure("completeness", "not proven", "fair")
    if whole.share == 1 and not whole.is_settled:
        return Figure("completeness", "100 % so far", "fair")
    return Figure("completeness", share_text(whole.share), "good" if whole.is_whole else "bad")
