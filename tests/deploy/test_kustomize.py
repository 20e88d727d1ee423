"""Overlays render to what is recorded, and every object of them is one that Kubernetes takes."""

from __future__ import annotations

import importlib.util
import shutil
from shutil import copytree

import pytest
import yaml

from deploy.kit import DEPLOY, OVERLAYS, RENDERED, Manifests, one, rendered, run
from deploy.rendering import KUBERNETES, SOURCES_FILE, builder, render, sources_digest

KUBECONFORM = shutil.which("kubeconform")
HAS_SCHEMAS = importlib.util.find_spec("kubernetes_validate") is not None
# Objects of operators, which no schema of Kubernetes knows: the fields that their own schemas have.
CUSTOM = {
    "ScaledObject": {
        "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "fallback",
        "advanced", "triggers",
    },
    "TriggerAuthentication": {"secretTargetRef"},
    "PodMonitor": {"jobLabel", "selector", "podMetricsEndpoints"},
}  # fmt: skip

needs_kustomize = pytest.mark.skipif(builder() is None, reason="needs kustomize or kubectl")
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def test_every_overlay_is_recorded_and_no_other():
    folders = {path.name for path in (KUBERNETES / "overlays").iterdir()}

    assert folders == set(OVERLAYS) == {path.stem for path in RENDERED.glob("*.yaml")}


def test_records_are_of_the_sources_that_are_here():
    assert SOURCES_FILE.read_text().strip() == sources_digest(), "run python -m deploy.rendering"


@needs_kustomize
@each_overlay
def test_an_overlay_renders_to_exactly_what_is_recorded(overlay):
    assert render(KUBERNETES / "overlays" / overlay) == rendered(overlay)


@needs_kustomize
def test_an_image_may_be_named_by_its_digest(tmp_path):
    digest = f"sha256:{'5b' * 32}"
    folder = tmp_path / "kubernetes"
    copytree(KUBERNETES, folder)
    file = folder / "overlays/mails/kustomization.yaml"
    file.write_text(file.read_text().replace("newTag: 1.0.0", f"digest: {digest}"))

    worker = one(render(folder / "overlays/mails"), "Deployment")

    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.org/shop/worker@{digest}"


@needs_kustomize
@pytest.mark.parametrize("base", ["worker", "shared"])
def test_a_base_alone_names_no_image_that_exists(base):
    """Who applies it without an overlay sees ErrImagePull, not somebody's image."""
    deployments = [m for m in render(KUBERNETES / "base" / base) if m["kind"] == "Deployment"]

    images = {d["spec"]["template"]["spec"]["containers"][0]["image"] for d in deployments}
    assert images == {"chasqui-worker:set-by-overlay"}


@pytest.mark.skipif(not HAS_SCHEMAS, reason="needs kubernetes-validate")
@each_overlay
def test_kubernetes_knows_every_field(overlay):
    validate(rendered(overlay))


@pytest.mark.skipif(not HAS_SCHEMAS, reason="needs kubernetes-validate")
def test_kubernetes_knows_every_field_of_the_secret():
    validate(list(yaml.safe_load_all((KUBERNETES / "secret.example.yaml").read_text())))


@pytest.mark.skipif(not HAS_SCHEMAS, reason="needs kubernetes-validate")
def test_a_field_that_kubernetes_does_not_know_is_noticed():
    import kubernetes_validate

    wrong = one(rendered("orders"), "PodDisruptionBudget")
    with pytest.raises(kubernetes_validate.ValidationError, match="maxUnavailble"):
        validate([wrong | {"spec": wrong["spec"] | {"maxUnavailble": 1}}])


@pytest.mark.skipif(KUBECONFORM is None, reason="needs kubeconform")
@each_overlay
def test_kubeconform_takes_what_is_rendered(overlay):
    file = str(RENDERED / f"{overlay}.yaml")

    run([str(KUBECONFORM), "-strict", "-skip", ",".join(CUSTOM), file])


@each_overlay
def test_objects_of_operators_have_no_field_but_known_ones(overlay):
    custom = [manifest for manifest in rendered(overlay) if manifest["kind"] in CUSTOM]

    assert [m["kind"] for m in custom if set(m["spec"]) - CUSTOM[m["kind"]]] == []


def test_adding_a_queue_takes_a_few_lines():
    """Beside the image, which is the same for all."""
    file = DEPLOY / "kubernetes/overlays/mails/kustomization.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]

    assert len(lines) <= 16


def validate(manifests: Manifests) -> None:
    import kubernetes_validate

    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, "1.37", strict=True)
