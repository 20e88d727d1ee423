"""Pages say what is so: code comes from examples, links lead somewhere, lists are complete."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

import chasquimq
from chasquimq import errors, settings
from chasquimq.cli.main import COMMANDS
from chasquimq.model.attempt_row import AttemptOutcome
from chasquimq.model.reason import DlqReason
from chasquimq.wire import event_fields
from chasquimq.wire.history_columns import HistoryColumns
from chasquimq.wire.keys import QueueKeys

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]
SETTINGS_PAGE = ROOT / "docs/reference/settings.md"
ERRORS_PAGE = ROOT / "docs/reference/errors.md"
API_PAGE = ROOT / "docs/reference/api.md"
EVENTS_PAGE = ROOT / "docs/reference/events.md"
KEYS_PAGE = ROOT / "docs/reference/keys.md"
HISTORY_PAGE = ROOT / "docs/reference/history.md"
DECISIONS = sorted((ROOT / "docs/explanation/decisions").glob("*.md"))
NOUNS = [
    chasquimq.Queue, chasquimq.Worker, chasquimq.Job, chasquimq.QueueEvents, chasquimq.QueueEvent,
    chasquimq.Upkeep, chasquimq.Producer, chasquimq.Consumer, chasquimq.Scheduler,
]  # fmt: skip
LOGGING_ROOMS = ("engine", "store", "telemetry", "queue", "worker")
# What `./chasqui` does before there is a package to ask.
CHECKOUT_COMMANDS = {"setup", "test", "gate"}
SETTINGS = [kind for _, kind in inspect.getmembers(settings, dataclasses.is_dataclass)]

FENCE = re.compile(
    r"(?:^<!-- from (?P<path>\S+?)(?:: (?P<region>\w+))? -->\n)?^```(?P<language>\w*)\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"^<!-- from .*-->$", re.MULTILINE)
REGION = r"^(?P<indent> *)# region {name}\n(?P<code>.*?)^(?P=indent)# endregion$"
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `(?P<field>\w+)` \| `(?P<default>[^`]+)` \|", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"^    (?:\./)?chasqui (?P<name>\w+)(?: (?P<word>\w+))?", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.…])/(?:home|root|work|Users|tmp|var|opt|mnt|private)/")
HOST = re.compile(r"\b(?:[\w-]+\.)+(?:com|dev|io|net|org)\b")
# Names that belong to nobody; every other host would lead out of the project.
HOSTS_ALLOWED = {"example.org"}


class Block(NamedTuple):
    """A fenced block, and the example that it says it is from."""

    path: str | None
    region: str | None
    code: str


def test_the_attributes_of_log_records_are_on_the_page_about_the_log():
    page = (ROOT / "docs/how-to/run-a-worker.md").read_text()
    section = FENCE.sub("", page[page.index("## Read the log") :])
    files = [ROOT / "src/chasquimq/hooks.py", *chain.from_iterable(map(python_in, LOGGING_ROOMS))]

    given = {key for file in files for key in keys_of_records(file.read_text())}

    assert {"job_id", "untold", "loop"} <= given
    assert given - set(CODE.findall(section)) == set()


def python_in(room: str) -> list[Path]:
    return sorted((ROOT / "src/chasquimq" / room).rglob("*.py"))


def keys_of_records(source: str) -> Iterator[str]:
    """The keys of dicts that are given as `extra` to a log call."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "extra"
            and isinstance(node.value, ast.Dict)
        ):
            yield from (key.value for key in node.value.keys if isinstance(key, ast.Constant))


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_python_on_a_page_comes_from_an_example(page):
    strays = [block.code for block in python_blocks(page) if block.path is None]

    assert strays == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_python_on_a_page_equals_its_example(page):
    blocks = [block for block in python_blocks(page) if block.path]

    assert [block.code for block in blocks] == [example_code(block) for block in blocks]


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_mark_stands_right_before_python(page):
    marks = MARK.findall(page.read_text())

    assert len(marks) == len([block for block in python_blocks(page) if block.path])


def test_the_readme_shows_the_whole_quickstart():
    (block,) = python_blocks(ROOT / "README.md")

    assert (block.path, block.region) == ("examples/quickstart.py", None)
    assert block.code == (ROOT / "examples/quickstart.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_relative_links_lead_somewhere(page):
    broken = [target for target in links(page) if not leads_somewhere(page, target)]

    assert broken == []


def test_every_page_can_be_reached_from_the_readme():
    reached: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead += [other for other in linked_pages(page) if other not in reached]

    assert [page for page in PAGES if page not in reached] == []


@pytest.mark.parametrize("settings_class", SETTINGS, ids=lambda kind: kind.__name__)
def test_the_settings_page_lists_every_field_with_its_default(settings_class):
    text = section_of(settings_class, SETTINGS_PAGE)
    rows = {row["field"]: row["default"] for row in ROW.finditer(text)}

    assert rows.keys() == {field.name for field in dataclasses.fields(settings_class)}
    made = settings_class()
    assert {field: default_of(text) for field, text in rows.items()} == {
        field: getattr(made, field) for field in rows
    }


def test_the_errors_page_lists_every_error():
    text = ERRORS_PAGE.read_text()
    names = [name for name, kind in inspect.getmembers(errors, inspect.isclass) if is_error(kind)]
    in_table = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    in_tree = set(re.findall(r"^    (?:[│ ]*[├└]─ )?(\w+)", text, re.MULTILINE))

    assert in_table == set(names)
    assert in_tree == set(names)


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_the_api_page_names_every_public_member_and_every_argument(noun):
    wanted = {name for name in dir(noun) if not name.startswith("_")} | arguments_of(noun)

    assert wanted - words_of(section_of(noun, API_PAGE)) == set()


def test_the_api_page_names_everything_that_can_be_imported():
    assert set(chasquimq.__all__) - words_of(API_PAGE.read_text()) == set()


def test_the_events_page_lists_every_event_and_every_field():
    text = EVENTS_PAGE.read_text()
    fields = [field for field, _ in event_fields._OPTIONAL_FIELDS]

    assert listed(section(text, "Every event")) == list(event_fields.EventKind)
    assert listed(section(text, "Every field")) == ["e", "id", "n", "ts", *fields]


def test_the_keys_page_lists_every_key():
    keys = QueueKeys("<queue>")
    fixed = {getattr(keys, name) for name in QueueKeys.__slots__} - {keys.queue, keys._prefix}
    per_job = (keys.result, keys.outcome, keys.dlid, keys.didx, keys.uniq)
    named = {key("<job id>") for key in per_job} | {
        keys.token("<text>"), keys.repeat_spec("<key>"), keys.claim_gate("<group>"),
    }  # fmt: skip

    assert {code for code in CODE.findall(KEYS_PAGE.read_text()) if code.startswith("{")} == {
        *fixed, *named, "{chasqui:<queue>}",
    }  # fmt: skip


def test_the_keys_page_lists_every_reason():
    assert set(listed(section(KEYS_PAGE.read_text(), "Reasons"))) == set(DlqReason)


def test_the_list_of_pages_names_every_decision_in_order():
    targets = [found["target"] for found in LINK.finditer((ROOT / "docs/README.md").read_text())]

    listed_names = [Path(target).name for target in targets if "/decisions/" in target]

    assert listed_names == [page.name for page in DECISIONS]


def test_decisions_are_numbered_without_a_gap_and_open_with_their_number():
    numbers = [page.name.partition("-")[0] for page in DECISIONS]

    assert numbers == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]
    assert [page.read_text()[:8] for page in DECISIONS] == [f"# {number}: " for number in numbers]


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_command_on_a_page_can_be_typed(page):
    typed = {found["name"] for found in COMMAND.finditer(page.read_text())}

    assert typed - COMMANDS.keys() - CHECKOUT_COMMANDS == set()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_a_page_names_no_place_outside_the_project(page):
    text = page.read_text()

    assert MACHINE_PATH.findall(text) == []
    assert set(HOST.findall(text)) <= HOSTS_ALLOWED


def python_blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text())
    return [Block(f["path"], f["region"], f["code"]) for f in found if f["language"] == "python"]


def example_code(block: Block) -> str:
    text = (ROOT / str(block.path)).read_text()
    if block.region is None:
        return text
    found = re.search(REGION.format(name=block.region), text, re.MULTILINE | re.DOTALL)
    assert found, f"{block.path} has no region {block.region}"
    return dedent(found["code"]).strip("\n") + "\n"


def links(page: Path) -> list[str]:
    prose = FENCE.sub("", page.read_text())
    return [found["target"] for found in LINK.finditer(prose)]


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    other = (page.parent / path).resolve() if path else page
    if not other.exists() or not other.is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors(other)


def linked_pages(page: Path) -> Iterator[Path]:
    for target in links(page):
        other = (page.parent / target.partition("#")[0]).resolve()
        if other.suffix == ".md" and other.exists():
            yield other


def anchors(page: Path) -> set[str]:
    prose = FENCE.sub("", page.read_text())
    return {anchor_of(found["title"]) for found in HEADING.finditer(prose)}


def anchor_of(title: str) -> str:
    """The anchor that a forge gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def section_of(kind: type, page: Path) -> str:
    """What stands between the heading of a class and the next heading."""
    return section(page.read_text(), kind.__name__)


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def listed(text: str) -> list[str]:
    """What the rows of a table begin with."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def words_of(text: str) -> set[str]:
    """Every word that is set in code, in a heading or a table or a sentence."""
    return {word for code in CODE.findall(text) for word in re.findall(r"\w+", code)}


def arguments_of(noun: type) -> set[str]:
    calls = [
        noun,
        *(member for name, member in inspect.getmembers(noun) if is_method(name, member)),
    ]
    named = {name for call in calls for name in inspect.signature(call).parameters}
    return {name for name in named if not name.startswith("_")} - {"self"}


def is_method(name: str, member: object) -> bool:
    return inspect.isfunction(member) and not name.startswith("_")


def default_of(text: str) -> object:
    if text.endswith("()"):
        return getattr(settings, text.removesuffix("()"))()
    return ast.literal_eval(text)


def is_error(kind: type) -> bool:
    return issubclass(kind, errors.ChasquiError)


def test_the_history_page_names_every_column_and_every_outcome_in_order():
    text = HISTORY_PAGE.read_text()
    columns = re.findall(
        r"^\| `(\w+)` \|", text.split("## Columns")[1].split("## ")[0], re.MULTILINE
    )
    words = re.findall(r"^\| (\d) \| `(\w+)` \|", text, re.MULTILINE)

    assert columns == list(HistoryColumns.__struct_fields__)
    assert words == [(str(int(one)), one.label) for one in AttemptOutcome]
