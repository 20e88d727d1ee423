"""`make docs` builds a site from all pages, without a network, and stops at a broken link."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

import chasquimq

# Seconds of pure computing, many times as long where other tests compute, too.
pytestmark = pytest.mark.timeout(420)

ROOT = Path(__file__).parents[2]
TOOL = "tools/build_site.py"
# Runs the tool in a Python that can reach nobody.
WITHOUT_NETWORK = """
import runpy, socket, sys
def refuse(*_): raise SystemExit("the build used a socket")
socket.socket.connect = socket.getaddrinfo = refuse
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
# An address of another host that a browser would load by itself.
LOADED = re.compile(
    r"""(?:\bsrc=|<link[^>]*\bhref=|url\(|@import )["']?((?:https?:)?//[^"')> ]+)"""
)
# The place of a name on a page of signatures.
DOCUMENTED = re.compile(r'<h\d id="chasquimq\.([\w.]+)"')
SMALL_PACKAGE = '''
"""A package of which one name is public."""

__all__ = ["version"]


def version() -> str:
    """The version of this package."""
    return ""
'''
ANCHORED = re.compile(r'<h\d id="([^"]+)"')


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_NETWORK, str(root / TOOL), str(site)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the pages as they are."""
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project's pages, with a small package, to be broken."""
    root = tmp_path / "copy"
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copytree(ROOT / "benchmarks", root / "benchmarks")
    (root / "tools").mkdir()
    (root / "src/chasquimq").mkdir(parents=True)
    (root / "src/chasquimq/__init__.py").write_text(SMALL_PACKAGE)
    for path in (
        TOOL,
        "tools/iframe-worker.js",
        "mkdocs.yml",
        "LICENSE",
        *(page.name for page in ROOT.glob("*.md")),
    ):
        shutil.copyfile(ROOT / path, root / path)
    return root


def test_every_page_becomes_a_page_of_the_site(site: Path):
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    made = [page.relative_to(ROOT).with_suffix(".html") for page in pages]
    expected = [path.with_name("index.html") if path.stem == "README" else path for path in made]

    assert [path for path in expected if not (site / path).is_file()] == []


def test_a_browser_loads_nothing_from_another_host(site: Path):
    texts = [path.read_text() for suffix in ("html", "css") for path in site.rglob(f"*.{suffix}")]

    assert len(texts) > 80
    assert {host for text in texts for host in LOADED.findall(text)} == set()


def test_headings_have_the_anchors_that_a_forge_gives_them(site: Path):
    page = (site / "docs/how-to/retry-and-backoff.html").read_text()

    assert "jobs-whose-worker-died" in ANCHORED.findall(page)


def test_the_search_finds_every_page(site: Path):
    index = (site / "search/search_index.json").read_text()

    assert '"docs/how-to/install.html"' in index
    assert '"docs/explanation/guarantees.html"' in index


def test_the_search_works_on_pages_from_a_disk(site: Path):
    page = (site / "docs/how-to/install.html").read_text()

    assert '<script src="../../assets/iframe-worker.js">' in page
    assert (site / "assets/iframe-worker.js").is_file()
    assert (site / "search/search_index.js").read_text().startswith("var __index = {")


def test_pages_are_light_or_dark_as_the_system_says_until_a_reader_chooses(site: Path):
    schemes = re.findall(r'data-md-color-media="([^"]*)"', (site / "index.html").read_text())

    assert schemes == [
        "(prefers-color-scheme)", "(prefers-color-scheme: light)", "(prefers-color-scheme: dark)",
    ]  # fmt: skip


def test_every_public_name_has_its_place_on_one_page_of_signatures(site: Path):
    pages = sorted((site / "docs/reference/signatures").glob("*.html"))
    documented = [name for page in pages for name in DOCUMENTED.findall(page.read_text())]

    assert [name for name in chasquimq.__all__ if documented.count(name) != 1] == []


@pytest.mark.parametrize("noun", [chasquimq.Queue, chasquimq.Worker, chasquimq.Job])
def test_a_class_is_documented_with_every_member_and_the_arguments_of_its_making(site, noun: type):
    text = (site / "docs/reference/signatures/main.html").read_text()
    documented = set(DOCUMENTED.findall(text))
    wanted = {name for name in dir(noun) if not name.startswith("_")}

    assert {name for name in wanted if f"{noun.__name__}.{name}" not in documented} == set()
    described = text.partition(f'id="chasquimq.{noun.__name__}"')[2][:60_000]
    words = set(re.findall(r"\w+", re.sub(r"<[^>]+>", " ", described)))
    assert {name for name in signature(noun).parameters if name not in words} == set()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("how-to/nowhere.md", "docs/how-to/nowhere.md"),
        ("how-to/install.md#nowhere", "does not contain an anchor '#nowhere'"),
        ("../src/chasquimq/job.py", "src/chasquimq/job.py"),
    ],
    ids=["page", "anchor", "outside"],
)
def test_a_broken_link_fails_the_build_and_is_named(copy: Path, target: str, said: str):
    page = copy / "docs/glossary.md"
    page.write_text(f"{page.read_text()}\n[broken]({target})\n")

    done = build(copy, copy / "site")

    assert done.returncode == 1
    assert said in done.stderr
    assert "docs/glossary.md" in done.stderr


def test_a_page_that_no_list_names_fails_the_build(copy: Path):
    (copy / "docs/how-to/forgotten.md").write_text("# Forgotten\n")

    done = build(copy, copy / "site")

    assert done.returncode == 1
    assert "docs/how-to/forgotten.md" in done.stderr


def test_a_page_that_was_removed_leaves_the_site(copy: Path):
    assert build(copy, copy / "site").returncode == 0
    (copy / "site/stale.html").write_text("a page of yesterday")

    assert build(copy, copy / "site").returncode == 0

    assert not (copy / "site/stale.html").exists()
