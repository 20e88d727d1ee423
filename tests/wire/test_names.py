"""Names and ids: what may enter a key or an entry."""

import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.wire.keys import (
    check_group_name,
    check_job_id,
    check_job_name,
    check_queue_name,
    check_spec_key,
)

CHECKS = [check_queue_name, check_group_name, check_job_id, check_job_name, check_spec_key]
KEY_PARTS = [check_queue_name, check_group_name]


class Name(str, enum.Enum):  # noqa: UP042  prints as its member, is its text
    MAIL = "send-email"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["a", "send-email", "заказ", "größe:7/8", "🚀.x_y"])
def test_a_good_name_is_returned(check, name):
    assert check(name) == name


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", [None, 5, b"name", ["a"]], ids=["none", "int", "bytes", "list"])
def test_a_name_that_is_no_string_is_refused(check, name):
    with pytest.raises(SettingsError, match="must be a string"):
        check(name)


@pytest.mark.parametrize("check", CHECKS)
def test_a_lone_surrogate_is_refused(check):
    with pytest.raises(SettingsError, match="lone surrogates"):
        check("a\ud800")


@pytest.mark.parametrize("check", CHECKS)
def test_a_str_enum_is_returned_as_its_text(check):
    checked = check(Name.MAIL)

    assert type(checked) is str
    assert checked == "send-email"


@pytest.mark.parametrize("check", KEY_PARTS)
@pytest.mark.parametrize(
    "char", list("{}*?[]\\ \t\n\r\x00\x1f\x7f\x85\u00a0\u2028\u3000"), ids=ascii
)
def test_a_key_part_holds_no_braces_globs_blanks_or_control_characters(check, char):
    with pytest.raises(SettingsError, match="free of white space"):
        check(f"a{char}b")


@pytest.mark.parametrize("check", KEY_PARTS)
def test_an_empty_key_part_is_refused(check):
    with pytest.raises(SettingsError, match="1 to 128 bytes"):
        check("")


@pytest.mark.parametrize("check", [check_job_id, check_spec_key])
@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u3000"], ids=ascii)
def test_a_blank_id_is_refused(check, name):
    with pytest.raises(SettingsError, match="not blank"):
        check(name)


def test_an_empty_job_name_means_no_name():
    assert check_job_name("") == ""


@pytest.mark.parametrize(
    ("check", "bytes_max"),
    [
        (check_queue_name, 128),
        (check_group_name, 128),
        (check_job_id, 256),
        (check_job_name, 256),
        (check_spec_key, 1024),
    ],
)
@pytest.mark.parametrize("char", ["x", "é", "🚀"])
def test_the_limit_counts_bytes_and_is_inclusive(check, bytes_max, char):
    longest = char * (bytes_max // len(char.encode()))

    assert check(longest) == longest
    with pytest.raises(LimitExceeded, match=f"at most {bytes_max} bytes"):
        check(longest + char)


@pytest.mark.parametrize("job_id", ["order:42", "a/b", "id-é", "{x}", "a b", "*"])
def test_a_job_id_may_hold_what_a_queue_name_may_not(job_id):
    assert check_job_id(job_id) == job_id


@given(st.text(max_size=40))
def test_a_checked_queue_name_never_breaks_the_hash_tag(name):
    try:
        checked = check_queue_name(name)
    except SettingsError:
        return
    assert checked == name
    assert not set(checked) & set("{}*?[]\\")
    assert checked.split() == [checked]
