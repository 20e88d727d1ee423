"""A user with few rights hears which one is missing and what grants it, from every command."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

PASSWORD = "canary"
# As docs/how-to/connect-securely.md gives them.
ENOUGH = ("+@read", "+@write", "+@connection", "+@scripting", "+time")


@pytest.fixture
async def limited(raw, queue_name, url):
    """The URL of a user that has these rights, and no others; gone after the test."""

    async def make(*rights: str) -> str:
        await raw("ACL", "SETUSER", queue_name, "reset", "on", f">{PASSWORD}", *rights)
        parts = urlsplit(url)
        return parts._replace(netloc=f"{queue_name}:{PASSWORD}@{parts.netloc}").geturl()

    yield make
    await raw("ACL", "DELUSER", queue_name)


@pytest.fixture
def fence(raw) -> str:
    return f"~{raw.keys.stream.removesuffix('stream')}*"


@pytest.mark.parametrize(
    "words",
    [
        ("add", "QUEUE", "n"),
        ("delayed", "list", "QUEUE"),
        ("dlq", "peek", "QUEUE"),
        ("dlq", "replay", "QUEUE", "--yes"),
        ("inspect", "QUEUE"),
        ("metrics", "QUEUE"),
        ("repeatable", "list", "QUEUE"),
        ("repeatable", "quarantined", "QUEUE"),
        ("watch", "QUEUE", "--count", "1"),
        ("workers", "QUEUE"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
async def test_the_rights_of_the_page_are_enough(chasqui, limited, fence, queue, queue_name, words):
    await queue.add("n", 1)
    url = await limited(fence, *ENOUGH)

    said = await chasqui(*_of(queue_name, words), CHASQUI_REDIS_URL=url)

    assert said.code == 0, said.err


async def test_a_right_that_is_missing_is_one_line_that_grants_it(
    chasqui, limited, fence, queue, queue_name
):
    await queue.add("n", 1)
    url = await limited(fence, *ENOUGH, "-xlen")

    said = await chasqui("inspect", queue_name, CHASQUI_REDIS_URL=url)

    assert (said.code, said.out) == (1, "")
    assert said.err == (
        f"error: the user '{queue_name}' must be allowed to run XLEN and is not (NOPERM); "
        f"grant it with ACL SETUSER {queue_name} +xlen\n"
    )


async def test_a_user_of_other_keys_is_told_which_to_grant(chasqui, limited, queue, queue_name):
    await queue.add("n", 1)
    url = await limited("~other", *ENOUGH)

    said = await chasqui("inspect", queue_name, CHASQUI_REDIS_URL=url)

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: this user must be allowed to use the keys of the queue")
    assert len(said.err.splitlines()) == 1


async def test_the_doctor_says_what_it_may_not_see_and_checks_the_rest(
    chasqui, limited, fence, queue, queue_name
):
    await queue.add("n", 1)
    url = await limited(fence, *ENOUGH)

    said = await chasqui("doctor", queue_name, "--json", CHASQUI_REDIS_URL=url)

    found = {(check["queue"], check["check"]): check for check in said.json["checks"]}
    assert found[None, "server"]["level"] == "note"
    assert "this user may not run INFO, so" in found[None, "server"]["found"]
    assert found[queue_name, "workers"]["level"] == "error", "there is none"
    assert {check for _, check in found} >= {"clock", "group", "workers", "DLQ"}


async def test_the_doctor_does_not_call_missing_what_this_user_may_not_try(
    chasqui, limited, fence, queue, queue_name, kind
):
    await queue.add("n", 1)
    url = await limited(fence, *ENOUGH, "+info")

    said = await chasqui("doctor", queue_name, "--json", CHASQUI_REDIS_URL=url)

    checks = {check["check"]: check for check in said.json["checks"]}
    assert checks["server"]["level"] == "ok"
    # An unknown command is refused as such, before anyone looks at the keys.
    is_unknown = kind.label == "valkey"
    assert checks["ack_delete"]["found"] == (
        "no XACKDEL here, so a script acks and deletes" if is_unknown
        else "not known: this user may not try XACKDEL here"
    )  # fmt: skip


async def test_the_doctor_names_the_queue_that_it_may_not_look_at(
    chasqui, limited, queue, queue_name
):
    await queue.add("n", 1)
    url = await limited("~*", *ENOUGH, "-xpending")

    said = await chasqui("doctor", queue_name, CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert said.err == ""
    assert f"the user '{queue_name}' must be allowed to run XPENDING and is not" in said.out
    assert f"grant it with ACL SETUSER {queue_name} +xpending" in said.out


async def test_the_doctor_asks_for_the_rights_of_a_worker(
    chasqui, limited, fence, queue, queue_name
):
    await queue.add("n", 1)
    url = await limited(fence, *ENOUGH, "-xack", "-zadd")

    checks = (await chasqui("doctor", queue_name, "--json", CHASQUI_REDIS_URL=url)).json["checks"]

    (found,) = [one for one in checks if one["check"] == "rights"]
    assert (found["level"], found["queue"]) == ("warning", queue_name)
    assert f"the user '{queue_name}' must be allowed to run XACK and ZADD" in found["found"]
    assert found["remedy"] == (
        f"grant them with ACL SETUSER {queue_name} +xack +zadd; a user that runs no worker "
        "needs none of them"
    )
    assert "workers" in {one["check"] for one in checks}, "the rest is checked all the same"


async def test_the_doctor_names_user_and_pattern_where_the_keys_are_missing(
    chasqui, limited, queue, queue_name
):
    await queue.add("n", 1)
    url = await limited("~other", *ENOUGH)

    checks = (await chasqui("doctor", queue_name, "--json", CHASQUI_REDIS_URL=url)).json["checks"]

    remedies = [one["remedy"] for one in checks if one["check"] == "rights" and one["queue"]]
    assert remedies == [f"grant them with ACL SETUSER {queue_name} ~{{chasqui:{queue_name}}}:*"]


async def test_the_doctor_without_the_right_to_begin_is_one_finding(
    chasqui, limited, queue, queue_name
):
    url = await limited("~*", "+auth")

    said = await chasqui("doctor", queue_name, "--json", CHASQUI_REDIS_URL=url)

    assert said.code == 1
    assert said.json["checks"][0]["check"] == "rights"
    assert "must be allowed to run CLIENT SETNAME" in said.json["checks"][0]["found"]
    assert said.json["checks"][0]["remedy"].startswith("grant it with ACL SETUSER")


async def test_a_wrong_password_is_still_told_as_one(chasqui, limited, queue_name):
    url = await limited("~*", "+@all")

    said = await chasqui("inspect", queue_name, CHASQUI_REDIS_URL=url.replace(PASSWORD, "wrong"))

    assert said.code == 1
    assert "must accept the credentials" in said.err
    assert "wrong@" not in said.err
    assert len(said.err.splitlines()) == 1


def _of(queue_name: str, words: tuple[str, ...]) -> list[str]:
    return [queue_name if word == "QUEUE" else word for word in words]
