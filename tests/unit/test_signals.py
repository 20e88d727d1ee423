"""A SIGTERM ends a command like an interrupt, whatever is made of it on the way."""

from __future__ import annotations

import os
import signal

import pytest

from chasquimq.cli.service import Terminated, ended_like_an_interrupt, raise_if_terminated


def test_it_unwinds_the_command_and_the_former_answer_is_back():
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(Terminated), ended_like_an_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is before


def test_what_it_cut_off_may_complain_in_words_of_its_own():
    with pytest.raises(Terminated), ended_like_an_interrupt():
        complain_of_the_end()


def complain_of_the_end() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        raise ValueError("the gateway is gone") from None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_python_drops_is_raised_where_the_command_looks_and_at_its_end():
    with pytest.raises(Terminated), ended_like_an_interrupt():
        die_in_a_destructor()

    seen: list[str] = []
    with pytest.raises(Terminated), ended_like_an_interrupt():
        go_on_after_it(seen)
    assert seen == ["before the look"]


def test_a_former_signal_ends_no_later_command():
    with pytest.raises(Terminated), ended_like_an_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)

    with ended_like_an_interrupt():
        raise_if_terminated()


def go_on_after_it(seen: list[str]) -> None:
    die_in_a_destructor()
    seen.append("before the look")
    raise_if_terminated()
    seen.append("behind it")


class Dying:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def die_in_a_destructor() -> None:
    Dying()


def test_an_error_without_it_stays_what_it_is():
    with pytest.raises(ValueError, match="of its own"), ended_like_an_interrupt():
        raise ValueError("of its own")
