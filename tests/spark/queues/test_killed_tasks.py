"""Every task is killed once in the middle, then runs beside a copy, with rows in another order."""

from __future__ import annotations

import pytest

from support.row_storm import refuse_doubles_and_gaps, write_everywhere

# A session of its own takes half a minute on a busy machine, and so do its first tasks.
RUN_S_MAX = 300


@pytest.mark.timeout(RUN_S_MAX + 30)
def test_every_row_is_one_job_on_every_server(queue_name):
    found, _ = write_everywhere("chasqui.killing", "local[2,3]", queue_name, within_s=RUN_S_MAX)

    refuse_doubles_and_gaps(found)
