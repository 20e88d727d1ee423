"""Spark for tests: the same programs, with less to do before and while they run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pyspark

# Sessions of tests live for seconds: what the last compiler of a JVM makes pays off in minutes.
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1"
_PYTHON_PART = "python"


def lighten(folder: Path) -> None:
    """Let every session that this process and its children start be a light one."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", _JVM_OPTIONS)
    os.environ.setdefault("SPARK_HOME", str(_home_without_archives(folder)))


def _home_without_archives(folder: Path) -> Path:
    """Spark's own folder without the archives of its Python part.

    What comes out of an archive is compiled in each of the processes that every query starts; the
    installed package is the same, and compiled.
    """
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != _PYTHON_PART:
            # Other processes of the run make the same links.
            with suppress(FileExistsError):
                (folder / part.name).symlink_to(part)
    return folder
