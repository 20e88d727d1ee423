"""What a batch is about to commit, written down before the first table gets it.

A batch touches a dozen tables, and each has a log of its own. Once its manifest is on disk a batch
will be committed to all of them: a pipeline that is killed on the way finds it again and goes on, and each
table takes a change once. Before that, nothing of the batch counts, and it is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from chasquimq.spark.lake.durable import write_durably
from chasquimq.spark.lake.lake import Change, Lake, Once


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one batch, and what makes each of them happen once."""

    once: Once
    changes: Sequence[Change]


class ManifestFile:
    """Where a writer keeps the one manifest that it may have under way."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, manifest: Manifest) -> None:
        """From here on the batch will be committed, whatever happens."""
        write_durably(self._path, msgspec.json.encode(manifest))

    def settle(self, lake: Lake) -> Manifest | None:
        """Commit what is under way; None where there was nothing."""
        manifest = self.read()
        if manifest is None:
            return None
        for change in manifest.changes:
            lake.commit(change, manifest.once)
            lake.sync(change.table)
        self._path.unlink()
        return manifest

    def read(self) -> Manifest | None:
        """What is under way; None where there is nothing."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return None
