"""Renders the overlays with kustomize or kubectl, and records them: python -m deploy.rendering."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import yaml

from deploy.kit import DEPLOY, OVERLAYS, RENDERED, Manifests, run

KUBERNETES = DEPLOY / "kubernetes"
# A digest of what the records were made of: of content, so that a comment may change.
SOURCES_FILE = RENDERED / "sources.sha256"
HEAD = "# Recorded by `python -m deploy.rendering`; do not edit.\n"


def builder() -> list[str] | None:
    """The command that renders a folder; None where this machine has none."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


def render(folder: Path) -> Manifests:
    command = builder()
    assert command, "kustomize or kubectl must be on PATH to render"
    return sorted(yaml.safe_load_all(run([*command, str(folder)])), key=_order)


def _order(manifest: dict) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def sources_digest() -> str:
    """A digest of all that the overlays are made of, whatever the comments and the layout."""
    files = sorted((KUBERNETES).rglob("*.yaml"))
    content = {
        str(file.relative_to(KUBERNETES)): list(yaml.safe_load_all(file.read_text()))
        for file in files
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def record() -> None:
    for overlay in OVERLAYS:
        text = yaml.safe_dump_all(render(KUBERNETES / "overlays" / overlay), sort_keys=True)
        (RENDERED / f"{overlay}.yaml").write_text(HEAD + text)
    SOURCES_FILE.write_text(sources_digest() + "\n")


if __name__ == "__main__":
    record()
