"""Every worker process gets the signal, whatever has just become of the others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from chasquimq.cli.worker import WorkerFleet
from support.waiting import eventually

WAITS = """
import pathlib, signal, sys
def note(number, frame):
    pathlib.Path(sys.argv[1]).write_text(str(number))
    sys.exit(0)
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGINT, note)
pathlib.Path(sys.argv[1]).write_text("ready")
signal.pause()
"""
# Deaf, so that a test can send many signals; the first ends by itself, the others when they may.
SHORT_LIVED = "trap '' TERM; exec sleep 0.3"
PATIENT = "trap '[ ! -e {may_end} ] || exit 0' TERM; while :; do sleep 0.02; done"


@pytest.fixture
def waiting(tmp_path):
    """The command line of a child that writes down which signal it got."""
    return lambda number: [sys.executable, "-c", WAITS, str(tmp_path / f"{number}")]


@pytest.fixture
async def heard_signals():
    yield
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)


async def until_ready(tmp_path, numbers) -> None:
    notes = [tmp_path / f"{number}" for number in numbers]
    await eventually(lambda: all(one.exists() and one.read_text() for one in notes), within_s=20)


@pytest.mark.usefixtures("heard_signals")
async def test_a_child_that_has_just_ended_hides_no_signal_from_the_others(tmp_path, waiting):
    """A signal in each round of the loop meets the one in which the first child is half gone."""
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    may_end = tmp_path / "may_end"
    patient = PATIENT.format(may_end=may_end)
    commands = [["/bin/sh", "-c", one] for one in (SHORT_LIVED, patient, patient)]
    fleet = WorkerFleet(3, lambda number, _lifeline: commands[number], dict(os.environ))
    running = asyncio.create_task(fleet.run())
    async with asyncio.timeout(30):
        await eventually(lambda: len(children("sleep")) == 3)
        while len(children("sleep")) == 3:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
        for _ in range(1_000):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
        may_end.touch()
        signal.raise_signal(signal.SIGTERM)
        code = await running

    assert complaints == []
    assert code == 0
    assert not children("sleep")


@pytest.mark.usefixtures("heard_signals")
async def test_children_that_die_as_the_signal_comes_do_not_hide_it_from_the_rest(
    tmp_path, waiting
):
    fleet = WorkerFleet(6, lambda number, _lifeline: waiting(number), dict(os.environ))
    async with asyncio.timeout(30):
        running = asyncio.create_task(fleet.run())
        await until_ready(tmp_path, range(6))
        for pid in children()[::2]:
            os.kill(pid, signal.SIGKILL)
        # Nothing turns the loop in between: the fleet has not seen them die.
        os.kill(os.getpid(), signal.SIGTERM)
        code = await running

    got = [(tmp_path / f"{n}").read_text() for n in range(6)]
    assert got.count(str(signal.SIGTERM.value)) == 3
    assert code == 1
    assert not children()


@pytest.mark.usefixtures("heard_signals")
async def test_an_interrupt_while_children_start_is_no_bad_end(tmp_path, waiting, caplog):
    """An interpreter that is interrupted before it runs a program complains, and ends with 1."""
    note = (
        "import pathlib, time; pathlib.Path(__file__).with_name('starts').touch(); time.sleep(30)"
    )
    (tmp_path / "sitecustomize.py").write_text(note)
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    fleet = WorkerFleet(2, lambda number, _lifeline: waiting(number), environ)
    async with asyncio.timeout(25):
        running = asyncio.create_task(fleet.run())
        await eventually((tmp_path / "starts").exists, within_s=20)
        signal.raise_signal(signal.SIGINT)
        code = await running

    assert code == 130
    assert "did not end well" not in caplog.text


@pytest.mark.usefixtures("heard_signals")
async def test_a_child_that_cannot_be_started_is_tried_again_and_the_others_stay(
    tmp_path, waiting, caplog
):
    tries: list[int] = []

    def command(number: int, _lifeline: int) -> list[str]:
        tries.append(number)
        return ["/no/such/program"] if tries.count(0) < 3 and number == 0 else waiting(number)

    async with asyncio.timeout(30):
        running = asyncio.create_task(WorkerFleet(2, command, dict(os.environ)).run())
        await until_ready(tmp_path, (0, 1))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0

    assert tries.count(0) == 3
    assert "worker process 0 could not be started" in caplog.text


def children(word: str = "signal.pause") -> list[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return [pid for pid in map(int, listed.split()) if word in command_of(pid)]


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
