"""What `chasqui worker` runs: found by `module:attribute`, refused in one sentence."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from chasquimq.cli.render import mask_secrets
from chasquimq.errors import SettingsError

if TYPE_CHECKING:
    from chasquimq.worker import Worker

# By the name that an error has for it.
OPTIONS = {
    "queue name": "--queue",
    "group name": "--group",
    "claim_min_idle_ms": "--lease",
    "shutdown_deadline_ms": "--deadline",
    "concurrency": "--concurrency",
    "max_attempts": "--max-attempts",
}
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
    if not (callable(found) or isinstance(found, Mapping) or is_worker(found)):
        raise refusal(f"{target} must be {RULE}, found {type(found).__name__}")
    return cast("Any", found)


def is_worker(found: object) -> bool:
    """Whether it brings its queue and its settings."""
    from chasquimq.worker import Worker

    return isinstance(found, Worker)


def tell_server(worker: Worker, redis_url: str) -> None:
    """Let a Worker dial what `--redis-url` says; one that names another server is wrong usage."""
    try:
        worker.use_server(redis_url)
    except SettingsError as refused:
        raise refusal(mask_secrets(str(refused)), of="--redis-url") from None


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
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's module may raise anything
        raise _failed(name, error) from None


def _failed(name: str, error: BaseException) -> click.BadParameter:
    what = f"{type(error).__name__}: {error}"
    return refusal(f"importing {name} failed: {what} ({_place(error)})")


def _place(error: BaseException) -> str:
    """Where in the user's code it happened."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
