"""Each alert has a runbook, each runbook an alert, and what they tell to type can be typed."""

from __future__ import annotations

import re
import shlex
import subprocess

import click
import pytest
import yaml

from chasquimq.cli.app import COMMANDS, load_command
from deploy.exported import OF_SERVER, known
from deploy.kit import DEPLOY, ROOT
from deploy.promql import parse, selectors
from deploy.test_alerts import ALERTS, FILES

RUNBOOKS = ROOT / "docs/runbooks"
PAGES = {page.stem: page.read_text() for page in RUNBOOKS.glob("*.md") if page.stem != "README"}
METRICS_PAGE = (ROOT / "docs/reference/metrics.md").read_text()
OPERATE_PAGE = (ROOT / "docs/how-to/operate.md").read_text()
HEADINGS = [
    "What it means", "What users notice", "Look first", "How to fix it", "When to wake someone",
]  # fmt: skip
CONSOLE = re.compile(r"^```console\n\$ (?P<command>.+)\n(?P<output>(?:.*\n)+?)```$", re.MULTILINE)
INLINE = re.compile(r"`(chasqui [^`]+)`")
ROW = re.compile(r"^\| `(redis_\w+)` \| (\w+) \| (.*?) \|", re.MULTILINE)

each_page = pytest.mark.parametrize("name", sorted(PAGES))
each_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])


def test_each_alert_has_a_page_and_each_page_an_alert():
    assert sorted(PAGES) == sorted(rule["alert"] for rule in ALERTS)


def test_the_list_of_runbooks_names_every_one():
    assert re.findall(r"\]\((\w+)\.md\)", (RUNBOOKS / "README.md").read_text()) == [
        rule["alert"] for rule in ALERTS
    ]


@each_alert
def test_an_alert_leads_to_its_page(rule):
    url = rule["annotations"]["runbook_url"]

    assert url == f"https://example.org/chasquimq/docs/runbooks/{rule['alert']}.md"


@each_alert
def test_a_page_says_how_grave_the_alert_is(rule):
    assert f"\n**{rule['labels']['severity']}**: " in PAGES[rule["alert"]]


@each_page
def test_a_page_has_every_part_and_something_in_each(name):
    title, *parts = re.split(r"^## ", PAGES[name], flags=re.MULTILINE)

    assert title.startswith(f"# {name}\n")
    assert [part.partition("\n")[0] for part in parts] == HEADINGS
    assert all(len(part.partition("\n")[2].strip()) > 2 for part in parts)


@each_page
def test_a_page_shows_three_commands_with_what_they_answer(name):
    found = list(CONSOLE.finditer(PAGES[name]))

    assert len(found) == 3 == PAGES[name].count("```console")
    assert len({one["command"] for one in found}) == 3


@each_page
def test_commands_of_ours_can_be_typed(name):
    shown = [one["command"].partition(" | ")[0] for one in CONSOLE.finditer(PAGES[name])]
    for line in [*shown, *INLINE.findall(PAGES[name])]:
        program, *words = shlex.split(line)
        if program == "chasqui":
            assert_can_be_typed(words)


def assert_can_be_typed(words: list[str]) -> None:
    command = load_command(COMMANDS[words[0]].target)
    rest = words[1:]
    if isinstance(command, click.Group):
        command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options, words


@each_alert
def test_metrics_of_an_alert_are_on_the_page_of_metrics(rule):
    for selector in selectors(parse(rule["expr"])):
        name = re.sub("_(bucket|count|sum)$", "", selector.name)
        assert name == "up" or f"`{name}`" in METRICS_PAGE


def test_metrics_of_the_scaler_are_on_the_page_of_metrics():
    text = (DEPLOY / "prometheus/adapter.yml").read_text()

    for name in set(re.findall(r"chasquimq_queue_(?!backlog)\w+", text)):
        assert f"`{name}`" in METRICS_PAGE


def test_the_page_of_metrics_lists_what_alerts_ask_of_the_server_and_no_more():
    rows = {
        name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels in ROW.findall(METRICS_PAGE)
    }

    assert rows == {name: set(labels) for name, labels in OF_SERVER.items()}
    asked = {s.name for rule in ALERTS for s in selectors(parse(rule["expr"]))}
    assert {name for name in asked if name.startswith("redis_")} == set(OF_SERVER)


def test_every_depth_that_is_exported_is_on_the_page_of_metrics():
    depths = {name for name in known() if name.startswith("chasquimq_queue_")}

    assert {name for name in depths if f"`{name}`" not in METRICS_PAGE} == set()


def test_the_command_on_the_page_makes_rules_for_the_operator_of_both_files():
    (block,) = re.findall(r"^```sh\n(.+?)^```", OPERATE_PAGE, re.MULTILINE | re.DOTALL)
    said = subprocess.run(
        ["sh", "-c", block.replace("kubectl apply -f -", "cat")],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=20,
    )  # fmt: skip

    made = [one for one in yaml.safe_load_all(said.stdout) if one]
    assert [one["kind"] for one in made] == ["PrometheusRule"] * len(FILES)
    assert [one["spec"] for one in made] == [yaml.safe_load(file.read_text()) for file in FILES]
