"""Sends the handler's module to executors that do not share this machine's folders."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chasquimq.spark.session import scratch_folder

if TYPE_CHECKING:
    from pyspark import SparkContext


def ship(context: SparkContext, target: str, files: Sequence[str], folder: Path) -> None:
    """Send the files that were named, and the handler's own package where it is in the folder."""
    for path in files:
        context.addPyFile(path)
    if str(context.master).startswith("local["):
        return
    package = _own_package(target.partition(":")[0], folder)
    if package is not None:
        context.addPyFile(_archive(package))


def _own_package(module: str, folder: Path) -> Path | None:
    """The file or folder of a module's root; None: it was installed, and executors have theirs."""
    root = sys.modules.get(module.partition(".")[0])
    file = getattr(root, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    path = path.parent if path.name == "__init__.py" else path
    return path if path.parent == folder.resolve() else None


def _archive(package: Path) -> str:
    if package.is_file():
        return str(package)
    name = str(scratch_folder() / package.name)
    return shutil.make_archive(name, "zip", root_dir=package.parent, base_dir=package.name)
