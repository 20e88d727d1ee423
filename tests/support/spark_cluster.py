"""A real cluster of Spark on this machine: a master and workers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from chasquimq.spark.jvm import find_java, quiet_home

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
_BACKEND = b"CoarseGrainedExecutorBackend"
_ADDRESS = re.compile(r"Starting Spark master at (?P<url>spark://\S+)")
START_S_MAX = 180.0


class Cluster:
    """One master and workers of a core or more; all on loopback, all gone after `close`."""

    def __init__(self, folder: Path, workers: int, *, cores: int = 1) -> None:
        self._folder = folder
        home = quiet_home(find_java(), folder)
        self._environ = {
            "PATH": os.environ["PATH"], "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(folder / "work"),
        }  # fmt: skip
        self._started: list[subprocess.Popen[bytes]] = []
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
        self.url = self._until(lambda: _ADDRESS.search(self._log("master")), "a master")["url"]
        for number in range(workers):
            name = f"worker-{number}"
            # Each on an address of its own: a copy of a task never runs where the task does.
            self._start(
                name, "worker.Worker", "--host", f"127.0.0.{number + 1}",
                "--cores", str(cores), "--memory", "600m", self.url,
            )  # fmt: skip
            self._until(lambda name=name: "Successfully registered" in self._log(name), name)

    def executors(self) -> list[int]:
        """The processes of executors that live now, the oldest first."""
        ours = {process.pid for process in self._started}
        return [pid for pid, parent, line in _processes() if parent in ours and _BACKEND in line]

    def close(self) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, part: str, *args: str) -> None:
        command = [str(_CLASS), f"{_DEPLOY}.{part}", "--webui-port", "0", *args]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    command, env=self._environ, cwd=self._folder, stdout=log, stderr=log,
                    stdin=subprocess.DEVNULL,
                )
            )  # fmt: skip

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    @staticmethod
    def _until(condition, what: str):
        until_s = time.monotonic() + START_S_MAX
        while not (found := condition()):
            assert time.monotonic() < until_s, f"{what} did not start within {START_S_MAX} s"
            time.sleep(0.1)
        return found


def descendants(pid: int) -> list[int]:
    """All processes that came of that one."""
    parents = {child: parent for child, parent, _ in _processes()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def is_running(pid: int) -> bool:
    """Whether it is there, and no zombie that its parent has yet to notice."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _processes() -> Iterator[tuple[int, int, bytes]]:
    """Pid, parent and command line, oldest first."""
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            yield int(entry.name), int(fields[1]), (entry / "cmdline").read_bytes()
        except OSError:
            continue  # gone meanwhile
