"""Takes the secrets out of a URL, whatever is wrong with it."""

from __future__ import annotations

import re

_USER = re.compile(r"[\w.+-]*")


def redact(url: str) -> str:
    """The URL without its passwords, safe to print even where the URL is broken."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "redis", url
    credentials, _, place = rest.rpartition("@")
    if re.search(r"[?#]", credentials):
        # A query with an `@`, or a password with a `?`: nobody knows where the secret begins.
        return f"{scheme}://***"
    place = _without_secrets(place)
    if not credentials:
        return f"{scheme}://{place}"
    user = credentials.partition(":")[0]
    # What does not look like a user may be the password of a mistyped URL.
    return f"{scheme}://{user if _USER.fullmatch(user) else ''}:***@{place}"


def _without_secrets(place: str) -> str:
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    hosts, slash, path = place.partition("/")
    return ",".join(map(_shown_host, hosts.split(","))) + slash + path


def _shown_host(host: str) -> str:
    name, colon, port = host.partition(":")
    # Without an `@` a password stands where the port should be.
    if colon and port and not port.isdigit() and not host.startswith("["):
        return f"{name}:***"
    return host
