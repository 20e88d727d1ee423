"""Who runs which test when several processes do: tests with Spark share one, and so one JVM."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_SPARK = "tests/spark/"


class OneJvm(LoadScopeScheduling):
    """Every test goes wherever there is room, but all of Spark's go to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK if nodeid.startswith(_SPARK) else nodeid
