"""The manifests run commands that exist, and their numbers fit the worker's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from chasquimq.settings import LeaseSettings
from chasquimq.wire.keys import QueueKeys
from deploy.kit import DEPLOY, EVERY_INTERFACE, manifests, parsed, pod

FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
WORKER_POD, METRICS_POD = pod("worker.yaml"), pod("metrics.yaml")
(WORKER,) = WORKER_POD["containers"]
(METRICS,) = METRICS_POD["containers"]
SCALED, AUTHENTICATION = manifests("keda.yaml")
CONTAINERS = [WORKER, METRICS]
PROBES = ["startupProbe", "readinessProbe", "livenessProbe"]
SPARE_S_MIN = 10

each_container = pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c["name"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_manifest_says_what_it_is(path: Path):
    for manifest in yaml.safe_load_all(path.read_text()):
        assert {"apiVersion", "kind", "metadata", "spec"} <= manifest.keys()
        assert manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "chasqui"


def test_the_pod_has_longer_than_the_deadline():
    deadline_ms = parsed(WORKER["args"])["shutdown_deadline_ms"]
    grace_s = WORKER_POD["terminationGracePeriodSeconds"]

    assert grace_s * 1000 >= deadline_ms + SPARE_S_MIN * 1000


@pytest.mark.parametrize("name", PROBES)
def test_probes_ask_the_worker_on_its_metrics_port(name):
    path = "/readyz" if name == "readinessProbe" else "/healthz"

    assert WORKER[name]["httpGet"] == {"path": path, "port": "metrics"}


def test_the_depths_are_restarted_for_silence_alone():
    assert METRICS["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert "readinessProbe" not in METRICS


def test_a_worker_is_killed_for_silence_only_when_its_leases_are_gone():
    probe = WORKER["livenessProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] * 1000 >= LeaseSettings().lease_ms


@pytest.mark.parametrize(
    ("container", "host", "port"),
    [(WORKER, "metrics_host", "metrics_port"), (METRICS, "host", "port")],
    ids=["worker", "metrics"],
)
def test_what_is_scraped_listens_outside_on_the_port_that_is_named(container, host, port):
    options = parsed(container["args"])
    (named,) = container["ports"]

    assert container["args"][0] == container["name"]
    assert "command" not in container
    assert (options[host], options[port]) == (EVERY_INTERFACE, named["containerPort"])
    assert named["name"] == monitor()["spec"]["podMetricsEndpoints"][0]["port"]


@pytest.mark.parametrize("spec", [WORKER_POD, METRICS_POD], ids=["worker", "metrics"])
def test_a_pod_needs_no_second_container(spec):
    assert "initContainers" not in spec


def test_what_is_scraped_bears_the_job_names_that_alerts_know():
    named = [
        manifests(name)[0]["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for name in ("worker.yaml", "metrics.yaml")
    ]
    scrape = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())

    assert monitor()["spec"]["jobLabel"] == "app.kubernetes.io/name"
    assert monitor()["spec"]["selector"]["matchExpressions"][0]["values"] == named
    assert [job["job_name"] for job in scrape["scrape_configs"]] == named


@pytest.mark.parametrize("name", ["worker.yaml", "metrics.yaml"])
def test_a_deployment_selects_its_own_pods(name):
    spec = manifests(name)[0]["spec"]

    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@each_container
def test_a_container_has_few_rights_and_bounded_memory(container):
    rights = container["securityContext"]

    assert rights["readOnlyRootFilesystem"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert "memory" in container["resources"]["limits"]
    assert "cpu" not in container["resources"]["limits"]


@pytest.mark.parametrize("spec", [WORKER_POD, METRICS_POD], ids=["worker", "metrics"])
def test_a_pod_is_not_root_and_knows_no_cluster(spec):
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("container", [WORKER, METRICS], ids=["worker", "metrics"])
def test_the_url_comes_from_a_secret(container):
    (variable,) = container["env"]

    assert variable["name"] == "CHASQUI_REDIS_URL"
    assert secret_of(variable) == "chasqui-redis"


def test_no_manifest_holds_a_secret():
    kinds = [m["kind"] for path in FILES for m in yaml.safe_load_all(path.read_text())]

    assert "Secret" not in kinds


def test_the_scaler_measures_the_stream_of_the_queue_that_is_worked_on():
    options = parsed(WORKER["args"])
    (trigger,) = SCALED["spec"]["triggers"]
    metadata = trigger["metadata"]

    assert trigger["type"] == "redis-streams"
    assert metadata["stream"] == QueueKeys(options["queue_name"]).stream
    assert int(metadata["streamLength"]) >= options["concurrency"]
    # With one the scaler would look at pending entries, which stop growing at full load.
    assert "consumerGroup" not in metadata


def test_the_scaler_scales_the_worker_and_never_to_nobody():
    deployment = manifests("worker.yaml")[0]
    spec = SCALED["spec"]

    assert spec["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]


def test_the_scaler_finds_its_password():
    (trigger,) = SCALED["spec"]["triggers"]
    refs = AUTHENTICATION["spec"]["secretTargetRef"]

    assert trigger["authenticationRef"]["name"] == AUTHENTICATION["metadata"]["name"]
    assert {ref["name"] for ref in refs} == {"chasqui-redis"}


def monitor() -> dict[str, Any]:
    return manifests("monitor.yaml")[0]


def secret_of(variable: dict[str, Any]) -> str:
    return variable["valueFrom"]["secretKeyRef"]["name"]
