"""Who runs which test when several processes do: no more than two of them have a JVM."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SHARED_SESSION = "the tests of one Spark session"
_OWN_SESSIONS = "the tests that start Spark themselves"
# The first that fits a test decides; whatever fits none goes where there is room. A file whose
# tests look at one dear thing is a scope of its own, or each process would make that thing again.
_SCOPES = {
    "tests/cli/test_bench.py": "the tests of one run of the benchmark",
    "tests/cli/test_demo.py": "the tests of one demo",
    "tests/rooms/test_site.py": "the tests of one site",
    "tests/security/test_dangerous_calls.py": "the tests of all lines of ours",
    "tests/spark/pipeline/test_pipeline_kills.py::test_killed_in_": _OWN_SESSIONS,
    "tests/spark/pipeline/": SHARED_SESSION,
    "tests/spark/queues/test_cli_enqueue.py": _OWN_SESSIONS,
    "tests/spark/queues/test_killed_tasks.py": _OWN_SESSIONS,
    "tests/spark/queues/test_speculative_tasks.py": _OWN_SESSIONS,
    "tests/spark/queues/": SHARED_SESSION,
    "tests/spark/test_cli_pipeline_runs.py": _OWN_SESSIONS,
    "tests/spark/test_demo.py": _OWN_SESSIONS,
    "tests/spark/test_session.py": _OWN_SESSIONS,
    "tests/spark/test_sources.py": SHARED_SESSION,
    "tests/spark/test_tables_gold.py": SHARED_SESSION,
    "tests/spark/workers/test_worker_tasks.py": SHARED_SESSION,
    "tests/spark/workers/test_worker_c": _OWN_SESSIONS,
    "tests/store/test_topologies.py": "the tests of one cluster",
}
# What takes longest is begun first, so that nobody waits for it in the end.
_LONG_TESTS = ("tests/machine/", "tests/faults/", "tests/interop/")


def scope_of(nodeid: str) -> str:
    """Tests of one scope run one after the other in one process."""
    return next((scope for start, scope in _SCOPES.items() if nodeid.startswith(start)), nodeid)


def turn_of(nodeid: str) -> int:
    """Tests with a lower number are begun earlier."""
    if scope_of(nodeid) in (SHARED_SESSION, _OWN_SESSIONS):
        return 0
    return 1 if nodeid.startswith(_LONG_TESTS) else 2


class FewJvms(LoadScopeScheduling):
    """Every test goes wherever there is room, but those with Spark keep together."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        # Scopes come in the order of their tests, not by how many they are.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """What is done is forgotten: each look at a node goes through all that it was given."""
        nodeid = self.registered_collections[node][item_index]
        scope, given = scope_of(nodeid), self.assigned_work[node]
        given[scope][nodeid] = True
        if all(given[scope].values()):
            del given[scope]
        self._reschedule(node)
