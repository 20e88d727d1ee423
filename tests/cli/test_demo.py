"""`chasqui demo --quick` reads well everywhere, tells the truth, and leaves when asked."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.waiting import patience

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "chasquimq", "demo", "--quick"]
# Stands where a package stood, and is not there.
WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from chasquimq.cli.app import main; sys.exit(main())"
FEW = ["--jobs", "1000"]
COLUMNS_MAX = 80
RUN_S_MAX = 15
# Where others keep the machine busy, it takes its time.
DEMO_S_MAX = 120
pytestmark = pytest.mark.timeout(DEMO_S_MAX + 30)
CONTROL_BYTES = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def timed() -> tuple[subprocess.CompletedProcess[bytes], float]:
    """The whole demo, as a pipe sees it, and how long it took."""
    began_s = time.monotonic()
    done = subprocess.run(
        COMMAND, env=environment(), capture_output=True, timeout=DEMO_S_MAX, check=False
    )
    return done, time.monotonic() - began_s


@pytest.fixture(scope="module")
def piped(timed) -> subprocess.CompletedProcess[bytes]:
    return timed[0]


@pytest.fixture(scope="module")
def answer() -> dict:
    """A small demo, as a program sees it."""
    command = [*COMMAND, *FEW, "--json"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, timeout=DEMO_S_MAX, check=True
    )
    return json.loads(done.stdout)


def test_a_pipe_sees_text_without_control_bytes(piped):
    assert piped.returncode == 0
    assert piped.stderr == b""
    assert not CONTROL_BYTES.search(piped.stdout)


def test_every_line_fits_eighty_columns(piped):
    too_wide = [line for line in lines_of(piped) if len(line) > COLUMNS_MAX]

    assert too_wide == []


def test_the_report_names_pace_jobs_dlq_and_next_steps(piped):
    text = piped.stdout.decode()

    assert re.search(r"ran +20,000 jobs in [\d.]+ s: [\d,]+ jobs/s, 240 retries", text)
    assert re.search(r"all +20,000 +19,880 +240 +120", text)
    assert re.search(r"80 +import-row +unrecoverable +UnrecoverableError: no price", text)
    assert re.search(r"40 +import-row +retries_exhausted +ConnectionError: warehouse", text)
    assert "Try next" in text


def test_the_report_tells_what_became_of_the_second_half(piped):
    text = piped.stdout.decode()

    assert re.search(r"delayed +500 jobs due within 2 s: p50 [\d,]+ ms late, .* none early", text)
    assert re.search(r"repeated +count-stock fired 4 times, \d+, \d+, \d+ ms apart", text)
    assert re.search(r"results +prices of three orders.*: 1: 5.00, 2: 10.00, 3: 15.00", text)
    assert re.search(r"replayed +40 of the DLQ .*: 40 completed, 0 dead again", text)
    assert re.search(r"left +80 in the DLQ", text)
    assert re.search(r"killed +a worker with 8 jobs in hand, all of them run by another", text)


def test_it_is_over_soon(timed):
    _, took_s = timed

    assert took_s < RUN_S_MAX * patience()


def test_json_counts_every_job_once(answer):
    assert [row["name"] for row in answer["by_name"]] == [
        "charge-card", "import-row", "resize-image", "send-email",
    ]  # fmt: skip
    assert sum(row["added"] for row in answer["by_name"]) == 1_000
    assert all(row["completed"] + row["dead"] == row["added"] for row in answer["by_name"])


def test_json_says_why_jobs_are_dead(answer):
    assert {(grave["reason"], grave["jobs"]) for grave in answer["dlq"]} == {
        ("unrecoverable", 4),
        ("retries_exhausted", 2),
    }


def test_json_tells_of_delays_fires_results_and_the_replay(answer):
    assert answer["delayed"]["jobs"] == 500
    assert answer["delayed"]["early"] == 0
    assert answer["delayed"]["late_ms_p50"] <= answer["delayed"]["late_ms_p99"]
    assert answer["repeated"]["fired"] == 4
    assert len(answer["repeated"]["gaps_ms"]) == 3
    assert answer["results"] == {"1": "5.00", "2": "10.00", "3": "15.00"}
    assert answer["replayed"] == {
        "reason": "retries_exhausted", "jobs": 2, "completed": 2, "dead": 0, "left_in_dlq": 4,
    }  # fmt: skip


def test_json_tells_of_the_killed_worker_and_of_no_tables(answer):
    assert answer["killed"]["taken_over"] == 8
    assert answer["killed"]["after_ms"] >= 500
    assert answer["tables"] is None


def test_where_spark_is_missing_one_sentence_says_so_and_the_rest_is_shown(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, "demo", *FEW],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=DEMO_S_MAX, check=False,
    )  # fmt: skip

    assert done.returncode == 0
    assert done.stderr == (
        "pyspark not installed, so this is the demo without Spark; "
        "pip install 'chasquimq-py[spark]' brings the rest\n"
    )
    assert "What became of the jobs" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_sees_a_bar_that_goes_and_tables_that_fit():
    exit_code, text = run_on_a_terminal(FEW)

    shown = [ESCAPES.sub("", line).rpartition("\r")[2] for line in text.split("\r\n")]
    assert exit_code == 0
    assert "running" in text
    assert "\x1b[?25h" in text, "the cursor is shown again"
    assert [line for line in shown if len(line) > COLUMNS_MAX] == []


def test_an_interrupt_ends_it_with_130_and_no_traceback():
    exit_code, text = run_on_a_terminal(["--jobs", "1000000"], interrupt_at="adding")

    assert exit_code == 130
    assert "Traceback" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")


@pytest.mark.parametrize("moment", ["running", "later"])
def test_an_interrupt_while_jobs_run_is_clean_too(moment):
    exit_code, text = run_on_a_terminal(["--jobs", "20000"], interrupt_at=moment)

    assert exit_code == 130
    assert "Traceback" not in text


@pytest.mark.parametrize("jobs", ["0", "999", "1000001", "many"])
def test_a_number_of_jobs_out_of_range_is_wrong_usage(jobs):
    command = [*COMMAND, "--jobs", jobs]
    done = subprocess.run(
        command, env=environment(), capture_output=True, timeout=DEMO_S_MAX, check=False
    )

    assert done.returncode == 2


def run_on_a_terminal(args: list[str], interrupt_at: str | None = None) -> tuple[int, str]:
    """Run on a pty of 80 columns; `interrupt_at` sends Ctrl+C when that word has appeared."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *args],
        env=environment(TERM="xterm-256color", COLUMNS=str(COLUMNS_MAX)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    while chunk := read_chunk(ours):
        seen += chunk
        if interrupt_at and interrupt_at.encode() in seen:
            os.killpg(process.pid, signal.SIGINT)
            interrupt_at = None
    os.close(ours)
    return process.wait(30), seen.decode(errors="replace")


def read_chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        # Linux says so when the last writer of a terminal is gone.
        return b""


def environment(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    return plain | {"PYTHONPATH": str(ROOT / "src")} | more


def lines_of(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stdout.decode().splitlines()
