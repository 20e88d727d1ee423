"""The folder of a session: gone with its process, and swept by the next where that was killed."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from chasquimq.errors import NotSupportedError, SettingsError
from chasquimq.settings import at_least
from chasquimq.spark.jvm import ended_if_not_started, find_java, quiet_home, signals_left_alone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX: Final = "chasqui-spark-"
_OWNER: Final = "owner"
# A lock is held as long as its file is open.
_held: list[TextIO] = []


def scratch_folder() -> Path:
    """A folder of this process alone; those of dead processes are gone afterwards."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _claim(folder)
    return folder


def sweep() -> None:
    """Delete folders whose owners are dead; what has no owner's mark is not ours to judge."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not _is_ours(folder):
            continue
        # Its owner lives, or it is gone already.
        with suppress(OSError), (folder / _OWNER).open("r+") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """All users share the temporary directory: a link or another user's folder is left alone."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _claim(folder: Path) -> None:
    """Mark a folder as that of this process; the mark is locked before it can be seen."""
    draft = folder / f"{_OWNER}.draft"
    mark = draft.open("w")
    fcntl.flock(mark, fcntl.LOCK_EX)
    draft.rename(folder / _OWNER)
    _held.append(mark)


CONNECT_SCHEME: Final = "sc://"
_MASTERS = ("local", "spark://", "yarn", "k8s://", CONNECT_SCHEME)
_MASTER_RULE = "local[*], local[n], spark://host:port, yarn, k8s://…, or sc://host:port for Connect"
_SKETCHES_CLASS = "org.apache.datasketches.memory.internal.ResourceImpl"
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_SOURCE_ROOT = Path(__file__).parents[2]
# Spark's first lines come before it reads any setting of its own; where the gateway has a level
# that is not the root's, it says so.
_LOG4J = """
status = error
rootLogger.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How to reach Spark, and how much of this machine it may have."""

    master: str = "local[*]"
    app_name: str = "chasqui"
    # The heap of the JVM; with its own needs and four Python processes it comes to twice this.
    memory_mb: int = 768
    log_level: str = "OFF"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not self.master.startswith(_MASTERS):
            raise SettingsError("master", self.master, _MASTER_RULE)
        at_least("memory_mb", self.memory_mb, 512)

    @property
    def is_connect(self) -> bool:
        return self.master.startswith(CONNECT_SCHEME)

    @property
    def is_local(self) -> bool:
        """Whether everything runs on this machine."""
        return self.master.startswith("local")


def open_session(settings: SessionSettings | None = None) -> SparkSession:
    """The session of this process; one that is open already is taken as it is.

    Raises:
        NotSupportedError: pyspark is not installed, or Spark did not start.
        SettingsError: no Java is new enough.
    """
    settings = settings or SessionSettings()
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as missing:
        raise NotSupportedError(
            f"the pipeline needs the module {missing.name}, which is not installed; "
            "pip install 'chasquimq-py[spark]'"
        ) from missing
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    _give_workers_our_path(settings)
    if settings.log_level == "OFF":
        _quiet_queries()
    return _connect(settings) if settings.is_connect else _start(settings)


def _give_workers_our_path(settings: SessionSettings) -> None:
    """Python processes are started here too, to plan what executors read."""
    if settings.is_local:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    else:
        # Other machines may have their Python elsewhere; an environment that says where is believed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(_SOURCE_ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(_SOURCE_ROOT), *filter(None, paths)])


def _quiet_queries() -> None:
    """A query that is refused is logged with its Java trace, though it raises all the same."""
    from pyspark.logger import PySparkLogger

    for name in _QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _connect(settings: SessionSettings) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(settings.master)
    for name, value in settings.conf.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, ImportError) as error:
        raise _did_not_start(settings, error) from error


def _start(settings: SessionSettings) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    folder = scratch_folder()
    os.environ["JAVA_HOME"] = str(quiet_home(find_java(), folder))
    builder = SparkSession.builder.appName(settings.app_name).master(settings.master)
    for name, value in {**_conf(settings, folder), **settings.conf}.items():
        builder = builder.config(name, value)
    try:
        with ended_if_not_started(), signals_left_alone():
            session = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise _did_not_start(settings, error) from error
    _load_sketches_quietly(session.sparkContext)
    if not settings.is_local:
        session.sparkContext.addPyFile(_package_archive(folder))
    return session


def _load_sketches_quietly(context: Any) -> None:
    """The library of the sketches warns on every Java from 12 on, once, when it is loaded."""
    java: Any = context._jvm.java  # noqa: SLF001  the one way to the JVM
    err = java.lang.System.err
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
    try:
        java.lang.Class.forName(_SKETCHES_CLASS)
    finally:
        java.lang.System.setErr(err)


def _did_not_start(settings: SessionSettings, error: Exception) -> NotSupportedError:
    why = " ".join(str(error).split())[:300]
    return NotSupportedError(
        f"Spark must start with master {settings.master!r}, but did not: {why}; "
        "look whether it is reachable and has the memory, or use local[*]"
    )


def _conf(settings: SessionSettings, folder: Path) -> dict[str, str]:
    (folder / "log4j2.properties").write_text(_LOG4J.format(level=settings.log_level.lower()))
    return {
        **_QUIET,
        **_SMALL_BATCHES,
        **(_on_this_machine() if settings.is_local else {}),
        "spark.driver.memory": f"{settings.memory_mb}m",
        "spark.driver.extraJavaOptions": (
            f"-XX:+UseParallelGC -Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        ),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.session.timeZone": "UTC",
}
# Batches of a second hold thousands of rows, not billions: planning them must cost little.
_SMALL_BATCHES: Final = {
    "spark.sql.shuffle.partitions": str(max(2, min(8, os.cpu_count() or 2))),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.locality.wait": "0s",
    # A Python process of a busy machine may need longer than Spark's quarter of a minute.
    "spark.python.authenticate.socketTimeout": "120s",
}


def _on_this_machine() -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }


def _package_archive(folder: Path) -> str:
    """Our package as an archive for machines that do not have it; what it needs they must have."""
    name = str(folder / "chasquimq")
    return shutil.make_archive(name, "zip", root_dir=_SOURCE_ROOT, base_dir="chasquimq")
