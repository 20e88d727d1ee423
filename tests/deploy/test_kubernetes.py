"""The manifests run commands that exist, their numbers fit the worker's own, and rights are few."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest
import yaml

from chasquimq.settings import LeaseSettings
from chasquimq.wire.keys import QueueKeys
from deploy.exported import exported
from deploy.kit import (
    DEPLOY,
    EVERY_INTERFACE,
    OVERLAYS,
    ROOT,
    container,
    one,
    parsed,
    pod,
    rendered,
)
from deploy.promql import labels_of, parse, selectors
from support.command import PROGRAM

QUEUES = ("mails", "orders", "thumbnails")
SHARED = ("chasqui-metrics", "chasqui-upkeep")
PODS = {queue: pod(queue) for queue in QUEUES} | {name: pod("shared", name) for name in SHARED}
CONTAINERS = {queue: container(queue) for queue in QUEUES}
CONTAINERS |= {name: container("shared", name) for name in SHARED}
METRICS, UPKEEP = CONTAINERS["chasqui-metrics"], CONTAINERS["chasqui-upkeep"]
ADAPTER = yaml.safe_load((DEPLOY / "prometheus/adapter.yml").read_text())
SECRET = yaml.safe_load((DEPLOY / "kubernetes/secret.example.yaml").read_text())
MONITOR = one(rendered("shared"), "PodMonitor")
PROBES = ["startupProbe", "readinessProbe", "livenessProbe"]
SPARE_S_MIN = 10

each_queue = pytest.mark.parametrize("queue", QUEUES)
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
each_name = pytest.mark.parametrize("name", PODS)


@each_overlay
def test_every_object_says_to_what_it_belongs_and_to_which_queue(overlay):
    for manifest in rendered(overlay):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "chasqui"
        assert labels["app.kubernetes.io/instance"] == overlay


def test_objects_of_two_overlays_do_not_replace_each_other():
    names = [(m["kind"], m["metadata"]["name"]) for o in OVERLAYS for m in rendered(o)]

    assert len(names) == len(set(names))


@each_queue
def test_a_worker_runs_the_queue_of_its_overlay(queue):
    assert parsed(CONTAINERS[queue]["args"])["queue_name"] == queue


def test_a_worker_whose_overlay_names_no_queue_is_refused():
    base = (DEPLOY / "kubernetes/base/worker/kustomization.yaml").read_text()
    assert "- CHASQUI_QUEUE=\n" in base

    refused = subprocess.run(
        [*PROGRAM, "worker", "jobs:handlers", "--queue", "", "--check"],
        cwd=DEPLOY / "docker/app", env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip

    assert refused.returncode == 2
    assert "queue name must be" in refused.stderr


@each_queue
def test_the_pod_has_longer_than_the_deadline_and_no_hook_that_takes_of_it(queue):
    deadline_ms = parsed(CONTAINERS[queue]["args"])["shutdown_deadline_ms"]

    assert PODS[queue]["terminationGracePeriodSeconds"] * 1000 >= deadline_ms + SPARE_S_MIN * 1000
    assert "lifecycle" not in CONTAINERS[queue]


@each_queue
@pytest.mark.parametrize("name", PROBES)
def test_probes_ask_the_worker_on_its_metrics_port(queue, name):
    path = "/readyz" if name == "readinessProbe" else "/healthz"

    assert CONTAINERS[queue][name]["httpGet"] == {"path": path, "port": "metrics"}


def test_the_depths_are_restarted_for_silence_alone():
    assert METRICS["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert "readinessProbe" not in METRICS


@each_queue
def test_a_worker_is_killed_for_silence_only_when_its_leases_are_gone(queue):
    probe = CONTAINERS[queue]["livenessProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] * 1000 >= LeaseSettings().lease_ms


@pytest.mark.parametrize(
    ("name", "host", "port"),
    [*((queue, "metrics_host", "metrics_port") for queue in QUEUES), (SHARED[0], "host", "port")],
)
def test_what_is_scraped_listens_outside_on_the_port_that_is_named(name, host, port):
    options = parsed(CONTAINERS[name]["args"])
    (named,) = CONTAINERS[name]["ports"]

    assert (options[host], options[port]) == (EVERY_INTERFACE, named["containerPort"])
    assert named["name"] == MONITOR["spec"]["podMetricsEndpoints"][0]["port"]


@each_name
def test_a_pod_is_one_container_with_the_command_of_the_image(name):
    assert "initContainers" not in PODS[name]
    assert "command" not in CONTAINERS[name]
    assert CONTAINERS[name]["args"][0] == CONTAINERS[name]["name"]


def test_upkeep_and_depths_serve_every_queue_that_has_workers():
    assert set(parsed(UPKEEP["args"])["queues"]) == set(QUEUES)
    assert set(parsed(METRICS["args"])["queues"]) == set(QUEUES)


def test_upkeep_has_one_that_takes_over():
    deployment = one(rendered("shared"), "Deployment", "chasqui-upkeep")
    budget = one(rendered("shared"), "PodDisruptionBudget")

    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    assert selected(budget, deployment)


def test_what_is_scraped_bears_the_job_names_that_alerts_know():
    named = {
        name: one(rendered(o), "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        for o, name in [*((q, f"chasqui-worker-{q}") for q in QUEUES), ("shared", SHARED[0])]
    }
    found = {labels["app.kubernetes.io/name"] for labels in named.values()}
    scrape = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
    scraped = {job["job_name"] for job in scrape["scrape_configs"]}

    assert MONITOR["spec"]["jobLabel"] == "app.kubernetes.io/name"
    assert set(MONITOR["spec"]["selector"]["matchExpressions"][0]["values"]) == found
    assert found == {job for job in scraped if job != "chasqui-server"}


@each_overlay
def test_a_deployment_selects_its_own_pods(overlay):
    for deployment in (m for m in rendered(overlay) if m["kind"] == "Deployment"):
        assert deployment["spec"]["selector"]["matchLabels"].items() <= pod_labels(deployment)


@each_queue
def test_no_selector_of_a_queue_takes_pods_of_another(queue):
    deployment = one(rendered(queue), "Deployment")
    others = [one(rendered(other), "Deployment") for other in QUEUES if other != queue]
    spreads = [spread["labelSelector"] for spread in PODS[queue]["topologySpreadConstraints"]]
    budget = one(rendered(queue), "PodDisruptionBudget")
    policy = one(rendered(queue), "NetworkPolicy")

    for selector in (*spreads, budget["spec"]["selector"], policy["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= pod_labels(deployment)
        assert not any(selector["matchLabels"].items() <= pod_labels(other) for other in others)


@each_queue
def test_workers_are_spread_over_zones_and_machines_and_leave_one_at_a_time(queue):
    spreads = PODS[queue]["topologySpreadConstraints"]
    budget = one(rendered(queue), "PodDisruptionBudget")["spec"]

    assert [spread["topologyKey"] for spread in spreads] == [
        "topology.kubernetes.io/zone", "kubernetes.io/hostname",
    ]  # fmt: skip
    assert {spread["whenUnsatisfiable"] for spread in spreads} == {"ScheduleAnyway"}
    # While the server is away no worker is ready, and nodes can be drained all the same.
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


@each_name
def test_a_container_has_few_rights_and_bounded_memory(name):
    rights, resources = (CONTAINERS[name][key] for key in ("securityContext", "resources"))

    assert rights == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"memory", "ephemeral-storage"} == resources["limits"].keys()
    assert resources["requests"].keys() == {"cpu", "memory", "ephemeral-storage"}


@each_name
def test_a_pod_is_not_root_and_knows_no_cluster(name):
    overlay = "shared" if name in SHARED else name
    account = one(rendered(overlay), "ServiceAccount")

    assert PODS[name]["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert PODS[name]["serviceAccountName"] == account["metadata"]["name"]
    assert PODS[name]["automountServiceAccountToken"] is False
    assert account["automountServiceAccountToken"] is False


@each_name
def test_an_image_has_a_tag_of_its_own(name):
    assert re.search(r"(:(?!latest)[\w.-]+|@sha256:[0-9a-f]{64})$", CONTAINERS[name]["image"])


@each_overlay
def test_prometheus_alone_comes_in_and_only_the_server_and_names_are_reached(overlay):
    policy = one(rendered(overlay), "NetworkPolicy")["spec"]
    (entry,) = policy["ingress"]
    (prometheus,) = entry["from"]
    ports = [[port["port"] for port in way["ports"]] for way in policy["egress"]]

    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for port in entry["ports"]] == ["metrics"]
    assert values_of(prometheus["podSelector"]) == ["prometheus"]
    assert ports == [[6379, 26379], [53, 53]]
    assert values_of(policy["egress"][0]["to"][0]["podSelector"]) == ["valkey", "redis"]


@each_name
def test_the_url_comes_from_a_secret(name):
    (variable,) = CONTAINERS[name]["env"]

    assert variable["name"] == "CHASQUI_REDIS_URL"
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "chasqui-redis", "key": "url"}


@each_overlay
def test_no_overlay_holds_a_secret(overlay):
    assert "Secret" not in {manifest["kind"] for manifest in rendered(overlay)}


def test_the_template_of_the_secret_has_every_key_that_is_asked_for_and_no_value():
    asked = {"url", "ca.crt"} | {ref["key"] for ref in authentication()["spec"]["secretTargetRef"]}
    values = SECRET["stringData"]

    assert values.keys() == asked
    assert all("REPLACE-ME" in text or key == "keda-username" for key, text in values.items())
    assert "data" not in SECRET


@each_name
def test_the_authority_of_the_url_is_where_it_is_mounted(name):
    (mount,) = [m for m in CONTAINERS[name]["volumeMounts"] if m["name"] == "server-ca"]
    (volume,) = [v for v in PODS[name]["volumes"] if v["name"] == "server-ca"]

    assert f"ssl_ca_certs={mount['mountPath']}/ca.crt" in SECRET["stringData"]["url"]
    assert volume["secret"]["secretName"] == SECRET["metadata"]["name"]
    assert volume["secret"]["optional"]


def test_keda_measures_the_stream_of_the_queue_that_is_worked_on():
    options = parsed(CONTAINERS["orders"]["args"])
    (trigger,) = scaled()["spec"]["triggers"]
    metadata = trigger["metadata"]

    assert trigger["type"] == "redis-streams"
    assert metadata["stream"] == QueueKeys(options["queue_name"]).stream
    assert int(metadata["streamLength"]) >= options["concurrency"]
    # With one the scaler would look at pending entries, which stop growing at full load.
    assert "consumerGroup" not in metadata


def test_keda_asks_over_tls_with_a_password_from_the_secret():
    (trigger,) = scaled()["spec"]["triggers"]
    refs = authentication()["spec"]["secretTargetRef"]

    assert trigger["metadata"]["enableTLS"] == "true"
    assert "unsafeSsl" not in trigger["metadata"]
    assert trigger["authenticationRef"]["name"] == authentication()["metadata"]["name"]
    assert {ref["parameter"] for ref in refs} == {"address", "username", "password", "ca"}
    assert {ref["name"] for ref in refs} == {SECRET["metadata"]["name"]}


@each_queue
def test_an_autoscaler_scales_the_workers_and_never_to_none(queue):
    deployment = one(rendered(queue), "Deployment")
    kind = "ScaledObject" if queue == "orders" else "HorizontalPodAutoscaler"
    spec = one(rendered(queue), kind)["spec"]
    least = spec.get("minReplicas", spec.get("minReplicaCount"))
    most = spec.get("maxReplicas", spec.get("maxReplicaCount"))

    assert spec["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert 1 <= least <= spec.get("fallback", {}).get("replicas", least) <= most


def test_the_autoscaler_without_keda_asks_for_what_the_adapter_tells():
    (metric,) = one(rendered("mails"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    (rule,) = ADAPTER["externalRules"]
    asked = metric["external"]["metric"]

    assert asked["name"] == rule["name"]["as"]
    assert asked["selector"]["matchLabels"] == {"queue": "mails"}
    options = parsed(CONTAINERS["mails"]["args"])
    assert int(metric["external"]["target"]["averageValue"]) >= options["concurrency"]


def test_the_adapter_asks_for_what_is_exported():
    (rule,) = ADAPTER["externalRules"]
    expr = parse(rule["metricsQuery"].replace("<<.LabelMatchers>>", 'queue="mails"'))

    assert {s.name for s in selectors(expr)} == {"chasquimq_queue_ready", "chasquimq_queue_pending"}
    assert "queue" in labels_of(expr, exported())
    assert [s.name for s in selectors(parse(rule["seriesQuery"]))] == ["chasquimq_queue_ready"]


def test_the_autoscaler_by_cpu_has_something_to_measure_against():
    (metric,) = one(rendered("thumbnails"), "HorizontalPodAutoscaler")["spec"]["metrics"]

    assert metric["resource"]["target"]["type"] == "Utilization"
    assert "cpu" in CONTAINERS["thumbnails"]["resources"]["requests"]


def scaled() -> dict[str, Any]:
    return one(rendered("orders"), "ScaledObject")


def authentication() -> dict[str, Any]:
    return one(rendered("orders"), "TriggerAuthentication")


def pod_labels(deployment: dict[str, Any]) -> Any:
    return deployment["spec"]["template"]["metadata"]["labels"].items()


def selected(budget: dict[str, Any], deployment: dict[str, Any]) -> bool:
    return budget["spec"]["selector"]["matchLabels"].items() <= pod_labels(deployment)


def values_of(selector: dict[str, Any]) -> list[str]:
    ((expression,),) = selector.values()
    return expression["values"]
