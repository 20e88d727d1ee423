"""Runs the command line, the tests or the gate from .venv, which is set up first when needed.

Every call comes through here, so a ready .venv costs no more than reading its stamp.
"""

from __future__ import annotations

# In the interpreter itself: `signal` would import other modules before Ctrl+C is answered.
import _signal  # pyright: ignore[reportMissingModuleSource]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def leave(_number: int, _frame: object) -> None:
    """End at Ctrl+C with one line, while nothing has begun."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def answer_with(answer: Callable[[int, FrameType | None], object]) -> None:
    """Let Ctrl+C be answered so, unless this process was told to ignore it."""
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, answer)


if __name__ == "__main__":
    answer_with(leave)
    # The stub blocks it while this interpreter starts.
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGINT})

from stamps import PINS, RELEASE, is_ready, venv_python  # noqa: E402  when Ctrl+C is answered

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TESTER_COMMANDS = ("test", "gate", "setup")
SPARK_COMMANDS = ("demo", "pipeline", "spark")
SQL_DLQ_WORDS = {"--where", "--lake", "outcome"}
SQL_PIPELINE_COMMANDS = ("check", "compact", "sql", "status")
# With these nothing of Spark is needed, which takes minutes to fetch.
LIGHT_OPTIONS = ("--quick", "--no-spark", "--help", "-h")
# These may stand before the command, too.
SHARED_OPTIONS_WITH_VALUE = ("--redis-url", "--redis-url-file", "--log-level")
SHARED_OPTIONS = (*SHARED_OPTIONS_WITH_VALUE, "--json")
# What an earlier run left to look at again is not of this one.
PARALLEL_TESTS = ("-n", "4", "--cache-clear")
# Four tests share two cores: one that fails there gets a second look, alone. Not a heap of them.
SECOND_LOOKS_MAX = 5
SECOND_LOOK = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")
SOME_FAILED = 1
IMPORT_LINTER = "from importlinter.cli import lint_imports_command as lint; lint()"
GATE = (
    ("lint", ("-m", "ruff", "check", ".")),
    ("format", ("-m", "ruff", "format", "--check", ".")),
    ("types", ("-m", "basedpyright")),
    ("rooms", ("-c", IMPORT_LINTER)),
    ("pages", ("tools/build_site.py",)),
)


def main(argv: list[str]) -> int:
    command, rest = command_of(argv)
    if command == "setup" and rest and (len(rest) > 1 or rest[0] not in (*PINS, RELEASE)):
        levels = ", ".join((*PINS, RELEASE))
        print(f"error: setup takes one of {levels}, got {' '.join(rest)}", file=sys.stderr)
        return 2
    level = level_of(command, rest)
    if not is_ready(ROOT, level, current_version()):
        exit_code = set_up(level)
        if exit_code == 1 and command == "demo":
            # The demo can do without, and says so.
            exit_code = set_up("run")
        if exit_code:
            return exit_code
    if command == "test":
        return run_tests(rest)
    if command == "gate":
        return run_gate()
    if command == "setup":
        return 0
    # It waits, blocked, until the program can answer it.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGINT})
    # Without -P a click.py in the caller's directory would be imported instead of the real one.
    return become(["-P", "-m", "chasquimq", *argv])


def command_of(argv: list[str]) -> tuple[str, list[str]]:
    """The name of the command, and what is behind it."""
    at = 0
    while at < len(argv) and argv[at].partition("=")[0] in SHARED_OPTIONS:
        at += 2 if argv[at] in SHARED_OPTIONS_WITH_VALUE else 1
    return (argv[at], argv[at + 1 :]) if at < len(argv) else ("", [])


def level_of(command: str, rest: list[str]) -> str:
    """What must be installed for a command."""
    if command == "setup" and rest:
        return rest[0]
    if command in TESTER_COMMANDS:
        return "test"
    if any(option in rest for option in LIGHT_OPTIONS):
        return "run"
    if is_sql(command, rest):
        return "sql"
    return "spark" if command in SPARK_COMMANDS else "run"


def is_sql(command: str, rest: list[str]) -> bool:
    """Whether DuckDB and the tables are needed, and no Spark."""
    if command == "dlq":
        words = {word.partition("=")[0] for word in rest}
        return bool(words & SQL_DLQ_WORDS)
    return command == "pipeline" and bool(rest) and rest[0] in SQL_PIPELINE_COMMANDS


def current_version() -> str:
    return "{}.{}".format(*sys.version_info)


def set_up(level: str) -> int:
    from environment import SetUpFailed, prepare

    # What was begun must be put right before it ends.
    answer_with(_signal.default_int_handler)
    try:
        prepare(ROOT, level)
    except SetUpFailed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: set-up is not done; run the same command again", file=sys.stderr)
        return 130
    finally:
        answer_with(leave)
    return 0


def run_tests(args: list[str]) -> int:
    os.chdir(ROOT)
    wait_for_children()
    if args:
        return become(["-P", "-m", "pytest", *args])
    exit_code = run_pytest(PARALLEL_TESTS)
    failed = failed_tests() if exit_code == SOME_FAILED else []
    if not 0 < len(failed) <= SECOND_LOOKS_MAX:
        return exit_code
    print("── failed beside others, run again alone:", *failed, sep="\n   ", flush=True)
    exit_code = run_pytest(SECOND_LOOK)
    tell_second_look(failed, failed_tests() if exit_code else [])
    return exit_code


def tell_second_look(failed: list[str], failed_again: list[str]) -> None:
    """Name these tests where nobody overlooks them: in the last lines of the run."""
    passed = [name for name in failed if name not in failed_again]
    if passed:
        print(
            f"── PASSED ONLY ALONE ({len(passed)}): a test must pass beside others, too; find out"
        )
        print("── what it waits for, or what it shares with others:", *passed, sep="\n   ")
    if failed_again:
        print(f"── FAILED TWICE ({len(failed_again)}):", *failed_again, sep="\n   ", flush=True)


def wait_for_children() -> None:
    """Ctrl+C is heard by the programs that are run, and each ends as it likes."""
    answer_with(lambda _number, _frame: None)


def run_pytest(args: tuple[str, ...]) -> int:
    import subprocess

    return subprocess.run([venv_python(ROOT), "-P", "-m", "pytest", *args], check=False).returncode


def failed_tests() -> list[str]:
    """What pytest keeps of the tests that failed in its last run."""
    import json

    try:
        with open(os.path.join(ROOT, ".pytest_cache", "v", "cache", "lastfailed")) as kept:
            return sorted(json.load(kept))
    except FileNotFoundError:
        return []


def run_gate() -> int:
    """Run every check, also after one failed, so that one run tells all."""
    import subprocess

    os.chdir(ROOT)
    wait_for_children()
    failed: list[str] = []
    for title, args in GATE:
        print(f"── {title}", flush=True)
        if subprocess.run([venv_python(ROOT), *args], check=False).returncode:
            failed.append(title)
    if failed:
        print(f"error: the gate is closed: {', '.join(failed)} failed", file=sys.stderr)
    return 1 if failed else 0


def become(args: list[str]) -> int:
    """Replace this process, so that signals and the exit code belong to the real program."""
    python = venv_python(ROOT)
    os.execv(python, [python, *args])  # noqa: S606  a list we built, and no shell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
