"""URLs that name many servers, and who is asked for the one to dial."""

from __future__ import annotations

import pytest

from chasquimq.errors import ServerRefused, ServerUnreachable, SettingsError, StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.address import normal_url
from chasquimq.store.net.errors import error_from_reply
from chasquimq.store.net.route import Route, slot_of
from chasquimq.store.net.topology import Node, TopologyKind, parse_topology, redact

CANARY = "canary-7f3a"
SLOTS = [
    [0, 8191, [b"10.0.0.1", 7000, b"id1"]],
    [8192, 16383, [b"10.0.0.2", 7001, b"id2"], [b"10.0.0.3", 7002, b"id3"]],
]


def found(asking, *answers):
    """Drive a search: whom it asked in turn, and what it came to."""
    asked, left = [], iter(answers)
    answer = None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            return asked, end.value
        asked.append((question.settings.url, question.command[0]))
        answer = next(left)


def test_sentinels_a_master_and_a_database_are_read_from_the_url():
    topology = parse_topology("redis+sentinel://h1:1,h2,[::1]:3/my%20master/2")

    assert (topology.kind, topology.is_tls) == (TopologyKind.SENTINEL, False)
    assert topology.seeds == (Node("h1", 1), Node("h2", 26379), Node("::1", 3))
    assert (topology.service, topology.database) == ("my master", "2")
    assert topology.node_url(Node("::2", 9)) == "redis://[::2]:9/2"


def test_nodes_of_a_cluster_are_read_from_the_url():
    topology = parse_topology("rediss+cluster://me:pw@h1:1,h2?ssl_ca_certs=%2Fca.pem")

    assert (topology.kind, topology.is_tls) == (TopologyKind.CLUSTER, True)
    assert topology.seeds == (Node("h1", 1), Node("h2", 6379))
    assert topology.node_url(Node("n", 7)) == "rediss://me:pw@n:7?ssl_ca_certs=%2Fca.pem"
    assert topology.seed_url(Node("n", 7)) == topology.node_url(Node("n", 7))


def test_more_nodes_of_a_cluster_may_stand_behind_the_question_mark():
    url = normal_url("VALKEYS-CLUSTER://me:pw@h1:1?node=h2:2&db=0&node=h3")
    topology = parse_topology(url)

    assert (topology.kind, topology.is_tls) == (TopologyKind.CLUSTER, True)
    assert topology.seeds == (Node("h1", 1), Node("h2", 2), Node("h3", 6379))
    assert topology.node_url(Node("n", 7)) == "rediss://me:pw@n:7?db=0"
    assert topology.seed_url(Node("n", 7)) == "rediss://me:pw@n:7?db=0"


def test_sentinels_have_credentials_of_their_own_and_never_see_those_of_the_data():
    topology = parse_topology(
        "redis+sentinel://me:p%40w@h/m?sentinel_username=s&sentinel_password=x%2Fy&password=z"
        "&ssl_ca_certs=ca"
    )

    assert topology.seed_url(Node("h", 1)) == "redis://s:x%2Fy@h:1?ssl_ca_certs=ca"
    assert topology.node_url(Node("h", 1)) == "redis://me:p%40w@h:1?password=z&ssl_ca_certs=ca"


@pytest.mark.parametrize(
    "url", ["redis://h", "rediss://h:1/2", "unix:///s.sock", "redis+other://h"]
)
def test_the_url_of_one_server_names_no_others(url):
    assert parse_topology(url) is None


REFUSED = {
    "redis+sentinel://h:1": "redis+sentinel://host:26379,host:26379/<name of the master>",
    "redis+sentinel://h:1/": "<name of the master>",
    "redis+sentinel:///m": "<name of the master>",
    "redis+sentinel://h:1,/m": "<name of the master>",
    "redis+sentinel://h:1/m/x": "<database or nothing>",
    "redis+cluster://h:1/1": "a cluster has one database",
    "redis+cluster://": "redis+cluster://host:6379",
    "redis+cluster://h:70000": "ports are numbers from 1 to 65535",
    f"redis+cluster://h:{CANARY}": "ports are numbers from 1 to 65535",
    f"redis+sentinel://me:{CANARY}?x@h/m": "<name of the master>",
    f"redis-cluster://:{CANARY}@h:1/1": "redis+cluster://host:6379",
    f"redis-cluster://h:1?node=h2:{CANARY}": "ports are numbers from 1 to 65535",
    "redis-cluster://h:1?node=": "redis+cluster://host:6379",
    f"rediss-sentinel://:{CANARY}@h:1/m": "redis+sentinel://host:26379",
    f"sentinel://:{CANARY}@h:1/m": "redis+sentinel://host:26379",
    f"redis+other://:{CANARY}@h:1": "redis+sentinel:// or redis+cluster:// followed by several",
    f"redis+sentinel://h:1?sentinel_password={CANARY}": "<name of the master>",
}


@pytest.mark.parametrize(("url", "said"), REFUSED.items(), ids=REFUSED)
def test_what_such_a_url_lacks_is_said_without_its_passwords(url, said):
    with pytest.raises(SettingsError) as caught:
        normal_url(url)

    assert said in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    {
        f"redis+sentinel://me:{CANARY}@h1:1,h2:2/m/0?sentinel_password={CANARY}": (
            "redis+sentinel://me:***@h1:1,h2:2/m/0"
        ),
        f"rediss+cluster://h1:1,h2:{CANARY}": "rediss+cluster://h1:1,h2:***",
    }.items(),
)
def test_such_a_url_is_shown_without_its_passwords(url, shown):
    assert redact(url) == shown
    assert CANARY not in repr(parse_topology(url.replace(f":{CANARY}", ":1")))


def test_tls_is_turned_on_for_all_of_them():
    assert normal_url("redis+cluster://h", tls=True) == "rediss+cluster://h"
    assert normal_url("redis+sentinel://h/m", tls=True) == "rediss+sentinel://h/m"


# As CLUSTER KEYSLOT tells it.
@pytest.mark.parametrize(("queue", "slot"), {"emails": 10493, "q": 3825, "größe": 3445}.items())
def test_all_keys_of_a_queue_are_in_the_slot_of_its_tag(queue, slot):
    assert slot_of(queue) == slot


def test_one_server_is_dialled_without_a_question():
    settings = ConnectionSettings(url="redis://h:1")

    assert found(Route(settings).search()) == ([], settings)


def test_the_first_sentinel_that_knows_the_master_is_believed():
    route = Route(ConnectionSettings(url="redis+sentinel://me:pw@h1:1,h2:2,h3:3/m/4"))

    asked, where = found(route.search(), ServerUnreachable("gone"), None, [b"10.0.0.9", b"6379"])

    assert asked == [("redis://h1:1", "SENTINEL"), ("redis://h2:2", "SENTINEL"),
                     ("redis://h3:3", "SENTINEL")]  # fmt: skip
    assert where.url == "redis://me:pw@10.0.0.9:6379/4"


def test_each_search_begins_with_another_seed():
    route = Route(ConnectionSettings(url="redis+sentinel://h1:1,h2:2/m"))
    first = [found(route.search(), [b"x", b"1"])[0][0][0] for _ in range(3)]

    assert first == ["redis://h1:1", "redis://h2:2", "redis://h1:1"]


def test_a_master_that_nobody_knows_is_one_clear_sentence():
    route = Route(ConnectionSettings(url=f"redis+sentinel://:{CANARY}@h1:1,h2:2/m"))

    with pytest.raises(ServerUnreachable, match="must know the master 'm', found none") as caught:
        found(route.search(), None, ServerUnreachable("gone"))

    assert CANARY not in str(caught.value)


def test_a_sentinel_that_wants_a_password_is_told_as_that():
    route = Route(ConnectionSettings(url="redis+sentinel://h1:1/m"))
    wants = error_from_reply("NOAUTH Authentication required.")

    with pytest.raises(ServerRefused, match=r"NOAUTH.*sentinel_password") as caught:
        found(route.search(), wants)

    assert caught.value.code == "NOAUTH"


@pytest.mark.parametrize(("queue", "url"), {"q": "redis://10.0.0.1:7000",
                                            "emails": "redis://10.0.0.2:7001"}.items())  # fmt: skip
def test_the_owner_of_the_slot_is_dialled(queue, url):
    route = Route(ConnectionSettings(url="redis+cluster://h1:1", queue=queue))

    assert found(route.search(), SLOTS)[1].url == url


@pytest.mark.parametrize("host", [None, b"", b"?"])
def test_a_node_without_a_name_is_the_one_that_was_asked(host):
    route = Route(ConnectionSettings(url="redis+cluster://h1:1", queue="q"))

    assert found(route.search(), [[0, 16383, [host, 7000, b"id"]]])[1].url == "redis://h1:7000"


def test_a_slot_without_an_owner_is_one_clear_sentence():
    route = Route(ConnectionSettings(url="redis+cluster://h1:1", queue="emails"))

    with pytest.raises(ServerUnreachable, match="the node of queue 'emails', found none"):
        found(route.search(), SLOTS[:1])


def test_a_server_alone_is_told_as_that():
    route = Route(ConnectionSettings(url="redis+cluster://h1:1", queue="emails"))
    alone = error_from_reply("ERR This instance has cluster support disabled")

    with pytest.raises(StoreError, match=r"support disabled.*use redis:// for one server"):
        found(route.search(), alone)


MOVED = {
    "MOVED 3825 10.0.0.5:7005": "redis://10.0.0.5:7005",
    "MOVED 3825 :7005": "redis://10.0.0.1:7005",
    "MOVED 3825 ::1:7005": "redis://[::1]:7005",
}


@pytest.mark.parametrize(("text", "url"), MOVED.items(), ids=MOVED)
def test_where_a_slot_has_moved_is_dialled_next_without_a_question(text, url):
    route = Route(ConnectionSettings(url="redis+cluster://h1:1", queue="q"))
    found(route.search(), SLOTS)

    route.on_error(error_from_reply(text))

    asked, where = found(route.search())
    assert (asked, where.url) == ([], url)


def test_a_move_is_believed_once():
    route = Route(ConnectionSettings(url="redis+cluster://h1:1", queue="q"))
    route.on_error(error_from_reply("MOVED 3825 10.0.0.5:7005"))
    found(route.search())

    assert found(route.search(), SLOTS)[1].url == "redis://10.0.0.1:7000"


def test_nodes_that_were_heard_of_are_asked_when_those_of_the_url_are_gone():
    route = Route(ConnectionSettings(url="redis+cluster://h1:1", queue="q"))
    found(route.search(), SLOTS)

    asked, _ = found(route.search(), ServerUnreachable("gone"), SLOTS)

    assert [url for url, _ in asked] == ["redis://h1:1", "redis://10.0.0.1:7000"]


def test_every_master_is_found_once_with_its_slots():
    route = Route(ConnectionSettings(url="redis+cluster://h1:1"))

    _, masters = found(route.masters(), [*SLOTS, [5, 6, [b"10.0.0.1", 7000, b"id1"]]])

    assert [settings.url for settings, _ in masters] == [
        "redis://10.0.0.1:7000", "redis://10.0.0.2:7001",
    ]  # fmt: skip
    assert [(first, last) for first, last, _ in masters[0][1]] == [(0, 8191), (5, 6)]


def test_a_provider_is_asked_for_nodes_and_never_for_sentinels():
    async def provider(address):
        return None, "pw"

    def seed_settings(url):
        settings = ConnectionSettings(url=url, credential_provider=provider, queue="q")
        return next(Route(settings).search()).settings

    assert seed_settings("redis+sentinel://h1:1/m").credential_provider is None
    assert seed_settings("redis+cluster://h1:1").credential_provider is provider
