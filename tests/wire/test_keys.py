"""The keys of a queue, name by name."""

import pytest

from chasquimq.errors import SettingsError
from chasquimq.wire.keys import QueueKeys

KEYS = QueueKeys("mail")


@pytest.mark.parametrize(
    ("attribute", "suffix"),
    [
        ("stream", "stream"),
        ("delayed", "delayed"),
        ("dlq", "dlq"),
        ("events", "events"),
        ("history", "history"),
        ("repeat", "repeat"),
        ("promoter_lock", "promoter:lock"),
        ("scheduler_lock", "scheduler:lock"),
        ("dix", "dix"),
        ("repeat_bad", "repeat:bad"),
        ("bell", "promoter:bell"),
        ("wake", "wake"),
        ("janitor_turn", "janitor:turn"),
    ],
)
def test_a_fixed_key_is_prefix_and_suffix(attribute, suffix):
    assert getattr(KEYS, attribute) == "{chasqui:mail}:" + suffix


@pytest.mark.parametrize(
    ("method", "prefix"),
    [
        ("result", "result"),
        ("outcome", "outcome"),
        ("dlid", "dlid"),
        ("didx", "didx"),
        ("uniq", "uniq"),
        ("token", "token"),
        ("repeat_spec", "repeat:spec"),
        ("claim_gate", "claim"),
    ],
)
def test_a_key_of_one_thing_ends_in_its_id_verbatim(method, prefix):
    assert getattr(KEYS, method)("a:b é") == "{chasqui:mail}:" + prefix + ":a:b é"


def test_a_refused_queue_name_makes_no_keys():
    with pytest.raises(SettingsError):
        QueueKeys("a}b")
