"""Alerts ask only for what is exported, say what to do, and ring when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from chasquimq.cli.main import COMMANDS, load_command
from deploy.exported import OF_PROMETHEUS, exported
from deploy.promql import TEMPLATE_LABEL, labels_of, matched_labels, parse, selectors

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS_FILE = DEPLOY / "prometheus/alerts.yml"
SCRAPE = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
GROUPS = yaml.safe_load(ALERTS_FILE.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"]]
ALERT_IDS = [rule["alert"] for rule in ALERTS]
CASES_FILE = Path(__file__).with_name("alert_cases.yml")
COMMAND = re.compile(r"`chasqui (?P<words>[^`]+)`")
PROMTOOL = shutil.which("promtool")

each_alert = pytest.mark.parametrize("rule", ALERTS, ids=ALERT_IDS)


@each_alert
def test_an_alert_asks_for_series_and_labels_that_are_exported(rule):
    expr = parse(rule["expr"])

    assert [s.name for s in selectors(expr) if s.name not in exported()] == []
    for selector in selectors(expr):
        assert matched_labels(selector) <= exported()[selector.name]
    # Walks all of it, and refuses a grouping by a label that is not there.
    labels_of(expr, exported())


@each_alert
def test_an_alert_says_what_is_so_what_it_means_and_what_to_do(rule):
    notes = rule["annotations"]

    assert list(notes) == ["summary", "description", "action"]
    assert all(text.endswith(".") for text in notes.values())
    assert rule["labels"]["severity"] in ("critical", "warning")


@each_alert
def test_the_text_of_an_alert_uses_labels_that_it_has(rule):
    used = set(TEMPLATE_LABEL.findall(" ".join(rule["annotations"].values())))

    assert used <= labels_of(parse(rule["expr"]), exported())


@each_alert
def test_commands_in_an_alert_can_be_typed(rule):
    for found in COMMAND.finditer(rule["annotations"]["action"]):
        words = found["words"].split()
        command = load_command(COMMANDS[words[0]].target)
        if words[0] == "dlq":
            command = command.commands[words[1]]
        options = {name for param in command.params for name in param.opts}
        assert {word for word in words if word.startswith("--")} <= options


@each_alert
def test_options_in_an_alert_exist(rule):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rule["annotations"]["action"]))
    lines = [load_command(COMMANDS[name].target) for name in ("worker", "metrics", "events")]
    lines += load_command(COMMANDS["dlq"].target).commands.values()
    known = {name for line in lines for param in line.params for name in param.opts}

    assert named <= known


def test_an_alert_names_another_that_exists():
    mentioned = set(re.findall(r"\bChasqui[A-Z]\w+", ALERTS_FILE.read_text()))

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
    ranges = re.findall(r"\[(\w+)\]", ALERTS_FILE.read_text())

    assert ranges
    assert all(seconds(text) >= 4 * interval_s for text in ranges)


def test_every_alert_has_a_case_that_rings_and_one_that_does_not():
    cases = yaml.safe_load(CASES_FILE.read_text())["tests"]
    looks = [look for case in cases for look in case["alert_rule_test"]]
    rings = {look["alertname"] for look in looks if look.get("exp_alerts")}
    rests = {look["alertname"] for look in looks if not look.get("exp_alerts")}

    assert rings == set(ALERT_IDS)
    assert rests == set(ALERT_IDS)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
def test_alerts_ring_when_they_should(tmp_path):
    # Cases are about labels and time; promtool would have every sentence repeated in them.
    bare = [{**g, "rules": [without_notes(rule) for rule in g["rules"]]} for g in GROUPS]
    (tmp_path / ALERTS_FILE.name).write_text(yaml.safe_dump({"groups": bare}))
    (tmp_path / CASES_FILE.name).write_text(CASES_FILE.read_text())

    said = subprocess.run(
        [str(PROMTOOL), "test", "rules", CASES_FILE.name],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip

    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
def test_prometheus_takes_the_configuration():
    said = subprocess.run(
        [str(PROMTOOL), "check", "config", str(DEPLOY / "prometheus/scrape.yml")],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip

    assert said.returncode == 0, said.stdout + said.stderr


def without_notes(rule: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in rule.items() if key != "annotations"}


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([smh])", duration).groups()
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]
