"""A SIGTERM ends a command like an interrupt, whatever is made of it on the way."""

from __future__ import annotations

import os
import signal

import pytest

from chasquimq.cli.signals import Terminated, ended_like_an_interrupt


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


def test_an_error_without_it_stays_what_it_is():
    with pytest.raises(ValueError, match="of its own"), ended_like_an_interrupt():
        raise ValueError("of its own")
