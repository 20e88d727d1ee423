"""One error, told in the words of each server: ours is the same, whichever server said it."""

from __future__ import annotations

import pytest

from chasquimq.errors import ScriptFailed, ServerOutOfMemory, ServerRefused
from chasquimq.store.net.errors import Action, action_for, error_from_reply

# As Redis 6.2, 7.0 and 8.6 and Valkey 9 say it about a command inside a script.
OLD = "ERR Error running script (call to f_fa1761cf): @user_script:1: "
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NO_GROUP = "NOGROUP No such key 's' or consumer group 'g'"
FULL = "OOM command not allowed when used memory > 'maxmemory'."
READ_ONLY = "READONLY You can't write against a read only replica."
NO_COMMAND = "The user executing the script can't run this command or subcommand"
NO_KEY = (
    "The user executing the script can't access at least one of the keys mentioned in the "
    "command arguments"
)
BEHIND = " script: fa1761cf, on @user_script:1."
CODES = {
    f"{OLD}{WRONG_TYPE}": "WRONGTYPE",
    f"{WRONG_TYPE}{BEHIND}": "WRONGTYPE",
    f"{OLD}{NO_GROUP}": "NOGROUP",
    f"{NO_GROUP}{BEHIND}": "NOGROUP",
    f"{OLD}-{READ_ONLY}": "READONLY",
    f"{OLD}@user_script: 1: {READ_ONLY}": "READONLY",
    f"{READ_ONLY}{BEHIND}": "READONLY",
    f"{OLD}@user_script: 1: {NO_COMMAND}": "NOPERM",
    f"{OLD}@user_script: 1: {NO_KEY}": "NOPERM",
    f"ERR {NO_COMMAND}{BEHIND}": "NOPERM",
    f"ERR {NO_KEY}{BEHIND}": "NOPERM",
    "ERR ACL failure in script: User u has no permissions to run the 'set' command"
    + BEHIND: "NOPERM",
    "NOPERM this user has no permissions to run the 'set' command or its subcommand": "NOPERM",
    "NOPERM User u has no permissions to run the 'set' command": "NOPERM",
}


@pytest.mark.parametrize(("text", "code"), CODES.items())
def test_the_code_is_the_same_in_a_script_and_outside(text, code):
    error = error_from_reply(text)

    assert isinstance(error, ServerRefused)
    assert error.code == code


@pytest.mark.parametrize("text", [FULL, f"{FULL}{BEHIND}", f"{OLD}@user_script: 1: -{FULL}"])
def test_a_full_server_is_one_in_a_script_too(text):
    assert isinstance(error_from_reply(text), ServerOutOfMemory)


def test_a_bug_in_a_script_stays_one():
    text = f"{OLD}@user_script: 1: Wrong number of args calling command from script"

    assert isinstance(error_from_reply(text), ScriptFailed)
    assert action_for(error_from_reply(text)) is Action.RAISE


async def test_a_script_without_a_group_says_so(consumer, raw):
    """Who takes over work asks by script, and must hear that the group is to be made again."""
    me = await consumer("me")
    await raw("DEL", raw.keys.stream)

    assert (await me.claim(10))[0].size == 0
    assert await raw.consumers() == ["me"]
