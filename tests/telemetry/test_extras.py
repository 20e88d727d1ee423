"""Exporters are extras: nothing loads them unasked, and whoever lacks one is told its name."""

import subprocess
import sys

import pytest

import chasquimq

WITHOUT = """
import sys
sys.modules["{library}"] = None
try:
    from chasquimq import {sink}
except ModuleNotFoundError as missing:
    print(*missing.__notes__)
"""
LOADED = """
import sys
from chasquimq import *
print(sorted({name.split(".")[0] for name in sys.modules} & {"prometheus_client", "opentelemetry"}))
"""


def output_of(program: str) -> str:
    path = {"PYTHONPATH": ":".join(part for part in sys.path if part)}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=path
    ).stdout


@pytest.mark.parametrize(
    ("sink", "library", "extra"),
    [("PrometheusSink", "prometheus_client", "prometheus"), ("OtelSink", "opentelemetry", "otel")],
)
def test_a_missing_extra_is_named(sink, library, extra):
    said = output_of(WITHOUT.format(sink=sink, library=library))

    assert said == f"{sink} needs an extra: pip install 'chasquimq-py[{extra}]'\n"


def test_taking_every_public_name_loads_no_exporter():
    assert output_of(LOADED) == "[]\n"


@pytest.mark.parametrize(
    "name",
    [
        "DlqRouted", "InMemorySink", "JobOutcome", "LockOutcome", "MetricsSink", "NoopSink",
        "OtelSink", "PrometheusSink", "PromoterTick", "QueueLabeled", "ReaderBatch",
        "RetryScheduled",
    ],
)  # fmt: skip
def test_sinks_and_records_are_public(name):
    assert getattr(chasquimq, name).__name__ == name
