"""One mark for all errors that differ only in their details; these marks are kept, so they are pinned."""

from __future__ import annotations

import time

import pytest

from chasquimq.model.delivery import fingerprint, normalise

NORMAL = {
    "": "",
    "no details": "no details",
    "user 42 has 3.5 left": "user <n> has <n> left",
    "took -12 ms": "took -<n> ms",
    "key 'ada' is missing": "key <text> is missing",
    'key "ada" is missing': "key <text> is missing",
    "key `ada` is missing": "key <text> is missing",
    "got b'\\x00ab' and r'x'": "got <text> and <text>",
    "can't open 'a.txt'": "can't open <text>",
    "the user's 'a' isn't the owner's 'b'": "the user's <text> isn't the owner's <text>",
    "data['key'] of {'a': 'b'}": "data[<text>] of {<text>: <text>}",
    "job 3f2b8c9e-1a2b-4c3d-8e9f-0a1b2c3d4e5f": "job <uuid>",
    "JOB 3F2B8C9E-1A2B-4C3D-8E9F-0A1B2C3D4E5F": "JOB <uuid>",
    "job 01ARZ3NDEKTSV4RRFFQ69G5FAV is gone": "job <ulid> is gone",
    "job_01arz3ndektsv4rrffq69g5fav:7": "job_<ulid>:<n>",
    "in 81ARZ3NDEKTSV4RRFFQ69G5FAV": "in <n>ARZ<n>NDEKTSV<n>RRFFQ<n>G<n>FAV",
    "token 01ARZ3NDEKTSV4RRFFQ69G5FAVX": "token <n>ARZ<n>NDEKTSV<n>RRFFQ<n>G<n>FAVX",
    "half a digest 01234567890123456789abcdef": "half a digest <hex>",
    "<Thing object at 0x7f3a2b1c>": "<Thing object at <hex>>",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8": "commit <hex>",
    "the deadbeef cafe": "the deadbeef cafe",
    "no such file: /var/lib/app/data-1.db": "no such file: <path>",
    "no such file: C:\\Users\\ada\\x.txt": "no such file: <path>",
    "a/b is fine": "a/b is fine",
    "GET http://10.0.0.1:8080/users/5/mail": "GET http://<n>.<n>:<n><path>",
    "two\n  lines\tand tabs ": "two lines and tabs",
}


@pytest.mark.parametrize(("message", "normal"), NORMAL.items(), ids=NORMAL.values())
def test_details_are_replaced_and_words_are_kept(message, normal):
    assert normalise(message) == normal


PINNED = {
    ("ValueError", "user 42 is unknown"): "510017dc1df236f9",
    ("ValueError", ""): "a9a73ab002b86c4f",
    ("KeyError", "'ada'"): "f03c2821d91e53d7",
    ("LookupError", "no job 01ARZ3NDEKTSV4RRFFQ69G5FAV"): "df4bc698f5e229c9",
    ("HTTPError", "502 for /api/v1/mails"): "fb15a5b571ac10e1",
}


@pytest.mark.parametrize(("error", "mark"), PINNED.items(), ids=PINNED.values())
def test_marks_do_not_change_between_versions(error, mark):
    assert fingerprint(*error) == mark


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("user 42 is unknown", "user 7 is unknown"),
        ("no job 01ARZ3NDEKTSV4RRFFQ69G5FAV", "no job 01BX5ZZKBKACTAV9WEVGEMMVRZ"),
        ("can't read 'a'", "can't read 'bb cc'"),
        ("no such file: /a/b", "no such file: /c/d/e.txt"),
        ("at 0x7f00", "at 0xABCDEF"),
    ],
)
def test_errors_that_differ_in_details_share_a_mark(one, other):
    assert fingerprint("ValueError", one) == fingerprint("ValueError", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ValueError", "a"), ("TypeError", "a")),
        (("ValueError", "no user"), ("ValueError", "no mail")),
        (("A", "BC"), ("AB", "C")),
    ],
)
def test_errors_that_differ_in_kind_do_not(one, other):
    assert fingerprint(*one) != fingerprint(*other)


def test_a_mark_is_sixteen_hex_digits_whatever_the_text():
    texts = ["\ud800", "\x00" * 10, "ü🪢", "x" * 100_000]

    marks = [fingerprint(text, text) for text in texts]

    assert all(len(mark) == 16 and int(mark, 16) >= 0 for mark in marks)


@pytest.mark.parametrize(
    "hostile",
    ["'" * 5_000, "/a" * 5_000, "a" * 5_000, "0" * 5_000, "/" * 5_000, "'a" * 5_000, "0A" * 5_000],
)
def test_no_text_takes_long(hostile):
    started_s = time.process_time()

    fingerprint("E", hostile)

    assert time.process_time() - started_s < 0.2
