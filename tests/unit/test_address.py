"""What is wrong with a URL is said of the part that is wrong."""

from __future__ import annotations

import pytest

from chasquimq.errors import SettingsError
from chasquimq.store.net.address import normal_url

PORT = "redis_url must be a URL whose port is a number from 1 to 65535, got"
QUOTE = "; write special characters of user and password as %XX"
REFUSED = {
    "redis://localhost:99999": f"{PORT} 'redis://localhost:99999'",
    "localhost:65536": f"{PORT} 'redis://localhost:65536'",
    "redis://localhost:0": f"{PORT} 'redis://localhost:0'",
    "rediss://me:canary@localhost:70000/1": f"{PORT} 'rediss://me:***@localhost:70000/1'",
    "redis://[::1]:70000": f"{PORT} 'redis://[::1]:70000'",
    # What stands in the place of a port may be a password.
    "redis://localhost:canary": f"{PORT} 'redis://localhost:***'{QUOTE}",
    "redis://me:ca/nary@localhost": f"{PORT} 'redis://me:***@localhost'{QUOTE}",
}


@pytest.mark.parametrize(("url", "said"), REFUSED.items(), ids=REFUSED)
def test_a_bad_port_is_told_as_one(url, said):
    with pytest.raises(SettingsError) as caught:
        normal_url(url)

    assert str(caught.value) == said


@pytest.mark.parametrize("url", ["http://localhost", "redis://", " ", "redis://[::1"])
def test_what_is_no_address_is_told_by_the_whole_rule(url):
    with pytest.raises(SettingsError, match="redis_url must be redis://, rediss://, valkey://, "):
        normal_url(url)
