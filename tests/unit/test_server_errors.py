"""The one table from error replies to errors and actions."""

from __future__ import annotations

import pytest

from chasquimq.errors import (
    ConnectionLost,
    QueueFull,
    ScriptFailed,
    ServerOutOfMemory,
    ServerRefused,
    ServerUnreachable,
)
from chasquimq.store.net.errors import (
    Action,
    about,
    action_for,
    error_from_reply,
    is_worth_resending,
)

ACTIONS = {
    "LOADING Redis is loading": Action.WAIT,
    "BUSY Redis is busy": Action.WAIT,
    "TRYAGAIN during rehashing": Action.WAIT,
    "ASK 1 127.0.0.1:1": Action.WAIT,
    "NOREPLICAS Not enough good replicas": Action.WAIT,
    "MISCONF Errors writing": Action.WAIT,
    "OOM command not allowed": Action.WAIT,
    "UNBLOCKED client unblocked": Action.WAIT,
    "NOAUTH Authentication required.": Action.REDIAL,
    "READONLY You can't write": Action.REDISCOVER,
    "MOVED 1 127.0.0.1:1": Action.REDISCOVER,
    "CLUSTERDOWN The cluster is down": Action.REDISCOVER,
    "CLUSTERDOWN Hash slot not served": Action.REDISCOVER,
    "MASTERDOWN Link with MASTER is down": Action.REDISCOVER,
    "ERR WAIT cannot be used with replica instances.": Action.REDISCOVER,
    "ERR WAITAOF cannot be used with replica instances.": Action.REDISCOVER,
    "NOSCRIPT No matching script": Action.RELOAD,
    "NOGROUP No such key": Action.REGROUP,
    "WRONGTYPE Operation against a key": Action.RAISE,
    "NOPERM no permissions": Action.RAISE,
    "ERR syntax error": Action.RAISE,
    "": Action.RAISE,
}


@pytest.mark.parametrize(("text", "action"), ACTIONS.items(), ids=lambda v: str(v).split()[0:1])
def test_each_error_reply_has_its_action(text, action):
    assert action_for(error_from_reply(text)) is action


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "OOM command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:9.",
        "ERR Error running script (call to f_abc): @user_script:9: -OOM command not allowed",
    ],
)
def test_no_memory_is_told_the_same_way_from_commands_and_scripts(text):
    error = error_from_reply(text)

    assert isinstance(error, ServerOutOfMemory)
    assert not is_worth_resending(error)


@pytest.mark.parametrize("code", ["WRONGTYPE", "NOPERM", "READONLY", "NOGROUP", "MISCONF"])
def test_an_error_inside_a_script_is_told_like_the_same_error_outside(code):
    error = error_from_reply(f"{code} some words script: abc, on @user_script:18.")

    assert isinstance(error, ServerRefused)
    assert error.code == code


# How servers before 7.0 wrap an error that ends a script.
OLD_SCRIPT = "ERR Error running script (call to f_9fceb02d): @user_script:18: "


@pytest.mark.parametrize("inner", ["", "@user_script: 18: -", "-"])
@pytest.mark.parametrize(
    "said",
    [
        "READONLY You can't write against a read only replica.",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "MASTERDOWN Link with MASTER is down",
        "NOGROUP No such key 'a' or consumer group",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
    ],
    ids=lambda said: said.split()[0],
)
def test_an_error_inside_a_script_of_an_old_server_is_told_like_the_same_error_outside(inner, said):
    inside, outside = error_from_reply(f"{OLD_SCRIPT}{inner}{said}"), error_from_reply(said)

    assert isinstance(inside, ServerRefused)
    assert (str(inside), inside.code) == (said, said.split()[0])
    assert action_for(inside) is action_for(outside)


def test_a_node_that_sends_us_elsewhere_is_told_with_the_url_that_follows():
    error = error_from_reply("MOVED 3999 127.0.0.1:6381")

    assert str(error).startswith("MOVED 3999 127.0.0.1:6381; ")
    assert "redis+cluster://" in str(error)


MISSING_RIGHTS = {
    "NOPERM User ada has no permissions to run the 'xadd' command": (
        "the user 'ada' must be allowed to run XADD and is not (NOPERM); "
        "grant it with ACL SETUSER ada +xadd"
    ),
    "NOPERM User ada has no permissions to run the 'xinfo|stream' command": (
        "the user 'ada' must be allowed to run XINFO STREAM and is not (NOPERM); "
        "grant it with ACL SETUSER ada +xinfo|stream"
    ),
    "NOPERM this user has no permissions to run the 'xadd' command or its subcommand": (
        "this user must be allowed to run XADD and is not (NOPERM); "
        "grant it with ACL SETUSER <user> +xadd"
    ),
    "NOPERM No permissions to access a key": (
        "this user must be allowed to use the keys of the queue and is not (NOPERM); "
        "grant them with ACL SETUSER <user> ~{chasqui:<queue>}:*"
    ),
    "NOPERM this user has no permissions to access one of the keys used as arguments": (
        "this user must be allowed to use the keys of the queue and is not (NOPERM); "
        "grant them with ACL SETUSER <user> ~{chasqui:<queue>}:*"
    ),
    "NOPERM No permissions of a kind nobody knows yet.": (
        "this user must be allowed to do this, the server says: "
        "NOPERM No permissions of a kind nobody knows yet; see ACL WHOAMI and ACL GETUSER"
    ),
}


@pytest.mark.parametrize(("text", "said"), MISSING_RIGHTS.items(), ids=MISSING_RIGHTS)
def test_a_missing_right_is_named_with_what_grants_it(text, said):
    error = error_from_reply(text)

    assert str(error) == said
    assert isinstance(error, ServerRefused)
    assert error.code == "NOPERM"


@pytest.mark.parametrize("sha", ["", " 9fceb02d0ae598e95dc970b74767f19372d61af8,"])
def test_a_right_that_a_script_lacks_is_no_bug_of_the_script(sha):
    text = "User ada has no permissions to run the 'xadd' command"

    error = error_from_reply(f"ERR ACL failure in script: {text} script:{sha} on @user_script:1.")

    assert isinstance(error, ServerRefused)
    assert (error.code, str(error)) == ("NOPERM", MISSING_RIGHTS[f"NOPERM {text}"])


@pytest.mark.parametrize(
    "text",
    [
        "ERR user_script:12: attempt to index a nil value script: abc, on @user_script:12.",
        "ERR Error running script (call to f_abc): @user_script:3: user_script:3: Script attempted",
    ],
)
def test_a_bug_in_a_script_is_told_as_one(text):
    assert isinstance(error_from_reply(text), ScriptFailed)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (ConnectionLost("gone"), Action.REDIAL),
        (ServerUnreachable("none"), Action.REDIAL),
        (ScriptFailed("bug"), Action.RAISE),
        (QueueFull("q", 1, ["a"]), Action.RAISE),
    ],
    ids=["lost", "unreachable", "script", "full"],
)
def test_errors_of_our_own_have_actions_too(error, action):
    assert action_for(error) is action


@pytest.mark.parametrize("code", ["LOADING", "BUSY", "READONLY", "MOVED", "NOAUTH", "NOSCRIPT"])
def test_what_heals_by_itself_is_worth_resending(code):
    assert is_worth_resending(error_from_reply(f"{code} some words"))


@pytest.mark.parametrize("code", ["OOM", "MISCONF", "NOREPLICAS", "WRONGTYPE", "NOGROUP", "ERR"])
def test_what_the_caller_should_hear_of_is_not_resent(code):
    assert not is_worth_resending(error_from_reply(f"{code} some words"))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLost("gone", job_ids=["a", "b"], outcome="not_done"),
        ServerUnreachable("none", job_ids=["a", "b"]),
        ServerOutOfMemory("full"),
        ServerRefused("no", code="NOPERM"),
        QueueFull("q", 5, ["a", "b"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_told_to_each_caller_about_its_own_jobs(error):
    cause = ValueError("why")
    error.__cause__ = cause
    before = list(error.job_ids)

    own = about(error, ["b"])

    assert (type(own), str(own), own.__cause__) == (type(error), str(error), cause)
    assert vars(own) == vars(error) | {"job_ids": ["b"]}
    assert list(error.job_ids) == before
