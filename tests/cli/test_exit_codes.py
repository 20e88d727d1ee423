"""An error says with which exit code a command ends that it stops."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import click
import pytest

import chasquimq
from chasquimq import errors
from chasquimq.cli.app import report_failure
from chasquimq.errors import ChasquiError, PreconditionFailed, SettingsError


def error_classes() -> Iterator[type[ChasquiError]]:
    """The whole tree, with the classes that modules of ours add to it."""
    for module in walk_packages(chasquimq.__path__, "chasquimq."):
        if ".cli." in module.name and ".spark" not in module.name:
            import_module(module.name)
    waiting: list[type[ChasquiError]] = [ChasquiError]
    while waiting:
        found = waiting.pop()
        waiting += found.__subclasses__()
        if found.__module__.startswith("chasquimq."):
            yield found


CLASSES = sorted(set(error_classes()), key=lambda one: one.__name__)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_ends_a_command_with_the_exit_code_of_its_class(kind, capsys):
    is_wrong_usage = issubclass(kind, SettingsError) and not issubclass(kind, PreconditionFailed)

    assert kind.exit_code == (2 if is_wrong_usage else 1)
    assert report_failure(kind.__new__(kind)) == kind.exit_code
    assert capsys.readouterr().err.startswith("error: ")


def test_errors_py_alone_says_which_exit_code_an_error_has():
    setting = {kind for kind in CLASSES if "exit_code" in vars(kind)}

    assert setting == {ChasquiError, SettingsError, PreconditionFailed}
    assert {inspect.getmodule(kind) for kind in setting} == {errors}


def test_a_question_answered_with_no_is_a_failure_and_wrong_usage_is_not(capsys):
    assert report_failure(click.Abort()) == 1
    assert report_failure(click.UsageError("no such option")) == 2
    assert capsys.readouterr().err == "error: aborted\nerror: no such option\n"
