"""The command tree is quick, quiet about secrets, and ends with the code it promises."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chasquimq import version
from chasquimq.cli.app import COMMANDS, main
from chasquimq.cli.output import render
from chasquimq.server.probe import free_port

SRC = Path(__file__).parents[2] / "src"
HELP_S_MAX = 0.150
# As many times as long as an interpreter that does nothing, where the machine is busy.
HELP_STARTS_MAX = 8
TURNS_MAX = 60

WHAT_HELP_LOADS = """
import sys
from chasquimq.cli.app import main
main(["--help"])
print(sorted({name.split(".")[0] for name in sys.modules} & {"redis", "rich", "msgspec"}))
print(sorted(name for name in sys.modules if name.startswith("chasquimq.cli.")))
"""

# A program that is no server: it says that it runs, and then nothing.
SILENT_SERVER = """#!/bin/sh
echo $$ > "$PID_FILE"
exec sleep 30
"""


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("REDIS_URL")}
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as runtime_dir:
        yield kept | {"XDG_RUNTIME_DIR": runtime_dir, "PYTHONPATH": str(SRC)}


def chasqui(*args: str, environ: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chasquimq", *args],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0

    listed = capsys.readouterr().out
    assert all(f"  {name}" in listed for name in COMMANDS)
    assert all(command.help_line in listed for command in COMMANDS.values())


def test_help_imports_no_command_no_client_and_no_drawing(environ: dict[str, str], tmp_path: Path):
    answer = subprocess.run(
        [sys.executable, "-c", WHAT_HELP_LOADS],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    libraries, ours = answer.stdout.splitlines()[-2:]
    assert libraries == "[]"
    assert ours == str(
        [
            "chasquimq.cli.app",
            "chasquimq.cli.interrupts",
            "chasquimq.cli.output",
            "chasquimq.cli.output.render",
        ]
    )


def test_help_is_there_before_a_person_notices(environ: dict[str, str], tmp_path: Path):
    def once(*words: str) -> float:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *words],
            env=environ,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - began

    # Taken in turns, the quickest of each: what slows the one down slows the other down. While
    # other tests have the cores, it takes some turns to catch a quiet one.
    bare_s = help_s = float("inf")
    for _ in range(TURNS_MAX):
        bare_s, help_s = min(bare_s, once("-c", "")), min(help_s, once("-m", "chasquimq", "--help"))
        if help_s < max(HELP_S_MAX, HELP_STARTS_MAX * bare_s):
            return
    pytest.fail(f"--help took {help_s:.3f} s at best, a bare start {bare_s:.3f} s")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"chasqui {version()}\n"


def test_an_unknown_command_is_wrong_usage_with_a_suggestion(capsys: pytest.CaptureFixture[str]):
    assert main(["serve"]) == 2
    assert "Did you mean 'server'?" in capsys.readouterr().err


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["server", "start", "--no-such-option"]) == 2
    assert "error: no such option" in capsys.readouterr().err


def test_a_failure_is_one_line_and_code_1(environ: dict[str, str], tmp_path: Path):
    environ["CHASQUI_SERVER_BIN"] = "/no/such/program"

    answer = chasqui("server", "start", environ=environ, cwd=tmp_path)

    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: CHASQUI_SERVER_BIN must be")
    assert answer.stderr.count("\n") == 1


def test_a_failure_never_prints_a_password_or_a_control_byte(
    environ: dict[str, str], tmp_path: Path
):
    environ["CHASQUI_SERVER_BIN"] = "redis://user:canary/p@ss@host/\x1b[2J"

    answer = chasqui("server", "start", environ=environ, cwd=tmp_path)

    assert "canary" not in answer.stderr
    assert "ss@" not in answer.stderr
    assert "\x1b" not in answer.stderr


def test_an_interrupt_is_one_line_and_code_130(environ: dict[str, str], tmp_path: Path):
    program, pid_file = tmp_path / "silent-server", tmp_path / "pid"
    program.write_text(SILENT_SERVER)
    program.chmod(0o755)
    environ |= {"CHASQUI_SERVER_BIN": str(program), "PID_FILE": str(pid_file)}
    command = [sys.executable, "-m", "chasquimq", "server", "start"]

    with subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE) as waiting:
        while not (pid_file.exists() and pid_file.read_text()):
            assert waiting.poll() is None
            time.sleep(0.01)
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=10)

    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert waiting.returncode == 130
    assert said == b"interrupted\n"


def test_a_reader_that_leaves_is_no_failure_to_talk_about(environ: dict[str, str], tmp_path: Path):
    reading, writing = os.pipe()
    os.close(reading)

    answer = subprocess.run(
        [sys.executable, "-m", "chasquimq", "--help"],
        env=environ,
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert answer.returncode == 141
    assert answer.stderr == b""


def test_a_server_is_started_shown_and_stopped_by_command(environ: dict[str, str], tmp_path: Path):
    started = chasqui("server", "start", "--json", environ=environ, cwd=tmp_path)
    shown = chasqui("server", "status", "--json", environ=environ, cwd=tmp_path)
    again = chasqui("server", "start", environ=environ, cwd=tmp_path)
    stopped = chasqui("server", "stop", environ=environ, cwd=tmp_path)

    assert json.loads(started.stdout)["started"] is True
    assert json.loads(shown.stdout)["pid"] == json.loads(started.stdout)["pid"]
    assert again.stdout.startswith("already running: ")
    assert stopped.stdout == "stopped\n"


def test_a_server_that_commands_do_not_use_is_said_to_be_another(
    environ: dict[str, str], tmp_path: Path
):
    named = environ | {"CHASQUI_REDIS_URL": "redis://me:secret@example.org"}
    answers = [
        chasqui("server", *words, environ=named, cwd=tmp_path)
        for words in (["status"], ["status", "--json"], ["stop"])
    ]

    note = (
        "note: CHASQUI_REDIS_URL is set, so commands use redis://me:***@example.org; "
        "this is about the server of the directory\n"
    )
    assert [one.stderr for one in answers] == [note] * 3
    assert [one.returncode for one in answers] == [1, 1, 0]


def test_a_server_that_commands_use_is_not_said_to_be_another(
    environ: dict[str, str], tmp_path: Path
):
    port = free_port()
    started = chasqui(
        "server", "start", "--port", str(port), "--json", environ=environ, cwd=tmp_path
    )
    socket_url = json.loads(started.stdout)["url"]
    urls = (socket_url, f"{socket_url}?db=0", f"redis://localhost:{port}/0")
    answers = [
        chasqui("server", *words, environ=environ | {"CHASQUI_REDIS_URL": url}, cwd=tmp_path)
        for url in urls
        for words in (["start"], ["status"])
    ]
    named = environ | {"REDIS_URL": socket_url}
    answers.append(chasqui("server", "stop", environ=named, cwd=tmp_path))

    assert [(one.returncode, one.stderr) for one in answers] == [(0, "")] * 7


def test_a_server_that_does_not_run_is_code_1_in_words_and_in_json(
    environ: dict[str, str], tmp_path: Path
):
    words = chasqui("server", "status", environ=environ, cwd=tmp_path)
    as_json = chasqui("server", "status", "--json", environ=environ, cwd=tmp_path)
    stopped = chasqui("server", "stop", "--json", environ=environ, cwd=tmp_path)

    assert (words.returncode, words.stdout) == (1, "running  no\n")
    assert (as_json.returncode, json.loads(as_json.stdout)) == (1, {"running": False})
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"stopped": False})


def test_a_socket_directory_others_may_enter_is_refused_by_command(
    environ: dict[str, str], tmp_path: Path
):
    open_to_all = Path(environ["XDG_RUNTIME_DIR"]) / "chasqui"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)

    answer = chasqui("server", "start", environ=environ, cwd=tmp_path)

    assert answer.returncode == 1
    assert answer.stderr.startswith(
        f"error: the socket directory {open_to_all} must be a directory"
    )
    assert "mode 0777" in answer.stderr


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("rediss://user:secret@host:1", "rediss://user:***@host:1"),
        ("redis://user:se/c?r#e@t@host", "redis://user:***@host"),
        ("redis://secret@host", "redis://***@host"),
        ("REDISS://user:secret@host", "REDISS://user:***@host"),
        ("user:secret@host:1", "redis://user:***@host:1"),
        ("redis://user:se cret@host", "redis://user:***@host"),
        (" host ", "redis://host"),
        ("unix:///tmp/s.sock?password=secret&db=1", "unix:///tmp/s.sock?password=***&db=1"),
        ("unix://user:secret@/tmp/s.sock", "unix://user:***@/tmp/s.sock"),
    ],
)
def test_a_password_in_a_url_is_masked(url: str, masked: str):
    assert render.mask_url(url) == masked


def test_every_url_in_a_sentence_is_masked():
    masked = render.mask_secrets("tried redis://a:one@x and redis://b:two@y, gave up")

    assert masked == "tried redis://a:***@x and redis://b:***@y, gave up"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain ñ 漢字", "plain ñ 漢字"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\tand\rmore", "two\\nlines\\tand\\rmore"),
        ("\x9b2J", "\\x9b2J"),
        ("abc\u202etxt.exe", "abc\\u202etxt.exe"),
        ("\udcff", "\\udcff"),
    ],
    ids=["text", "colour", "layout", "C1", "direction", "surrogate"],
)
def test_what_a_terminal_would_obey_is_shown_instead(raw: str, shown: str):
    assert render.clean(raw) == shown


def test_rows_in_a_pipe_are_plain_and_aligned(capsys: pytest.CaptureFixture[str]):
    render.emit([{"name": "a", "jobs": 1}, {"name": "long", "jobs": None}], as_json=False)

    assert capsys.readouterr().out == "name  jobs\na     1\nlong  -\n"


def test_json_is_one_document_without_raw_controls(capsys: pytest.CaptureFixture[str]):
    rows = [{"name": "ñ"}, {"name": "\x9b2J"}]

    render.emit(rows, as_json=True)

    printed = capsys.readouterr().out
    assert json.loads(printed) == rows
    assert "\x9b" not in printed


def test_brackets_in_data_are_not_colours_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    render.emit([{"name": "[red]alert[/red]"}], as_json=False)

    assert "[red]alert[/red]" in capsys.readouterr().out
