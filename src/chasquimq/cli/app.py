"""The command tree: finds a command by name, runs it, and turns its end into an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of our output left.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

import click

from chasquimq.cli import interrupts
from chasquimq.cli.output.render import error_text, shown, talk
from chasquimq.errors import EXIT_FAILED, ChasquiError, NotSupportedError, ServerUnreachable

PROGRAM = "chasqui"
EXIT_BROKEN_PIPE = 141
COMPLETION_VARIABLE = "_CHASQUI_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


# Of these a stream says no more than that; files are written by those who name them.
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


# Options that nearly every command has, and whether a value follows them.
_SERVER_OPTIONS = ("--redis-url", "--redis-url-file")
_SHARED_OPTIONS: Mapping[str, bool] = {
    **dict.fromkeys(_SERVER_OPTIONS, True), "--log-level": True, "--json": False,
}  # fmt: skip


class LazyCommand(NamedTuple):
    """Where a command lives, and the line that `--help` shows without importing it."""

    target: str
    help_line: str


COMMANDS: Mapping[str, LazyCommand] = {
    "add": LazyCommand("chasquimq.cli.commands.add:add", "Add a job."),
    "bench": LazyCommand(
        "chasquimq.cli.commands.bench:bench", "Measure this queue beside its peers."
    ),
    "completion": LazyCommand("chasquimq.cli.app:completion", "Teach your shell these commands."),
    "delayed": LazyCommand(
        "chasquimq.cli.commands.delayed:delayed", "List or cancel delayed jobs."
    ),
    "drain": LazyCommand(
        "chasquimq.cli.commands.drain:drain", "Empty a queue of the jobs that wait."
    ),
    "demo": LazyCommand("chasquimq.cli.demo:demo", "Watch jobs run, with nothing to set up."),
    "dlq": LazyCommand("chasquimq.cli.dlq:dlq", "Look at dead jobs, replay, edit or purge them."),
    "doctor": LazyCommand(
        "chasquimq.cli.commands.doctor:doctor", "Find what is wrong, and what to do."
    ),
    "events": LazyCommand(
        "chasquimq.cli.commands.events:events", "Follow what happens on a queue."
    ),
    "group": LazyCommand("chasquimq.cli.commands.group:group", "List or remove consumer groups."),
    "inspect": LazyCommand(
        "chasquimq.cli.commands.inspect:inspect", "Show how much of a queue is where."
    ),
    "job": LazyCommand("chasquimq.cli.commands.job:job", "Show one job."),
    "metrics": LazyCommand(
        "chasquimq.cli.commands.metrics:metrics", "Print or serve depths for Prometheus."
    ),
    "pipeline": LazyCommand(
        "chasquimq.cli.pipeline:pipeline", "Keep a history in tables, and ask them."
    ),
    "queues": LazyCommand("chasquimq.cli.commands.inspect:queues", "List all queues."),
    "repeatable": LazyCommand(
        "chasquimq.cli.commands.repeatable:repeatable", "List, run or remove repeatable jobs."
    ),
    "server": LazyCommand(
        "chasquimq.cli.commands.server:server", "Start, stop or show a server of your own."
    ),
    "spark": LazyCommand("chasquimq.cli.spark:spark", "Fill queues from tables with Spark."),
    "upkeep": LazyCommand(
        "chasquimq.cli.commands.upkeep:upkeep", "Promote and fire jobs where no worker runs."
    ),
    "watch": LazyCommand("chasquimq.cli.commands.watch:watch", "Watch a queue change."),
    "worker": LazyCommand("chasquimq.cli.worker:worker", "Run jobs with a handler of yours."),
    "workers": LazyCommand("chasquimq.cli.commands.workers:workers", "List who works on a queue."),
}


class Group(click.Group):
    """A group that takes the options of every command before the command's name, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, behind_the_name(args))


class LazyGroup(Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        return load_command(self.lazy[cmd_name].target)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name].help_line) for name in sorted(self.lazy)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Known names are enough for a suggestion; importing every command is not.
        self.commands = {name: click.Command(name) for name in self.lazy}
        return super().resolve_command(ctx, args)


def behind_the_name(args: list[str]) -> list[str]:
    """The words of a command line with shared options behind the name of the command.

    What is given behind the name already is given last, and wins.
    """
    given: list[list[str]] = []
    rest = list(args)
    while rest and (option := rest[0].partition("=")[0]) in _SHARED_OPTIONS:
        has_value_apart = _SHARED_OPTIONS[option] and "=" not in rest[0]
        size = 2 if has_value_apart else 1
        given.append(rest[:size])
        rest = rest[size:]
    if not given or not rest or rest[0].startswith("-"):
        # Without a command they have no meaning; --help is still shown.
        return rest
    if _names_server(rest):
        given = [one for one in given if not _names_server(one)]
    elif (named := [one for one in given if _names_server(one)]) and len(named) > 1:
        given = [one for one in given if not _names_server(one) or one is named[-1]]
    return [rest[0], *(word for one in given for word in one), *rest[1:]]


def _names_server(words: Sequence[str]) -> bool:
    before_data = words[: words.index("--")] if "--" in words else words
    return any(word.partition("=")[0] in _SERVER_OPTIONS for word in before_data)


def load_command(target: str) -> click.Command:
    """Import `module:attribute`; a missing package becomes a sentence."""
    module, _, attribute = target.partition(":")
    try:
        command = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        raise NotSupportedError(
            f"this command needs the module {missing.name}, which is not installed; "
            "install the extra that brings it"
        ) from missing
    assert isinstance(command, click.Command), f"{target} must be a command"
    return command


def show_version(ctx: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted:
        return
    from chasquimq import version

    click.echo(f"{PROGRAM} {version()}")
    ctx.exit()


@click.command(
    PROGRAM,
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. --redis-url, "
        "--redis-url-file, --json and --log-level may stand before or after the command's name; "
        "the later one wins."
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def chasqui() -> None:
    """Run and look after job queues on Redis or Valkey."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    \b
    bash: eval "$(chasqui completion bash)"
    zsh:  eval "$(chasqui completion zsh)"
    fish: chasqui completion fish > ~/.config/fish/completions/chasqui.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "the choice offers only shells that are known"
    script = kind(chasqui, {}, PROGRAM, COMPLETION_VARIABLE)
    click.echo(script.source_template % script.source_vars())


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and answer its exit code."""
    if args is None:
        _open_closed_streams()
        _hook_words_of_others()
    try:
        with interrupts.Unwinding():
            exit_code = _run(sys.argv[1:] if args is None else list(args))
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _report_unwritten(error)
    except KeyboardInterrupt:
        return _report_interrupted()
    except (click.ClickException, click.Abort, ChasquiError) as failed:
        return report_failure(failed)
    return exit_code


def report_failure(failed: click.ClickException | click.Abort | ChasquiError) -> int:
    """Say on stderr why a command failed, and answer its exit code: the only way to say so."""
    if isinstance(failed, click.ClickException):
        return _refuse(failed)
    if isinstance(failed, click.Abort):
        talk("error: aborted")
        return EXIT_FAILED
    talk(f"error: {failed}{_why_this_server(failed)}")
    return failed.exit_code


def _why_this_server(failed: ChasquiError) -> str:
    """Where the address of a server that does not answer came from, unless it was given."""
    choice = sys.modules.get("chasquimq.cli.context")
    found = choice.chosen if choice is not None and isinstance(failed, ServerUnreachable) else ()
    return (
        f" (this server because {found[0].reason})"
        if found and (found[0].variable or found[0].is_project)
        else ""
    )


def _report_interrupted() -> int:
    if not interrupts.is_said():
        interrupts.mark_said()
        click.echo(shown(interrupts.line()), err=True)
    return interrupts.EXIT_INTERRUPTED


def _run(args: list[str]) -> int:
    if COMPLETION_VARIABLE in os.environ:
        chasqui.main(args, prog_name=PROGRAM)
    try:
        with chasqui.make_context(PROGRAM, args) as ctx, _without_log():
            answer: object = chasqui.invoke(ctx)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return answer if isinstance(answer, int) else 0


@contextmanager
def _without_log() -> Generator[None]:
    """Keep Python from writing warnings of ours to stderr: a command says in its answer what it met.

    Commands that keep a log set up a handler of their own, which gets them all the same.
    """
    import logging  # late: `--help` and `--version` need none

    silent = logging.NullHandler()
    logger = logging.getLogger("chasquimq")
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)


def _refuse(refused: click.ClickException) -> int:
    if type(refused).__name__ == "NoArgsIsHelpError":  # older versions of click have no such class
        refused.show()
        return refused.exit_code
    # It quotes what was typed, which may drive a terminal or hold a password; `talk` sees to that.
    talk(f"error: {refusal_text(refused)}")
    ctx = refused.ctx if isinstance(refused, click.UsageError) else None
    if ctx is not None:
        talk(f"hint: {ctx.command_path} --help shows what it takes")
    return refused.exit_code


def refusal_text(refused: click.ClickException) -> str:
    """What click has to say, as all our refusals begin and end: in lower case, without a stop."""
    said = " ".join(refused.format_message().split())
    is_word = said[1:2].islower() or said[1:2] in ("", " ")
    return (said[:1].lower() + said[1:] if is_word else said).removesuffix(".")


def _open_closed_streams() -> None:
    """Let no other file have the numbers of streams that the shell closed, as a socket would."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _hook_words_of_others() -> None:
    """Show with our care what the interpreter would show by itself, word for word."""
    sys.excepthook = _report_bug
    sys.unraisablehook = _report_unraisable
    threading.excepthook = _report_thread
    warnings.showwarning = _report_warning


def _report_unraisable(ignored: sys.UnraisableHookArgs) -> None:
    """An error that cannot be caught, as one in `__del__`."""
    if interrupts.has_come():
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            interrupts.raise_again_soon()
        return
    error = ignored.exc_value
    error_words = ignored.exc_type.__name__ if error is None else error_text(error)
    talk(f"warning: {ignored.err_msg or 'an exception was ignored'}: {error_words}")


def _report_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        _report_bug(ended.exc_type, ended.exc_value, ended.exc_traceback)


def _report_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Without the line of source, which may hold what the message leaves out."""
    if interrupts.has_come():
        return
    talk(f"{filename}:{lineno}: {category.__name__}: {message}")


def _report_bug(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an unexpected error with its stack; the text of an error may quote a password."""
    for line in "".join(traceback.format_exception(kind, error, trace)).splitlines():
        click.echo(shown(line), err=True)


def _report_unwritten(error: OSError) -> int:
    """Say that our output was not written; an error about anything else is raised again."""
    if error.errno not in _UNWRITTEN or error.filename is not None:
        raise error
    _silence_stdout()
    talk(f"error: the output must be written and was not: {error.strerror}")
    return EXIT_FAILED


def _silence_stdout() -> None:
    # The interpreter flushes once more on its way out; it must not meet the broken pipe again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
