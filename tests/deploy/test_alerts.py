"""Alerts ask only for what is exported, say what to do, and ring when they should."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import pytest
import yaml

from chasquimq.cli.app import COMMANDS, load_command
from deploy.exported import OF_PROMETHEUS, known
from deploy.kit import run
from deploy.promql import TEMPLATE_LABEL, labels_of, matched_labels, parse, selectors

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
FILES = [PROMETHEUS / name for name in ("alerts.yml", "server-alerts.yml")]
CASES = [PROMETHEUS / "tests" / file.name for file in FILES]
CONFIGURATIONS = ["scrape.yml", "scrape-server.yml"]
SCRAPE = yaml.safe_load((PROMETHEUS / "scrape.yml").read_text())
GROUPS = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
ALERTS = [rule for group in GROUPS for rule in group["rules"]]
TEXT = "".join(file.read_text() for file in FILES)
ALERT_IDS = [rule["alert"] for rule in ALERTS]
COMMAND = re.compile(r"`chasqui (?P<words>[^`]+)`")
PROMTOOL = shutil.which("promtool")

each_alert = pytest.mark.parametrize("rule", ALERTS, ids=ALERT_IDS)


@each_alert
def test_an_alert_asks_for_series_and_labels_that_are_exported(rule):
    expr = parse(rule["expr"])

    assert [s.name for s in selectors(expr) if s.name not in known()] == []
    for selector in selectors(expr):
        assert matched_labels(selector) <= known()[selector.name]
    # Walks all of it, and refuses a grouping by a label that is not there.
    labels_of(expr, known())


@each_alert
def test_an_alert_says_what_is_so_what_it_means_and_what_to_do(rule):
    notes = rule["annotations"]

    assert list(notes) == ["summary", "description", "action", "runbook_url"]
    assert all(text.endswith(".") for name, text in notes.items() if name != "runbook_url")
    assert rule["labels"]["severity"] in ("critical", "warning")


@each_alert
def test_the_text_of_an_alert_uses_labels_that_it_has(rule):
    used = set(TEMPLATE_LABEL.findall(" ".join(rule["annotations"].values())))

    assert used <= labels_of(parse(rule["expr"]), known())


@each_alert
def test_commands_in_an_alert_can_be_typed(rule):
    for found in COMMAND.finditer(rule["annotations"]["action"]):
        words = found["words"].split()
        command = load_command(COMMANDS[words[0]].target)
        if words[0] == "dlq":
            command = command.get_command(click.Context(command), words[1])
        options = {name for param in command.params for name in param.opts}
        assert {word for word in words if word.startswith("--")} <= options


@each_alert
def test_options_in_an_alert_exist(rule):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rule["annotations"]["action"]))
    lines = [load_command(COMMANDS[name].target) for name in ("worker", "metrics", "events")]
    dlq = load_command(COMMANDS["dlq"].target)
    context = click.Context(dlq)
    lines += [dlq.get_command(context, name) for name in dlq.list_commands(context)]
    known = {name for line in lines for param in line.params for name in param.opts}

    assert named <= known


def test_an_alert_names_another_that_exists():
    mentioned = set(re.findall(r"\bChasqui[A-Z]\w+", TEXT))

    assert mentioned == set(ALERT_IDS)
    assert len(ALERT_IDS) == len(set(ALERT_IDS))


def test_jobs_that_alerts_name_are_scraped_under_these_names():
    asked = {
        matcher.value
        for rule in ALERTS
        for selector in selectors(parse(rule["expr"]))
        if selector.name in OF_PROMETHEUS
        for matcher in selector.matchers.matchers
    }

    assert asked == {job["job_name"] for job in SCRAPE["scrape_configs"]}


def test_a_range_holds_several_scrapes():
    interval_s = seconds(SCRAPE["global"]["scrape_interval"])
    ranges = re.findall(r"\[(\w+)\]", TEXT)

    assert ranges
    assert all(seconds(text) >= 4 * interval_s for text in ranges)


def test_every_alert_has_a_case_that_rings_and_one_that_does_not():
    looks = [
        look
        for file in CASES
        for case in yaml.safe_load(file.read_text())["tests"]
        for look in case["promql_expr_test"]
    ]
    rings = {asked_for(look) for look in looks if look.get("exp_samples")}
    rests = {asked_for(look) for look in looks if not look.get("exp_samples")}

    assert rings == set(ALERT_IDS)
    assert rests == set(ALERT_IDS)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
@pytest.mark.parametrize("cases", CASES, ids=lambda file: file.name)
def test_alerts_ring_when_they_should(cases):
    run([str(PROMTOOL), "test", "rules", str(cases)])


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
def test_prometheus_takes_every_rule():
    run([str(PROMTOOL), "check", "rules", *map(str, FILES)])


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_prometheus_takes_the_configuration(name):
    run([str(PROMTOOL), "check", "config", str(PROMETHEUS / name)])


def asked_for(look: dict[str, str]) -> str:
    return re.search(r'alertname="(\w+)"', look["expr"])[1]


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([smh])", duration).groups()
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]
