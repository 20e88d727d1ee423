"""Pages say what is so: code comes from examples, links lead somewhere, lists are complete."""

import ast
import builtins
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

import chasquimq
from chasquimq import errors, server, settings
from chasquimq.cli.app import COMMANDS
from chasquimq.model.delivery import DlqReason
from chasquimq.wire import events as event_fields
from chasquimq.wire.history import AttemptOutcome, HistoryColumns
from chasquimq.wire.keys import QueueKeys

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
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
SETTINGS.append(chasquimq.Hooks)

FENCE = re.compile(
    r"(?:^<!-- from (?P<path>\S+?)(?:: (?P<region>\w+))? -->\n)?^```(?P<language>\w*)\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
CLASS_NAME = re.compile(r"\b[A-Z][a-z]\w*\b(?!:)")
# A heading of several words is no name.
TITLE_NAME = re.compile(r"^#+ ((?:[A-Z][a-z]+){2,})$", re.MULTILINE)
OURS = {*chasquimq.__all__, "OtelSink", "PrometheusSink"}
MARK = re.compile(r"^<!-- from .*-->$", re.MULTILINE)
REGION = r"^(?P<indent> *)# region {name}\n(?P<code>.*?)^(?P=indent)# endregion$"
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `(?P<field>\w+)` \| `(?P<default>[^`]+)` \|", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"^    (?:\./)?chasqui (?P<name>\w+)(?: (?P<word>\w+))?", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.…])/(?:home|root|work|Users|tmp|var|opt|mnt|private)/")
HOST = re.compile(r"\b(?:[\w-]+\.)+(?:com|dev|io|net|org)\b")
# Names that belong to nobody, and prefixes of labels and of API groups; every other host would lead
# out of the project.
HOSTS_ALLOWED = {"example.org", "app.kubernetes.io", "monitoring.coreos.com"}


class Block(NamedTuple):
    """A fenced block, and the example that it says it is from."""

    path: str | None
    region: str | None
    code: str


def test_the_attributes_of_log_records_are_on_the_page_about_the_log():
    page = (ROOT / "docs/how-to/run-a-worker.md").read_text()
    section = FENCE.sub("", page[page.index("## Read the log") :])
    files = [
        ROOT / "src/chasquimq/worker/hooks.py",
        *chain.from_iterable(map(python_in, LOGGING_ROOMS)),
    ]

    given = {key for file in files for key in keys_of_records(file.read_text())}

    assert {"job_id", "reason", "loop"} <= given
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
def test_python_on_a_page_equals_its_example_and_carries_its_imports(page):
    blocks = [block for block in python_blocks(page) if block.path]

    assert [block.code for block in blocks] == list(expected_blocks(blocks))


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_name_of_the_package_is_imported_before_a_page_uses_it(page):
    """In the block itself, or in an earlier one on the page that is from the same example."""
    known: dict[str, set[str]] = {}
    missing = []
    for number, (source, code) in enumerate(programs_on(page)):
        bound = known.setdefault(source or f"block {number}", set())
        bound |= names_bound(code)
        missing += sorted(names_used(code) & OURS - bound)

    assert missing == []


def test_a_name_that_no_block_imports_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n    from chasquimq import Queue\n\n    queue = Queue('q', retry=RetrySettings())\n"
    )

    with pytest.raises(AssertionError, match="RetrySettings"):
        test_every_name_of_the_package_is_imported_before_a_page_uses_it(page)


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


def test_the_reference_pages_name_everything_that_can_be_imported():
    pages = (API_PAGE, SETTINGS_PAGE, ERRORS_PAGE)
    named = set().union(*(words_of(page.read_text()) for page in pages))
    titles = set().union(*(HEADING.findall(page.read_text()) for page in pages))

    assert set(chasquimq.__all__) - named - titles == set()


@pytest.mark.parametrize("page", [API_PAGE, SETTINGS_PAGE, ERRORS_PAGE], ids=lambda page: page.stem)
def test_every_name_of_a_reference_page_can_be_imported_from_the_package(page):
    missing = [name for name in names_for_users(page) if not hasattr(chasquimq, name)]

    assert missing == []


def test_every_name_of_the_section_on_servers_can_be_imported_from_its_module():
    named = class_names(section(API_PAGE.read_text(), "Servers"))

    assert {"Found", "ProjectServer", "SessionServer"} <= named
    assert [name for name in named - OURS if not hasattr(server, name)] == []


def test_the_package_lists_what_it_exports_in_order_and_leaves_out_what_needs_an_extra():
    listed_names = chasquimq.__all__
    needs_extra = {"OtelSink", "PrometheusSink"}

    assert listed_names == sorted(listed_names, key=str.casefold)
    assert set(listed_names) == (set(chasquimq._HOMES) - needs_extra) | {"version"}
    assert all(hasattr(chasquimq, name) for name in listed_names)


def test_a_documented_name_without_an_export_is_found(tmp_path):
    page = tmp_path / "api.md"
    page.write_text(
        "## QueueEvents\n\n`Worker` raises `NoSuchThing`, as `Type: message`, or `OSError`.\n"
    )

    assert names_for_users(page) == ["NoSuchThing", "QueueEvents", "Worker"]


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
        keys.worker("<consumer>"),
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


def test_every_file_that_the_page_for_contributors_names_exists():
    named = re.findall(r"`((?:[\w-]+/)+[\w.-]*)(?:::\w+)?`", CONTRIBUTING.read_text())
    roots = (ROOT, ROOT / "src/chasquimq", ROOT / "src")

    assert {"cli/app.py", "tests/store", "telemetry/families.py"} <= set(named)
    assert [one for one in named if not any((root / one).exists() for root in roots)] == []


def test_every_function_and_class_that_the_page_for_contributors_names_exists():
    named = re.findall(r"`((?:\w+/)+\w+\.py)::(\w+)`", CONTRIBUTING.read_text())
    texts = {path: (ROOT / "src/chasquimq" / path).read_text() for path, _ in named}

    assert ("model/retry.py", "judge") in named
    assert [
        (path, name)
        for path, name in named
        if not re.search(rf"^(?:def|class) {name}\b", texts[path], re.MULTILINE)
    ] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_a_status_and_says_what_was_decided_why_and_at_what_cost(page):
    text = page.read_text()
    labels = re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE)

    assert labels[:2] == ["Status", "Decision"]
    assert {"Why", "Cost"} <= set(labels)
    assert re.search(
        r"^\*\*Status\.\*\* (Accepted|Superseded by .+), \d{4}-\d\d-\d\d\.", text, re.MULTILINE
    )


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_command_on_a_page_can_be_typed(page):
    typed = {found["name"] for found in COMMAND.finditer(page.read_text())}

    assert typed - COMMANDS.keys() - CHECKOUT_COMMANDS == set()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_a_page_names_no_place_outside_the_project(page):
    text = page.read_text()

    assert MACHINE_PATH.findall(text) == []
    hosts = {one for one in HOST.findall(text) if not one.startswith("chasquimq.")}
    assert hosts <= HOSTS_ALLOWED


def python_blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text())
    return [Block(f["path"], f["region"], f["code"]) for f in found if f["language"] == "python"]


def expected_blocks(blocks: list[Block]) -> Iterator[str]:
    """What an example says in each place, after imports that no earlier block of it has."""
    known: dict[str | None, set[str]] = {}
    for block in blocks:
        bound = known.setdefault(block.path, set())
        code = example_code(block)
        wanted = names_used(code) - bound - names_bound(code)
        imports = imports_of((ROOT / str(block.path)).read_text(), wanted)
        yield joined(imports, code)
        bound |= names_bound(imports + code)


def imports_of(source: str, wanted: set[str]) -> str:
    """The imports of an example that bring these names, and nothing else."""
    groups: dict[int, list[str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        node.names = [one for one in node.names if bound_by(one) in wanted]
        if node.names:
            groups.setdefault(group_of(node), []).append(ast.unparse(node))
    return "\n".join("".join(f"{line}\n" for line in groups[key]) for key in sorted(groups))


def joined(imports: str, code: str) -> str:
    if not imports:
        return code
    is_definition = re.match(r"@|def |async def |class ", code)
    return imports + ("\n\n" if is_definition else "\n") + code


def group_of(node: ast.Import | ast.ImportFrom) -> int:
    """The standard library, other packages, ours."""
    module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
    root = str(module).partition(".")[0]
    return 0 if root in sys.stdlib_module_names else 2 if root == "chasquimq" else 1


def programs_on(page: Path) -> Iterator[tuple[str | None, str]]:
    """Python that is fenced, with its example, and Python that is indented."""
    yield from ((block.path, block.code) for block in python_blocks(page))
    for found in INDENTED.finditer(FENCE.sub("", page.read_text())):
        with suppress(SyntaxError):
            ast.parse(dedent(found[0]))
            yield None, dedent(found[0])


def names_used(code: str) -> set[str]:
    nodes = ast.walk(ast.parse(code))
    return {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def names_bound(code: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {bound_by(one) for one in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def names_for_users(page: Path) -> list[str]:
    """Classes that a reference page names in code, and those that it has a section about."""
    text = page.read_text()
    # These are for imports of their own.
    text = text.replace(section(text, "Servers"), "")
    text = text.replace(section(text, "Without an event loop"), "")
    return sorted(class_names(text))


def class_names(text: str) -> set[str]:
    tree = " ".join(re.findall(r"^    (?:[│ ]*[├└]─ )?(\w+)", text, re.MULTILINE))
    places = [*CODE.findall(FENCE.sub("", text)), *TITLE_NAME.findall(text), tree]
    # `Type: message` is how an error is written down.
    found = {name for place in places for name in CLASS_NAME.findall(place)}
    return {name for name in found if not hasattr(builtins, name)}


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
