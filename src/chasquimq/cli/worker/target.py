"""What `chasqui worker` runs: found by `module:attribute`, refused in one sentence."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from chasquimq.cli.output.render import error_text
from chasquimq.errors import SettingsError

if TYPE_CHECKING:
    from chasquimq.worker.worker import Worker

# By the name that an error, or Worker, has for it.
OPTIONS = {
    "queue name": "--queue",
    "queue_name": "--queue",
    "group name": "--group",
    "group": "--group",
    "claim_min_idle_ms": "--lease",
    "shutdown_deadline_ms": "--deadline",
    "concurrency": "--concurrency",
    "max_attempts": "--max-attempts",
    "pool": "--pool",
    "store_results": "--store-results",
    "tracing": "--tracing",
}
# What is about the process and not about jobs, so that a Worker takes it, too.
PROCESS_OPTIONS = ("shutdown_deadline_ms", "tracing")
PACKAGE = Path(__file__).parents[2]
PLACES_MAX = 3
RULE = "a function, a dict of functions by job name, or a Worker"


def load_target(target: str) -> Any:
    """Import the attribute and check that it can be run; the current directory comes first."""
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise refusal(f"{target!r} must be module:attribute, as in tasks:send_email")
    module = _import(module_name)
    try:
        found: object = attrgetter(attribute)(module)
    except AttributeError:
        raise refusal(f"the module {module_name} has no {attribute!r}") from None
    except Exception as error:  # noqa: BLE001  a module's `__getattr__` may raise anything
        raise refusal(f"{target} cannot be had: {failure_text(error)}") from None
    if not (callable(found) or isinstance(found, Mapping) or is_worker(found)):
        raise refusal(f"{target} must be {RULE}, found {type(found).__name__}")
    return cast("Any", found)


def is_worker(found: object) -> bool:
    """Whether it brings its queue and its settings."""
    from chasquimq.worker.worker import Worker

    return isinstance(found, Worker)


def tell_server(worker: Worker, redis_url: str, reason: str = "its URL was given") -> None:
    """Let a Worker dial what `--redis-url` says; one that names another server is wrong usage."""
    try:
        worker.use_server(redis_url, reason=reason)
    except SettingsError as refused:
        raise refusal(str(refused), of="--redis-url") from None


def take_process_options(
    worker: Worker,
    target: str,
    options: Mapping[str, Any],
    *,
    of: str = "MODULE:ATTRIBUTE",
    **more: Any,
) -> None:
    """Give a Worker what is about the process; an option about jobs is wrong usage."""
    given = dict(options)
    process = {name: given.pop(name) for name in PROCESS_OPTIONS if name in given}
    if given.get("queue_name") == worker.name:
        del given["queue_name"]
    if given:
        raise refusal(
            f"{target} is a Worker with settings of its own, so {_flags(given)} cannot be given "
            f"here; leave {'it' if len(given) == 1 else 'them'} out, or set "
            f"{'it' if len(given) == 1 else 'them'} where the Worker is made",
            of=of,
        )
    try:
        worker.use_process_options(**process, **more)
    except SettingsError as refused:
        raise setting_refusal(refused, target=of) from None


def _flags(given: Mapping[str, Any]) -> str:
    """The options as they are typed; a queue with its name, as it may be the wrong one."""
    flags = [
        f"--queue {value}" if name == "queue_name" else OPTIONS[name]
        for name, value in given.items()
    ]
    return " and ".join([", ".join(flags[:-1]), flags[-1]] if len(flags) > 1 else flags)


def refusal(why: str, *, of: str = "MODULE:ATTRIBUTE") -> click.BadParameter:
    """Wrong usage, in one line."""
    return click.BadParameter(" ".join(why.split()), param_hint=f"'{of}'")


def setting_refusal(refused: SettingsError, *, target: str) -> click.BadParameter:
    """The same for what a Worker refused: blames the option that set it, else the target."""
    return refusal(str(refused), of=OPTIONS.get(refused.name, target))


def _import(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise refusal(f"there is no module {missing.name!r} here or on PYTHONPATH") from None
        raise _failed(name, missing) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a user's module may raise anything
        raise _failed(name, error) from None


def _failed(name: str, error: BaseException) -> click.BadParameter:
    return refusal(f"importing {name} failed: {failure_text(error)}")


def failure_text(error: BaseException) -> str:
    """An error of a user's code, and the lines of their own files that led to it."""
    places = [f"{_near(frame.filename)}:{frame.lineno}" for frame in _own_frames(error)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append(f"{_near(error.filename)}:{error.lineno}")
    shown = dict.fromkeys(places[-PLACES_MAX:])
    return f"{error_text(error)} ({' > '.join(shown)})" if shown else error_text(error)


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    paths = sysconfig.get_paths()
    foreign = ("<", str(PACKAGE), *(paths[name] for name in ("stdlib", "purelib", "platlib")))
    own = [one for one in frames if _is_own(one.filename, foreign)]
    # Handlers may be installed like any package.
    return own or list(frames[-1:])


def _is_own(filename: str, foreign: tuple[str, ...]) -> bool:
    # Compiled modules name their sources by a path of the machine that compiled them.
    return filename.startswith("/") and not filename.startswith(foreign)


def _near(filename: str) -> str:
    """The path from here, where it is in this directory."""
    return filename.removeprefix(f"{Path.cwd()}/")
