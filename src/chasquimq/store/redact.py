"""Takes the secrets out of a URL, whatever is wrong with it."""

from __future__ import annotations

import re

_MASK = "***"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*")
_USER = re.compile(r"[\w.+-]*")
# A name or an address, with its port; of what looks otherwise nobody knows what it holds.
_HOST = re.compile(r"(?:\[[\da-fA-F:.]+(?:%\w+)?\]|[\w.-]*)(?::\d*)?")


def redact(url: str) -> str:
    """The URL without its passwords, safe to print even where the URL is broken."""
    scheme, mark, rest = url.strip().partition("://")
    if not mark:
        scheme, rest = "redis", url.strip()
    if not _SCHEME.fullmatch(scheme):
        # Credentials in front of the scheme.
        return f"{_MASK}://{_MASK}"
    credentials, at, place = rest.rpartition("@")
    if re.search(r"[?#]", credentials):
        # A query with an `@`, or a password with a `?`: nobody knows where the secret begins.
        return f"{scheme}://{_MASK}"
    return f"{scheme}://{_shown_user(credentials)}{at}{_shown_place(place)}"


def _shown_user(credentials: str) -> str:
    user, colon, _ = credentials.partition(":")
    if not colon:
        # Without a colon it may be the password alone.
        return _MASK if credentials else ""
    # What does not look like a user may be the password of a mistyped URL.
    return f"{user if _USER.fullmatch(user) else ''}:{_MASK}"


def _shown_place(place: str) -> str:
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    hosts, slash, path = place.partition("/")
    shown = ",".join(map(_shown_host, hosts.split(",")))
    # A password with a slash goes on in the path.
    return shown + slash + (path if shown == hosts else _MASK if path else "")


def _shown_host(host: str) -> str:
    if _HOST.fullmatch(host):
        return host
    # Without an `@` a password stands where the port should be.
    name, colon, _ = host.partition(":")
    return f"{name}:{_MASK}" if colon and _USER.fullmatch(name) else _MASK
