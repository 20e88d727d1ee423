"""What the demo asks the tables: three questions that a log could not answer."""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    """A question in words, and the same in SQL."""

    words: str
    sql: str


QUESTIONS = (
    Question(
        "Which errors were there, and how many jobs did each of them end?",
        """
        select name, reason, sum(failed)::bigint as failed, sum(dead)::bigint as dead
        from gold_failures group by name, reason order by failed desc, name, reason
        """,
    ),
    Question(
        "How many jobs did another attempt save, and how many did it not?",
        """
        select name, sum(completed)::bigint as saved, sum(dead)::bigint as dead,
               round(sum(completed) / sum(runs), 3) as succeeded
        from gold_retries where attempt > 1 group by name order by saved desc, name
        """,
    ),
    Question(
        "How long did the slowest one in a hundred wait, and run?",
        """
        select name, sum(completed)::bigint as completed,
               round(kll_sketch_get_quantile_double(kll_merge_agg_double(wait_kll), 0.99), 3)
                   as wait_p99_ms,
               round(kll_sketch_get_quantile_double(kll_merge_agg_double(run_kll), 0.99), 3)
                   as run_p99_ms
        from gold_minute group by name order by wait_p99_ms desc, name
        """,
    ),
)
