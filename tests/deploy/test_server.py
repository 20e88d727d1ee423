"""The server example starts, keeps what it says, and its users can do their work and nothing else."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml

from chasquimq import Queue, Worker
from chasquimq.errors import ServerRefused, StoreError
from chasquimq.queue.inspector import Inspector
from chasquimq.server.launch import bundled_binary
from chasquimq.store.net import abilities as rights
from deploy.kit import run
from deploy.production import HOST, SERVER, Production, tls_binary
from security.everyday import do_everything, produce
from security.test_least_privilege import EVERYWHERE, GRANTS, PAGE
from support.topologies import info, tell
from support.waiting import eventually
from support.workers import RunningWorker

TLS_BINARY = tls_binary()
COMPOSE = yaml.safe_load((SERVER / "compose.yml").read_text())
SETTINGS = dict(
    line.split(maxsplit=1)
    for line in (SERVER / "valkey.conf").read_text().splitlines()
    if line and not line.startswith("#")
)
MANY_SET = "Redis 8.4 and Valkey 9.1"
DURABLE = re.search(r'\| `durability="replica:n"`.*', PAGE)[0]

# Six servers start, elect and are killed.
takes_turns = pytest.mark.takes_turns
pytestmark = pytest.mark.timeout(400)


def rights_of(user: str, file: str = "users.acl") -> list[str]:
    """What a user is given, without its password."""
    (line,) = re.findall(rf"^user {user} (.+)$", (SERVER / file).read_text(), re.MULTILINE)
    return line.split()


def commands_of(user: str) -> set[str]:
    return {right[1:] for right in rights_of(user) if right.startswith("+")}


@pytest.fixture
async def production(kind, tmp_path):
    async with Production(tmp_path, kind.binary, has_tls=False) as servers:
        yield servers


async def double(job):
    return job.data * 2


async def outlive_a_primary(servers: Production, queue_name: str) -> None:
    """Adds and a worker go on when the primary is killed, and nothing that was added is lost."""
    url = servers.url("worker")
    # As the page about failovers says: one in which Sentinels disagree takes 20 s.
    async with Queue(queue_name, redis_url=url, add_timeout_ms=60_000) as queue:
        running = RunningWorker(Worker(queue_name, double, redis_url=url, store_results=True))
        before = await queue.add("n", 1, durability="replica:2")
        assert await queue.wait_for_result(before.id, timeout=20) == 2

        old = await servers.leader()
        old.kill()
        after = await queue.add("n", 2)

        assert await queue.wait_for_result(after.id, timeout=30) == 4
        assert await servers.leader() is not old
        await running.stop()

    old.start()
    await eventually(lambda: follows(servers, old), within_s=60, what="the old primary follows")


async def follows(servers: Production, node) -> bool:
    try:
        about = await info(servers.node_url(node), "replication")
    except StoreError:
        return False
    return (about["role"], about.get("master_link_status")) == ("slave", "up")


@takes_turns
async def test_jobs_outlive_the_primary_behind_three_sentinels_with_tls_and_few_rights(
    production, queue_name
):
    await outlive_a_primary(production, queue_name)

    # Clients and commands came over TLS; only the servers themselves talk plainly here.
    assert sum(front.tls_count for front in production.fronts) > 0


@pytest.mark.skipif(TLS_BINARY is None, reason="needs a server that was built with TLS")
async def test_servers_that_speak_tls_themselves_do_the_same(tmp_path, queue_name):
    async with Production(tmp_path, TLS_BINARY, has_tls=True) as servers:
        await outlive_a_primary(servers, queue_name)
        for node in servers.nodes:
            assert await tell(servers.node_url(node), "CONFIG", "GET", "port") == [b"port", b"0"]


async def test_users_can_do_their_work_and_nothing_else(production, queue_name):
    url = production.url("worker")
    await do_everything(url, queue_name)

    await a_producer_adds_and_runs_nothing(production, queue_name)
    leader = await production.leader()
    keda, exporter, backup = (
        production.node_url(leader, user) for user in ("keda", "exporter", "backup")
    )
    assert await tell(keda, "PING") == b"PONG"
    assert await tell(keda, "XLEN", f"{{chasqui:{queue_name}}}:stream") == 1
    assert b"used_memory" in await tell(exporter, "INFO", "ALL")
    assert await tell(exporter, "SLOWLOG", "LEN") >= 0
    assert b"saving started" in await tell(backup, "BGSAVE")
    stranger = production.node_url(leader).replace("//admin:", "//default:")
    for one in (keda, exporter, backup):
        with pytest.raises(ServerRefused):
            await tell(one, "GET", f"{{chasqui:{queue_name}}}:stream")
    with pytest.raises(ServerRefused):
        await tell(production.node_url(leader, "worker"), "CONFIG", "GET", "maxmemory")
    with pytest.raises(ServerRefused):
        await tell(stranger, "PING")


async def a_producer_adds_and_runs_nothing(production: Production, queue_name: str) -> None:
    url = production.url("producer")
    name = f"{queue_name}-web"
    async with Queue(name, redis_url=url) as queue:
        await produce(queue)
        added = await queue.add("fine", 20)
        running = RunningWorker(
            Worker(name, double, redis_url=production.url("worker"), store_results=True)
        )
        assert await queue.wait_for_result(added.id, timeout=20) == 40
        await running.stop()
    with pytest.raises(ServerRefused, match="a worker"):
        await Worker(name, double, redis_url=url).run()


@takes_turns
async def test_the_server_is_as_the_settings_say_and_the_doctor_finds_nothing(production):
    url = production.node_url(await production.leader())

    for name in ("maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write"):
        assert await tell(url, "CONFIG", "GET", name) == [name.encode(), SETTINGS[name].encode()]
    async with Inspector(redis_url=production.url("admin")) as inspector:
        findings = await inspector.diagnose_server()
    assert [one for one in findings if one.is_problem] == []


@takes_turns
async def test_a_primary_without_replicas_takes_nothing_that_it_would_lose(production, queue_name):
    leader = await production.leader()
    for sentinel in production.sentinels:
        sentinel.kill()
    for node in production.nodes:
        if node is not leader:
            node.kill()
    url = production.node_url(leader, "worker")

    async def is_refused() -> bool:
        try:
            await tell(url, "SET", f"{{chasqui:{queue_name}}}:x", "1")
        except ServerRefused as refused:
            return refused.code == "NOREPLICAS"
        return False

    await eventually(is_refused, within_s=40, what="a write that is refused")


def test_workers_have_exactly_the_rights_of_the_page():
    durable = set(re.findall(r"\+(\w+)", DURABLE))

    assert commands_of("worker") == {*EVERYWHERE, *GRANTS[MANY_SET], *durable, "role"}
    for role in (rights.WORKER, rights.RESULTS, rights.PROMOTER, rights.SCHEDULER):
        assert rights.needs(role) <= commands_of("worker")


def test_producers_have_less_and_all_that_adding_takes():
    adding = ("add", "schedule", "cancel", "upsert_repeatable", "remove_repeatable")
    needed = {one for name in adding for one in rights.needs(rights.PRODUCER[name])}

    assert needed | rights.needs(rights.NATIVE_ADD) <= commands_of("producer")
    assert commands_of("producer") < commands_of("worker")
    assert not {"xreadgroup", "xack", "xclaim"} & commands_of("producer")


@pytest.mark.parametrize("file", ["users.acl", "sentinel-users.acl"])
def test_nobody_gets_in_without_a_password_and_no_file_holds_one(file):
    lines = (SERVER / file).read_text().splitlines()
    names = [line.split()[1] for line in lines]

    assert lines[0].startswith("user default off resetpass ")
    assert all(f" on #@{name}@ " in line for name, line in zip(names[1:], lines[1:], strict=True))
    assert not any("nopass" in line for line in lines)


def test_everything_but_the_operator_is_held_to_its_keys_and_commands():
    users = re.findall(r"^user (\w+)", (SERVER / "users.acl").read_text(), re.MULTILINE)
    limited = set(users) - {"default", "admin"}

    for user in limited:
        given = rights_of(user)
        assert "-@all" in given
        assert "resetkeys" in given or "~{chasqui:*" in given
        assert not any(right.startswith("+@") for right in given)


def test_a_server_refuses_the_template_of_the_users(kind, tmp_path):
    binary = kind.binary or bundled_binary()

    said = subprocess.run(
        [binary, "--port", "0", "--dir", tmp_path, "--aclfile", SERVER / "users.acl"],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip

    assert said.returncode != 0
    assert "ACL" in said.stdout


def test_secrets_are_made_once_and_read_by_nobody_else(tmp_path):
    def make() -> dict[str, str]:
        run(["sh", str(SERVER / "make-secrets.sh"), str(tmp_path / "s"), "sentinel-1", "valkey-1"])
        return {path.name: path.read_text() for path in (tmp_path / "s").iterdir()}

    first = make()
    assert make() == first
    (tmp_path / "s/keda.password").unlink()
    again = make()
    assert {name for name in first if first[name] != again[name]} == {"keda.password", "users.acl"}
    assert all(path.stat().st_mode & 0o007 == 0 for path in (tmp_path / "s").iterdir())
    assert "@sentinel-1:26379/mymaster/0?" in first["url"]
    assert "@worker@" not in first["users.acl"]


def test_the_certificate_names_every_host_and_the_exporter_has_a_password_for_each(tmp_path):
    folder = tmp_path / "s"
    run(["sh", str(SERVER / "make-secrets.sh"), str(folder), "valkey-1", HOST])
    shown = ["openssl", "x509", "-in", str(folder / "server.crt"), "-noout"]
    said = run([*shown, "-ext", "subjectAltName"])
    passwords = json.loads((folder / "exporter.json").read_text())

    assert list(passwords) == [f"rediss://exporter@{host}:6379" for host in ("valkey-1", HOST)]
    assert set(passwords.values()) == {(folder / "exporter.password").read_text().strip()}
    assert "DNS:valkey-1, IP Address:127.0.0.1" in said


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_a_service_has_few_rights_a_fixed_image_and_comes_back(name):
    service = COMPOSE["services"][name]

    assert re.search(r":\$?\{?[\w.:-]*\d+\.\d+\.\d+\}?$", service["image"])
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"]
    assert "ports" not in service


def test_compose_starts_three_nodes_and_three_sentinels_with_the_script_that_is_tested():
    services = COMPOSE["services"]
    commands = {name: service.get("command") for name, service in services.items()}

    assert {name for name, command in commands.items() if command == ["data"]} == {
        f"valkey-{number}" for number in (1, 2, 3)
    }
    assert {name for name, command in commands.items() if command == ["sentinel"]} == {
        f"sentinel-{number}" for number in (1, 2, 3)
    }
    for name, service in services.items():
        if name != "exporter":
            assert service["entrypoint"] == ["/bin/sh", "/etc/chasqui/server/start.sh"]
            environment = service["environment"]
            assert (environment["NODE"], environment["PRIMARY"]) == (name, "valkey-1")
            mounts = [mount.split(":") for mount in service["volumes"]]
            assert [".", "/etc/chasqui/server", "ro"] in mounts
            assert [f"{name}-data", "/data"] in mounts
            assert name + "-data" in COMPOSE["volumes"]


def test_the_exporter_cannot_read_passwords_of_the_configuration():
    service = COMPOSE["services"]["exporter"]

    assert "--config-command=-" in service["command"]
    assert "config|get" not in commands_of("exporter")


def test_the_memory_of_a_container_has_room_for_what_comes_on_top():
    limit = COMPOSE["services"]["valkey-1"]["mem_limit"]

    assert (SETTINGS["maxmemory"], limit) == ("2gb", "3g")
