"""What a pipeline is given, and what it reports: its settings, and reports of batches and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from chasquimq.errors import SettingsError
from chasquimq.settings import ConnectionSettings, at_least, number_at_least
from chasquimq.store.net.address import resolved
from chasquimq.wire.keys import check_job_name, check_queue_name

# auto: the history where there is one, else the events; decided once for each queue.
ChannelChoice = Literal["auto", "history", "events"]
CHANNEL_CHOICES: Final = get_args(ChannelChoice)
ROWS_PER_BATCH: Final = 500_000
DEFAULT_LAKE: Final = Path(".chasqui/lake")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Where a pipeline reads, where it writes, and how much at a time.

    `queues` empty: every queue that is found, new ones too. `slo` names the milliseconds within
    which jobs of a name should be done, counted from when they were due; `*` stands for all names.
    """

    lake: Path = DEFAULT_LAKE
    queues: tuple[str, ...] = ()
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    channel: ChannelChoice = "auto"
    slo: Mapping[str, int] = field(default_factory=dict[str, int])
    # The share of jobs that may miss their target before the budget burns faster than planned.
    slo_allowed_share: float = 0.01
    trigger_s: float = 1.0
    max_rows_per_batch: int = ROWS_PER_BATCH
    fail_on_data_loss: bool = False
    # So many commits between two compactions of a running pipeline; fewer wait ten minutes.
    compact_every: int = 200

    def __post_init__(self) -> None:
        # Executors may run on other machines, and get the server by its URL.
        object.__setattr__(self, "connection", resolved(self.connection))
        if self.channel not in CHANNEL_CHOICES:
            raise SettingsError("channel", self.channel, f"one of {', '.join(CHANNEL_CHOICES)}")
        for queue in self.queues:
            check_queue_name(queue)
        for name, target_ms in self.slo.items():
            check_job_name(name)
            at_least(f"slo {name}", target_ms, 1)
        number_at_least("trigger_s", self.trigger_s, 0.1)
        at_least("max_rows_per_batch", self.max_rows_per_batch, 1_000)
        at_least("compact_every", self.compact_every, 1)
        if not 0 < self.slo_allowed_share < 1:
            raise SettingsError("slo_allowed_share", self.slo_allowed_share, "between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One batch, committed to every table.

    `rows` are attempts or events. `lost` counts what is known to be missing, entries and attempts
    together. `lag_ms` is the age of the newest row when it became visible, None without rows.
    """

    channel: str
    batch_id: int
    rows: int
    lost: int
    seconds: float
    lag_ms: int | None

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """What a whole run did; `channels` says where each queue was read from."""

    batches: int = 0
    rows: int = 0
    lost: int = 0
    seconds: float = 0.0
    channels: Mapping[str, str] = field(default_factory=dict[str, str])
