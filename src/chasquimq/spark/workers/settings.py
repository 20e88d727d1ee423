"""What a run of workers on Spark is, and what Spark must be given for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from chasquimq.errors import SettingsError
from chasquimq.settings import ConnectionSettings, at_least

# A task that dies must not take the others along, and in a run of weeks it dies often: so Spark
# starts it again as good as always, and hosting keeps the pace.
TASK_FAILURES_MAX: Final = 10_000
STOP_DEADLINE_MS: Final = 30_000
_LOCAL = re.compile(r"local(?:\[(?P<slots>\*|\d+)(?:,\s*(?P<failures>\d+))?\])?")
_CONF: Final = {
    # A task gets a process of its own: nothing of an earlier worker is left in it.
    "spark.python.worker.reuse": "false",
    # A copy of a task that runs for ever would end with it.
    "spark.speculation": "false",
    "spark.task.maxFailures": str(TASK_FAILURES_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What every task is given; travels to executors.

    `options` are a Worker's, by name; a `target` that is a Worker has its own, and takes only those
    that are about the process. `folder` is where
    the handler's module was found, for tasks on this machine.
    """

    queue: str
    target: str
    url: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    folder: str = ""
    run: str = field(default_factory=lambda: uuid4().hex[:12])

    @property
    def connection(self) -> ConnectionSettings:
        return ConnectionSettings(url=self.url, queue=self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How many tasks, and how long running jobs may go on once the run is to stop."""

    host: HostSettings
    tasks: int
    stop_deadline_ms: int = STOP_DEADLINE_MS

    def __post_init__(self) -> None:
        at_least("tasks", self.tasks, 1)
        at_least("stop_deadline_ms", self.stop_deadline_ms, 0)


def workers_master(master: str, tasks: int) -> str:
    """The master with a slot for each task, where a task that died is started again.

    Raises:
        SettingsError: it has fewer slots than tasks, so some would wait for ever.
    """
    local = _LOCAL.fullmatch(master)
    if local is None:
        return master
    slots = tasks if local["slots"] == "*" else int(local["slots"] or 1)
    if slots < tasks:
        rule = f"a master with a slot for each of the {tasks} tasks"
        raise SettingsError("master", master, rule, hint=f"give local[{tasks}], or fewer tasks")
    return f"local[{slots},{local['failures'] or TASK_FAILURES_MAX}]"


def workers_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark for tasks that run for ever; what was given wins."""
    return {**_CONF, **conf}
