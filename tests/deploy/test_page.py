"""The page about operating names every file and every alert, and numbers that are in the files."""

from __future__ import annotations

import re
import shlex

import yaml

from deploy.exported import exported
from deploy.kit import DEPLOY, ROOT, one, parsed, pod, rendered, unit
from deploy.promql import matched_labels, parse, selectors

PAGE = (ROOT / "docs/how-to/operate.md").read_text()
DEPLOY_PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
ALERTS = [
    group
    for name in ("alerts.yml", "server-alerts.yml")
    for group in yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"]
]
SCRAPE = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
CODE = re.compile(r"`([^`\n]+)`")


def test_every_file_of_the_kit_is_on_the_page():
    named = set(CODE.findall(DEPLOY_PAGE.partition("\n## ")[0]))
    files = [str(p.relative_to(DEPLOY)) for p in DEPLOY.rglob("*") if is_shipped(p)]
    folders = [name for name in named if name.endswith("/")]

    missing = [f for f in files if f not in named and not any(f.startswith(d) for d in folders)]
    assert missing == []
    assert [n for n in named - {"deploy/"} if not (DEPLOY / n).exists()] == []


def test_every_alert_is_on_the_page_and_none_else():
    on_page = re.findall(r"`(Chasqui\w+)`", PAGE)

    assert on_page == [rule["alert"] for group in ALERTS for rule in group["rules"]]


def test_every_job_is_on_the_page():
    rows = re.findall(r"^\| `(chasqui-\w+)` \| \d+ \|", PAGE, re.MULTILINE)

    assert rows == [job["job_name"] for job in SCRAPE["scrape_configs"]]


def test_commands_on_the_page_can_be_typed_and_listen_on_the_ports_that_it_names():
    lines = re.findall(r"^    chasqui (.+)$", PAGE, re.MULTILINE)
    typed = {words[0]: parsed(words) for words in map(shlex.split, lines)}
    worker, depths = typed["worker"], typed["metrics"]
    ports = [int(port) for port in re.findall(r"^\| `chasqui-\w+` \| (\d+) \|", PAGE, re.MULTILINE)]

    assert [worker["metrics_port"], depths["port"]] == ports[:2]
    assert worker["metrics_host"] == depths["host"] == "10.0.0.5"
    assert len(typed) == len(lines)


def test_the_ports_on_the_page_are_those_that_prometheus_asks():
    targets = [job["static_configs"][0]["targets"] for job in SCRAPE["scrape_configs"]]
    ports = re.findall(r"^\| `chasqui-\w+` \| (\d+) \|", PAGE, re.MULTILINE)

    assert [one.split(":")[1] for (one,) in targets] == ports


def test_times_to_stop_are_those_of_the_files():
    (timeout_s,) = unit("chasqui-worker@.service")["Service"]["TimeoutStopSec"]

    assert f"`TimeoutStopSec` ({timeout_s} s)" in DEPLOY_PAGE
    grace_s = pod("orders")["terminationGracePeriodSeconds"]
    assert f"`terminationGracePeriodSeconds` ({grace_s})" in DEPLOY_PAGE


def test_the_other_trigger_asks_for_what_is_exported():
    (block,) = re.findall(r"^```yaml\n(.+?)^```", DEPLOY_PAGE, re.MULTILINE | re.DOTALL)
    (trigger,) = yaml.safe_load(block)["triggers"]

    for selector in selectors(parse(trigger["metadata"]["query"])):
        assert matched_labels(selector) <= exported()[selector.name]
    (kept,) = one(rendered("orders"), "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == kept["metadata"]["streamLength"]


def is_shipped(path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
