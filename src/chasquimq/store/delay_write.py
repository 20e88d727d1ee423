"""One write of jobs that are not due yet."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.store.add_write import TOKEN_TTL_S, RememberedWrite, leftovers

if TYPE_CHECKING:
    from chasquimq.settings import ProducerSettings
    from chasquimq.wire.keys import QueueKeys
    from chasquimq.wire.new_job import NewJob


class DelayWrite(RememberedWrite):
    """The server's clock turns each wait into a due time."""

    script_name = "schedule"

    def __init__(
        self, jobs: Sequence[NewJob], keys: QueueKeys, settings: ProducerSettings, unique_ms: int
    ) -> None:
        self.jobs = jobs
        self._keys = [keys.delayed, keys.dix, keys.stream, keys.token(secrets.token_hex(12))]
        self._args = [TOKEN_TTL_S, unique_ms]
        for job in jobs:
            assert job.wait is not None, "a job without a wait goes the immediate way"
            if job.digest:
                job_id = job.job_id
                self._keys += (keys.uniq(job_id), keys.dlid(job_id), keys.didx(job_id))
            how = "at" if job.wait.is_absolute else "in"
            self._args += (job.envelope, job.name, job.digest, job.job_id, job.wait.ms, how)
        self._args += (settings.max_stream_len or 0, keys.bell)
        self._keys += leftovers(keys, [job.job_id for job in jobs if job.digest])
