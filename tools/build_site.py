"""Builds a site from the pages of the project; a broken link fails the build.

`make docs` runs it. Neither the build nor the site needs a network. All pages are copied into one
tree first, so that links between docs/ and the pages beside it hold.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build/site"
# Every file that a page may link to.
PAGES = ("*.md", "LICENSE", "docs/**/*.md", "benchmarks/**/*.md", "benchmarks/**/*.png")
WORKER = "tools/iframe-worker.js"
CONTENTS = "docs/README.md"
RUNBOOKS = "docs/runbooks/README.md"
LINK = re.compile(r"^- \[([^\]]+)\]\(([^)\s#]+\.md)\)", re.MULTILINE)
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
GROUP = re.compile(r"^([A-Z][\w ]+):$", re.MULTILINE)

Entry = dict[str, Any]
# Made of the docstrings of what users import: title, file, and where such names live.
SIGNATURES = "docs/reference/signatures"
KINDS = (
    ("Queues, workers and jobs", "main", r"(?!chasquimq\.(settings|errors|telemetry)\b)"),
    ("Settings", "settings", r"chasquimq\.settings\b"),
    ("Errors", "errors", r"chasquimq\.errors\b"),
    ("Metrics and traces", "telemetry", r"chasquimq\.telemetry\b"),
)
PROJECT: Entry = {
    "Project": [
        CONTENTS,
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        {"Benchmarks": "benchmarks/README.md"},
    ]
}


def main(argv: Sequence[str]) -> int:
    site = Path(argv[0]).resolve() if argv else SITE
    warnings = build(ROOT, site)
    if warnings:
        print(*(f"error: {warning}" for warning in warnings), sep="\n", file=sys.stderr)
        print("error: there is no site; correct the pages named above", file=sys.stderr)
        return 1
    print(f"open {site / 'index.html'}")
    return 0


def build(root: Path, site: Path) -> list[str]:
    """Build the site; return the warnings that stopped the build."""
    from mkdocs.commands import build as command
    from mkdocs.exceptions import Abort

    pages = site.with_name(f"{site.name}-pages")
    copy_pages(root, pages)
    write_signatures(root, pages)
    (pages / "assets").mkdir()
    shutil.copy(root / WORKER, pages / "assets")
    heard = _Warnings()
    logging.getLogger("mkdocs").addHandler(heard)
    try:
        # It has no types.
        config: Any = import_module("mkdocs.config")
        settings: Entry = {"docs_dir": str(pages), "site_dir": str(site), "nav": navigation(root)}
        command.build(config.load_config(str(root / "mkdocs.yml"), **settings))
    except Abort as aborted:
        return heard.messages or [str(aborted)]
    finally:
        logging.getLogger("mkdocs").removeHandler(heard)
        shutil.rmtree(pages)
    return []


class _Warnings(logging.Handler):
    """Collects the warnings of mkdocs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def copy_pages(root: Path, target: Path) -> None:
    """Copy every page and keep its path."""
    shutil.rmtree(target, ignore_errors=True)
    for page in (found for pattern in PAGES for found in root.glob(pattern)):
        copy = target / page.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)


def write_signatures(root: Path, target: Path) -> None:
    """Write the pages that mkdocstrings fills with signatures and docstrings."""
    folder = target / SIGNATURES
    folder.mkdir(parents=True)
    homes = public_names(root)
    for title, stem, pattern in KINDS:
        names = [name for name, home in homes.items() if re.match(pattern, home)]
        wanted = "\n".join(f"::: chasquimq.{name}\n" for name in names)
        page = f"# {title}\n\n`from chasquimq import …`\n\n{wanted}"
        (folder / f"{stem}.md").write_text(page, encoding="utf-8")


def public_names(root: Path) -> dict[str, str]:
    """Find the names that users import and where each lives, without importing anything."""
    # It has no stubs of its own exports.
    griffe: Any = import_module("griffe")
    package = griffe.load("chasquimq", search_paths=[root / "src"], resolve_aliases=False)
    found: dict[str, str] = {}
    for name in package.exports:
        member = package[name]
        found[name] = member.target_path if member.is_alias else member.path
    return found


def navigation(root: Path) -> list[Entry]:
    """Make a tab of each section in the list of pages, and add the runbooks and other pages."""
    contents = (root / CONTENTS).read_text(encoding="utf-8")
    tabs = [{title: _entries(text)} for title, text in _parts(SECTION, contents)]
    signatures: list[Entry] = [{title: f"{SIGNATURES}/{stem}.md"} for title, stem, _ in KINDS]
    next(tab["Reference"] for tab in tabs if "Reference" in tab).append({"Signatures": signatures})
    runbooks = _links((root / RUNBOOKS).read_text(encoding="utf-8"), RUNBOOKS)
    return [{"Home": "README.md"}, *tabs, {"Runbooks": [RUNBOOKS, *runbooks]}, PROJECT]


def _entries(section: str) -> list[Entry]:
    """The pages of a section, those below a line such as `Adding:` together."""
    alone, *_ = GROUP.split(section, maxsplit=1)
    groups = [{title: _links(text)} for title, text in _parts(GROUP, section)]
    return [*_links(alone), *groups]


def _parts(title: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """Each title, and the text up to the next one."""
    _, *parts = title.split(text)
    return zip(parts[::2], parts[1::2], strict=True)


def _links(text: str, page: str = CONTENTS) -> list[Entry]:
    """Title and path of each page that a list names."""
    folder = page.rpartition("/")[0]
    return [{title: f"{folder}/{target}"} for title, target in LINK.findall(text)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
