"""What a command refuses is said on clean lines: no password, no control byte, and the user's line."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chasquimq.cli.output.render import mask_secrets
from support.command import PROGRAM

SECRET = "canary"
# A password in a URL, a title that a terminal would take, and a line that would look like ours.
EVIL = "redis://me:canary@db:6379/0 \\x1b]0;owned\\x07 \\x9b2J\\nerror: all is well"

FAILING = f"""
def connect():
    raise RuntimeError("cannot reach {EVIL}")


connect()
"""

SPEECHLESS = """
class Odd(Exception):
    def __str__(self):
        raise ValueError("redis://me:canary@db")


raise Odd
"""

STRANGE = f"""
class Left(BaseException):
    pass


raise Left("{EVIL}")
"""

SHY = f"""
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise RuntimeError("{EVIL}")
"""

HOOKED = f"""
import os
from chasquimq import Worker


async def handle(job):
    return


async def start(worker):
    raise RuntimeError("{EVIL}")


worker = Worker("q", handle, redis_url=os.environ["CHASQUI_REDIS_URL"], on_startup=start)
"""

EVIL_FILE = f"""
raise SyntaxError("{EVIL}", ("a\\x1b[2Jfile.py", 3, 1, "redis://me:canary@db"))
"""


LOUD = f"""
import threading
import warnings


class Dropped:
    def __del__(self):
        raise RuntimeError("{EVIL}")


def fall():
    raise RuntimeError("{EVIL}")


Dropped()
warnings.warn("{EVIL}")
thread = threading.Thread(target=fall)
thread.start()
thread.join()
"""

LEAVING = """
class Odd(Exception):
    def __str__(self):
        raise SystemExit(0)


raise Odd
"""


@pytest.fixture(autouse=True)
def modules(tmp_path):
    for name, text in {
        "failing": FAILING, "speechless": SPEECHLESS, "strange": STRANGE, "shy": SHY,
        "hooked": HOOKED, "evil_file": EVIL_FILE, "loud": LOUD, "leaving": LEAVING,
    }.items():  # fmt: skip
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "outer.py").write_text("import json\n\nimport failing\n")
    (tmp_path / "library.py").write_text("import json\n\njson.loads('{')\n")


def assert_is_clean(text: str) -> None:
    assert SECRET not in text
    assert not [char for char in text if ord(char) < 32 and char != "\n"], ascii(text)
    assert not [char for char in text if 0x7F <= ord(char) < 0xA0], ascii(text)


@pytest.mark.parametrize("more", [(), ("--processes", "2"), ("--check",)], ids=["1", "2", "check"])
@pytest.mark.parametrize(
    "target", ["failing:send", "strange:send", "speechless:send", "shy:send", "evil_file:send"]
)
async def test_a_module_that_fails_to_import_gives_away_nothing(bare_program, target, more):
    said = await bare_program("worker", target, "--queue", "q", *more)
    assert said.code == 2
    assert_is_clean(said.out + said.err)
    assert "all is well" not in [
        line.removeprefix("error: ").removesuffix(".") for line in said.err.splitlines()
    ]


async def test_what_the_interpreter_tells_of_a_module_gives_away_nothing(bare_environ, tmp_path):
    ended = await asyncio.to_thread(
        subprocess.run,
        [*PROGRAM, "worker", "loud:send", "--queue", "q"],
        env=bare_environ, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert ended.returncode == 2
    assert ended.stderr.count("redis://me:***@db") >= 3
    assert_is_clean(ended.stderr)


async def test_a_module_whose_error_would_end_the_command_is_refused(bare_program):
    said = await bare_program("worker", "leaving:send", "--queue", "q")

    assert said.code == 2
    assert "importing leaving failed: Odd: (its text cannot be shown)" in said.err


async def test_spark_workers_refuse_such_a_module_in_the_same_words(bare_program):
    said = await bare_program("spark", "worker", "--handler", "failing:send", "--queue", "q")
    assert said.code == 2
    assert "importing failing failed: RuntimeError: cannot reach redis://me:***@db" in said.err
    assert_is_clean(said.err)


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ("failing:send", ["failing.py:6", "failing.py:3"]),
        ("outer:send", ["outer.py:3", "failing.py:6", "failing.py:3"]),
        ("library:send", ["library.py:3"]),
    ],
)
async def test_the_lines_of_the_users_own_files_are_named(bare_program, target, places):
    said = await bare_program("worker", target, "--queue", "q")
    (last,) = [line for line in said.err.splitlines() if line.startswith("error: ")]
    found = [last.find(place) for place in places]
    assert -1 not in found, last
    assert found == sorted(found)
    assert "importlib" not in last


async def test_a_startup_hook_that_fails_gives_away_nothing(program):
    said = await program("worker", "hooked:worker")
    assert said.code == 1
    assert "RuntimeError: redis://me:***@db" in said.err
    assert "(hooked.py:11)" in said.err
    assert_is_clean(said.err)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://me:canary@db:1/0 and more", "redis://me:***@db:1/0 and more"),
        ("redis://:canary@db", "redis://:***@db"),
        # No host: the password stands where the port should be.
        ("'redis://me:canary' is no URL", "'redis://me:***' is no URL"),
        ("rediss://me:canary/0", "rediss://me:***/0"),
        ("redis://db:6379/0, redis://db:6380;", "redis://db:6379/0, redis://db:6380;"),
        ("redis+sentinel://a:26379,b:26379/mymaster", "redis+sentinel://a:26379,b:26379/mymaster"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("k8s://https://host:443", "k8s://https://host:443"),
        ("http://127.0.0.1:9100/metrics", "http://127.0.0.1:9100/metrics"),
        ("redis://db?passwd=canary&x=1", "redis://db?passwd=***&x=1"),
        ("redis://can@ary:canary@db", "redis://***@db"),
    ],
)
def test_passwords_of_urls_are_masked_wherever_they_stand(text, masked):
    assert mask_secrets(text) == masked


@pytest.mark.parametrize(
    "piece",
    ["a://", "a.", "redis://x:", "redis+", "redis:", "?password", "&pwd", "a://b@ ", "a", "@", "1"],
)
@pytest.mark.parametrize("head", ["", "redis://", "redis://u:", "://"])
def test_a_text_is_masked_in_a_time_that_grows_with_its_length_alone(head, piece):
    text = head + piece * (1_000_000 // len(piece))
    began_s = time.process_time()

    mask_secrets(text)

    assert time.process_time() - began_s < 2


@pytest.fixture
def url_file(tmp_path, url):
    path = tmp_path / "redis.url"
    path.write_text(f"  {url}\n\n")
    path.chmod(0o600)
    return path


async def test_a_file_may_hold_the_url(bare_chasqui, url_file, queue_name):
    for words in (["add", queue_name, "send"], ["inspect", queue_name], ["metrics", queue_name]):
        said = await bare_chasqui(*words, "--redis-url-file", str(url_file))
        assert (said.code, said.err) == (0, "")


async def test_processes_of_a_fleet_have_the_url_of_the_file(
    running, url_file, tmp_path, queue, queue_name
):
    (tmp_path / "tasks.py").write_text("async def send(job):\n    return\n")
    fleet = running(
        "worker", "tasks:send", "--queue", queue_name, "--processes", "2",
        "--redis-url-file", str(url_file), CHASQUI_REDIS_URL="redis://nobody.invalid",
    )  # fmt: skip
    await fleet.until_said("consuming", 2)
    assert not [line for line in _command_lines(fleet.process.pid) if "redis" in line]
    assert await fleet.ended(signal.SIGTERM) == 0


def _command_lines(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{child}/cmdline").read_text() for child in children]


async def test_a_url_that_everybody_may_read_is_warned_of(bare_program, url_file, queue_name):
    url_file.chmod(0o644)
    said = await bare_program("add", queue_name, "send", "--redis-url-file", str(url_file))
    assert said.code == 0
    assert said.err.startswith(f"warning: every user of this machine may read {url_file}")


@pytest.mark.parametrize("held", [b"", b" \n", b"redis://a redis://b", b"\xff\xfe", b"x" * 9_000])
async def test_a_file_of_anything_else_is_refused_without_a_word_of_it(
    bare_chasqui, tmp_path, held
):
    path = tmp_path / "canary-not.url"
    path.write_bytes(held)
    said = await bare_chasqui("queues", "--redis-url-file", path.name)
    assert said.code == 2
    assert said.err.splitlines()[-2].endswith(
        f"'--redis-url-file': {path.name} must hold one URL and nothing else"
    )


async def test_a_file_that_is_not_there_is_refused_in_one_line(bare_chasqui):
    said = await bare_chasqui("queues", "--redis-url-file", "nowhere")
    assert said.code == 2
    assert "nowhere must be a file that can be read: No such file or directory" in said.err


async def test_a_url_and_a_file_are_one_server_too_many(bare_chasqui, tmp_path):
    (tmp_path / "u").write_text("redis://me:canary@a")
    said = await bare_chasqui("queues", "--redis-url-file", "u", "--redis-url", "redis://b")
    assert (said.code, SECRET in said.err) == (2, False)
    assert "name two servers; give one" in said.err


async def test_an_error_that_nobody_expected_gives_away_nothing(bare_environ, tmp_path):
    """A module of the current directory stands in for one of ours, and fails."""
    (tmp_path / "msgspec.py").write_text(f'raise RuntimeError("{EVIL}")\n')
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "chasquimq", "queues"],
        env=bare_environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "RuntimeError: redis://me:***@db:6379/0" in done.stderr
    assert 'msgspec.py", line 1' in done.stderr
    assert_is_clean(done.stderr)
