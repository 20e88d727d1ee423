"""The gold rows of a batch of attempts, worked out side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from chasquimq.spark.pipeline.tables.gold import gold_failures, gold_minute, gold_retries, gold_slo

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from chasquimq.spark.pipeline.settings import PipelineSettings


def gold_rows(attempts: DataFrame, settings: PipelineSettings) -> dict[str, pa.Table]:
    """What these attempts add to each gold table."""
    frames: dict[str, DataFrame] = {
        "gold_minute": gold_minute(attempts),
        "gold_failures": gold_failures(attempts),
        "gold_retries": gold_retries(attempts),
    }
    if settings.slo:
        frames["gold_slo"] = gold_slo(attempts, settings.slo, settings.slo_allowed_share)
    # A small batch spends its time on planning, and that can be done four times at once.
    with ThreadPoolExecutor(len(frames)) as pool:
        return dict(zip(frames, pool.map(_collected, frames.values()), strict=True))


def _collected(frame: DataFrame) -> pa.Table:
    return frame.toArrow()
