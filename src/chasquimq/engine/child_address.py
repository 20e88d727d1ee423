"""Says where a handler lives, and finds it again in a fresh interpreter."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from chasquimq.engine.child_frames import HandlerAddress
from chasquimq.errors import SettingsError

ANY_NAME = ""
SCRIPT_MODULE = "__chasqui_script__"

Handler: TypeAlias = Callable[[Any], Any]

# The second is what multiprocessing calls the script in its own children.
_MAIN_MODULES = ("__main__", "__mp_main__")
_REMEDY = 'define it with `def` at the top level of a module, or use pool="thread"'


def addresses_of(handlers: Mapping[str, Handler] | Handler) -> dict[str, HandlerAddress]:
    """The address of each handler by job name; a lone handler answers to any name."""
    if callable(handlers):
        return {ANY_NAME: address_of(handlers, "handler")}
    return {name: address_of(one, f"handlers[{name!r}]") for name, one in handlers.items()}


def address_of(handler: Handler, setting: str) -> HandlerAddress:
    """The address of a handler; SettingsError when a fresh interpreter could not reach it."""
    module_name = getattr(handler, "__module__", None)
    qualname = getattr(handler, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(qualname, str):
        raise _refusal(setting, repr(handler))
    module = sys.modules.get(module_name)
    if module is None or not _is_or_wraps(_find(module, qualname), handler):
        raise _refusal(setting, f"{module_name}:{qualname}")
    if module_name in _MAIN_MODULES:
        return _address_in_main(module, qualname, setting)
    if getattr(module, "__spec__", None) is None:
        raise _refusal(setting, f"{module_name}:{qualname}")
    return HandlerAddress(module_name, qualname)


def load(address: HandlerAddress) -> Handler:
    """Import the module of an address and return its handler."""
    module = _load_script(address.path) if address.path else _import(address.module)
    return reduce(getattr, address.qualname.split("."), module)


def _refusal(setting: str, found: str) -> SettingsError:
    return SettingsError(setting, found, "a function that can be imported by name", hint=_REMEDY)


def _is_or_wraps(found: object, handler: Handler) -> bool:
    """Whether calling what was found runs this handler: a wrapper may have taken its name."""
    return found == handler or getattr(found, "__wrapped__", None) is handler


def _find(module: ModuleType, qualname: str) -> object:
    try:
        return reduce(getattr, qualname.split("."), module)
    except AttributeError:
        return None


def _address_in_main(main: ModuleType, qualname: str, setting: str) -> HandlerAddress:
    spec = getattr(main, "__spec__", None)
    # `python -m package.module` knows its real name; a script has only its path.
    if spec is not None and spec.name not in _MAIN_MODULES:
        return HandlerAddress(spec.name, qualname)
    path = getattr(main, "__file__", None)
    if path is None or not Path(path).is_file():
        raise _refusal(setting, f"__main__:{qualname}")
    return HandlerAddress("__main__", qualname, str(Path(path).absolute()))


def _import(module_name: str) -> Any:
    return importlib.import_module(module_name)


def _load_script(path: str) -> Any:
    if SCRIPT_MODULE in sys.modules:
        return sys.modules[SCRIPT_MODULE]
    # A script need not end in `.py`, so the loader is named instead of guessed.
    loader = SourceFileLoader(SCRIPT_MODULE, path)
    spec = importlib.util.spec_from_file_location(SCRIPT_MODULE, path, loader=loader)
    assert spec is not None, "a spec with a named loader is always made"
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints look their module up while it is still being executed.
    sys.modules[SCRIPT_MODULE] = module
    loader.exec_module(module)
    return module
