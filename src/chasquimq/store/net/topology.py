"""Reads URLs: checks them, says which servers they name, and shows them without secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from chasquimq.errors import SettingsError
from chasquimq.settings import true_or_false

_MASK = "***"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*")
_USER = re.compile(r"[\w.+-]*")
# A name or an address, with its port; anything else may hold a secret.
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
        # A query with an `@`, or a password with a `?`: it is not known where the secret begins.
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


_SENTINEL_RULE = "redis+sentinel://host:26379,host:26379/<name of the master>/<database or nothing>"
_CLUSTER_RULE = "redis+cluster://host:6379,host:6379 without a path: a cluster has one database"
_PORT_RULE = "a URL whose ports are numbers from 1 to 65535"
_HINT = "write special characters of user and password as %XX"
_REFUSED_SCHEMES = {
    "redis-sentinel",
    "rediss-sentinel",
    "valkey-sentinel",
    "valkeys-sentinel",
    "sentinel",
}
# More nodes of a cluster, each as host:port, as ChasquiMQ (Rust) names them.
_SEED = "node"
# These are for the Sentinels alone, those for the servers with data; all others are for both.
_SEED_PARAMETERS = ("sentinel_username", "sentinel_password")
_NODE_PARAMETERS = ("username", "password", "db")


class TopologyKind(Enum):
    """What is asked for the node to dial."""

    SENTINEL = "sentinel"
    CLUSTER = "cluster"

    @property
    def default_port(self) -> int:
        return 26379 if self is TopologyKind.SENTINEL else 6379

    @property
    def rule(self) -> str:
        return _SENTINEL_RULE if self is TopologyKind.SENTINEL else _CLUSTER_RULE


class Node(NamedTuple):
    """One server by its address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What such a URL says; `seeds` are the servers that are asked for the others."""

    kind: TopologyKind
    is_tls: bool
    seeds: tuple[Node, ...]
    service: str
    database: str
    credentials: str = field(repr=False)
    seed_credentials: str = field(repr=False)
    query: str = field(repr=False)
    seed_query: str = field(repr=False)

    def node_url(self, node: Node) -> str:
        """The URL of a server that holds data."""
        path = f"/{self.database}" if self.database else ""
        return self._url(self.credentials, node, path, self.query)

    def seed_url(self, node: Node) -> str:
        """The URL of a server that is asked for others."""
        return self._url(self.seed_credentials, node, "", self.seed_query)

    def _url(self, credentials: str, node: Node, path: str, query: str) -> str:
        scheme = "rediss" if self.is_tls else "redis"
        user = f"{credentials}@" if credentials else ""
        return f"{scheme}://{user}{node}{path}{'?' + query if query else ''}"


def parse_topology(url: str) -> Topology | None:
    """The servers that the URL names; None: it is the URL of one server.

    Raises:
        SettingsError: it is meant to name many and does not.
    """
    scheme, _, rest = url.partition("://")
    _refuse_other_forms(scheme, url)
    base, plus, suffix = scheme.partition("+")
    if not plus or base not in ("redis", "rediss") or suffix not in ("sentinel", "cluster"):
        return None
    kind = TopologyKind(suffix)
    place, _, query = rest.partition("?")
    credentials, _, place = place.rpartition("@")
    hosts, _, path = place.partition("/")
    service, database = _service_and_database(kind, path, url)
    given = parse_qsl(query, keep_blank_values=True)
    is_cluster = kind is TopologyKind.CLUSTER
    more = [value for name, value in given if name == _SEED] if is_cluster else []
    return Topology(
        kind=kind,
        is_tls=base == "rediss",
        seeds=tuple(_node(text, kind, url) for text in (*hosts.split(","), *more)),
        service=service,
        database=database,
        credentials=credentials,
        seed_credentials=credentials if is_cluster else _seed_credentials(dict(given)),
        query=_without(given, _SEED_PARAMETERS + ((_SEED,) if is_cluster else ())),
        seed_query=_without(given, (_SEED,) if is_cluster else _SEED_PARAMETERS + _NODE_PARAMETERS),
    )


def _refuse_other_forms(scheme: str, url: str) -> None:
    if scheme in _REFUSED_SCHEMES:
        raise SettingsError("redis_url", redact(url), TopologyKind.SENTINEL.rule)


def _service_and_database(kind: TopologyKind, path: str, url: str) -> tuple[str, str]:
    service, _, database = path.strip("/").partition("/")
    if kind is TopologyKind.CLUSTER:
        if service not in ("", "0") or database:
            raise SettingsError("redis_url", redact(url), kind.rule)
        return "", ""
    if not service or (database and not (database.isascii() and database.isdigit())):
        raise SettingsError("redis_url", redact(url), kind.rule)
    return unquote(service), database


def _node(text: str, kind: TopologyKind, url: str) -> Node:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(kind.default_port)
    host = host.strip("[]")
    if not host:
        raise SettingsError("redis_url", redact(url), kind.rule)
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        # What is no number may be half a password.
        raise SettingsError(
            "redis_url", redact(url), _PORT_RULE, hint="" if port.isdigit() else _HINT
        )
    return Node(host, int(port))


def _seed_credentials(given: dict[str, str]) -> str:
    user, password = (quote(given.get(name, ""), safe="") for name in _SEED_PARAMETERS)
    return f"{user}:{password}" if password else user


def _without(given: list[tuple[str, str]], names: tuple[str, ...]) -> str:
    return urlencode([(name, value) for name, value in given if name not in names])


# What a URL is called where it was not looked up.
URL_ARGUMENT = "redis_url"
_SCHEMES = ("redis", "rediss", "unix")
# Other names of a scheme; Valkey's own, and those of clusters in ChasquiMQ (Rust).
_SCHEME_ALIASES = {
    f"{head}{suffix}": f"{meant}{suffix.replace('-', '+')}"
    for head, meant in {
        "redis": "redis",
        "rediss": "rediss",
        "valkey": "redis",
        "valkeys": "rediss",
    }.items()
    for suffix in ("", "+sentinel", "+cluster", "-cluster")
}
_URL_RULE = (
    "redis://, rediss://, valkey://, valkeys:// or unix:// followed by an address, a bare host "
    "name, or redis+sentinel:// or redis+cluster:// followed by several"
)
_ONE_PORT_RULE = "a URL whose port is a number from 1 to 65535"


def normal_url(url: str, *, tls: bool = False) -> str:
    """The URL in its one form, with a scheme in small letters.

    `tls` turns redis:// into rediss://, and redis+… into rediss+….
    """
    true_or_false("tls", tls)
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]  callers lie
        raise SettingsError(URL_ARGUMENT, type(url), _URL_RULE)
    if not url.strip():
        raise SettingsError(URL_ARGUMENT, url, _URL_RULE)
    url = _with_scheme(url.strip())
    if not _is_text(url):
        raise SettingsError(URL_ARGUMENT, redact(url), "text that UTF-8 can carry", hint=_HINT)
    if parse_topology(url) is None:
        _check(url)
    if tls and url.startswith(("redis://", "redis+")):
        return "rediss" + url[len("redis") :]
    return url


def _with_scheme(url: str) -> str:
    """Everything below decides by the scheme, so its form is settled here, once."""
    if "://" not in url:
        _refuse_lost_slashes(url)
        return f"redis://{url}"
    scheme, _, rest = url.partition("://")
    return f"{_SCHEME_ALIASES.get(scheme.lower(), scheme.lower())}://{rest}"


def _is_text(url: str) -> bool:
    # Bytes of a command line or a variable that are no text come as half a character.
    return not any("\ud800" <= char <= "\udfff" for char in url)


def _refuse_lost_slashes(url: str) -> None:
    """A scheme that asks for TLS and lost its // would be taken for a user, and sent in the clear."""
    scheme, colon, rest = url.partition(":")
    is_safe = colon and _SCHEME_ALIASES.get(scheme.lower(), "").startswith("rediss")
    # A host may have such a name, too.
    if is_safe and not re.match(r"\d+(?:[/?#]|$)", rest):
        raise SettingsError(URL_ARGUMENT, redact(url), _URL_RULE, hint=f"write {scheme}://")


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingsError(URL_ARGUMENT, redact(url), _URL_RULE, hint=_HINT) from None
    # The parser leaves out tabs, line ends and what else does not show; here they count.
    if url.partition("://")[0] not in _SCHEMES:
        raise SettingsError(URL_ARGUMENT, redact(url), _URL_RULE)
    if parts.scheme == "unix" and not parts.path:
        raise SettingsError(URL_ARGUMENT, redact(url), "unix:// followed by an absolute path")
    if parts.scheme != "unix" and not parts.hostname:
        raise SettingsError(URL_ARGUMENT, redact(url), _URL_RULE)
    _check_port(url, parts)
    if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise SettingsError(URL_ARGUMENT, redact(url), "followed by /<database number> or nothing")


def _check_port(url: str, parts: SplitResult) -> None:
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    if not is_port:
        text = parts.netloc.rpartition(":")[2]
        # What is no number may be half a password.
        hint = "" if text.isdigit() else _HINT
        raise SettingsError(URL_ARGUMENT, redact(url), _ONE_PORT_RULE, hint=hint)
