"""How busy a process was is seen from outside, for a stretch that is named afterwards."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.server import ServerCpu

BUSY_S = 0.2


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no such books here")
def test_a_busy_stretch_is_told_from_a_quiet_one():
    with ServerCpu(os.getpid()) as seen:
        time.sleep(0.05)
        quiet_s = time.perf_counter()
        time.sleep(BUSY_S)
        busy_s, until_cpu_s = time.perf_counter(), time.process_time() + BUSY_S
        while time.process_time() < until_cpu_s:
            pass
        took_s = time.perf_counter() - busy_s

    assert seen.share(busy_s, took_s) * took_s > BUSY_S / 2
    assert seen.share(quiet_s, BUSY_S) * BUSY_S < BUSY_S / 2


def test_a_server_elsewhere_has_no_figure():
    with ServerCpu(None) as seen:
        pass

    assert seen.share(time.perf_counter(), 1.0) is None
