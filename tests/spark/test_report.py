"""A report says what the tables say, in one page that needs nothing else and lets nothing act."""

from __future__ import annotations

import re
from datetime import timedelta
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from chasquimq.spark.query.queries import Answers
from chasquimq.spark.report.charts import as_page_ink
from chasquimq.spark.report.format import ms_text, rate_text, share_text, shown
from chasquimq.spark.report.page import page_of
from chasquimq.spark.report.report import make_report
from support.made_lake import append, make_example, minutes, sketch

VOID = {"meta", "link", "br", "img", "path", "use", "rect"}
KEYS = ["throughput", "speed", "failures", "retries", "backlog", "targets", "audit"]


class Page(HTMLParser):
    """What a browser would find in a page: its tags, its ids, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.places: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                self.places.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag) -> None:
        if tag in VOID:
            return
        assert self.open[-1] == tag, f"{tag} closes {self.open[-1]}"
        self.open.pop()

    def handle_data(self, data) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Path:
    return make_example(tmp_path_factory.mktemp("lake") / "example")


@pytest.fixture(scope="module")
def report(lake):
    with Answers(lake) as answers:
        return make_report(answers)


@pytest.fixture(scope="module")
def html(report) -> str:
    return page_of(report)


def section(report, key: str):
    return next(one for one in report.sections if one.key == key)


def report_of(lake: Path, **options):
    with Answers(lake) as answers:
        return make_report(answers, **options)


def test_a_report_has_a_section_for_each_question(report):
    assert [one.key for one in report.sections] == KEYS
    assert report.queues == ["mail", "shop"]
    assert (report.first_at, report.last_at) == (minutes(0), minutes(118))


def test_counts_by_name_are_those_of_the_table(report):
    (grid,) = section(report, "throughput").grids
    rows = {row["name"]: row for row in grid.rows}

    assert rows["send-email"]["retried"] == 120 * 5
    assert rows["send-email"]["dead"] == 120
    assert sum(row["completed"] for row in grid.rows) == int(
        report.figures[1].text.replace(",", "")
    )


def test_percentiles_are_those_of_all_minutes_together(report):
    (grid,) = section(report, "speed").grids
    row = next(row for row in grid.rows if row["name"] == "charge-card")

    assert row["run_p50_ms"] == pytest.approx(10, rel=0.1)
    assert row["wait_p50_ms"] == pytest.approx(12 * row["run_p50_ms"], rel=0.1)


def test_failures_are_told_by_fingerprint_the_commonest_first(report):
    (grid,) = section(report, "failures").grids

    assert [row["fingerprint"] for row in grid.rows][:2] == ["77aa0011", "a1b2c3d4"]
    assert grid.rows[0]["failed"] == 600
    assert "bank did not answer" in section(report, "failures").sentences[0]


def test_retries_are_told_as_worth_and_waste_with_the_next_wave(report):
    retries = section(report, "retries")

    assert retries.sentences[0].startswith("Retries saved 2,010 jobs; 90 jobs died all the same.")
    assert retries.sentences[1] == "The next wave: 2,370 jobs come back at 14:05 UTC."


def test_a_backlog_comes_with_when_it_clears_or_what_it_would_take(report):
    told = section(report, "backlog").sentences

    assert "mail: 4,732 jobs will not clear: needs 6 more workers" in told[0]
    assert "shop: 12 jobs, clears at 14:20 UTC (in 22 min" in told[1]
    assert "its target breaks at 14:10 UTC" in told[1]


def test_targets_are_told_with_the_share_that_kept_them(report):
    (grid,) = section(report, "targets").grids

    assert [row["kept_share"] for row in grid.rows] == [pytest.approx(23_400 / 24_840), 1.0]
    assert "1 of 2 targets are missed" in section(report, "targets").sentences[0]


def test_every_answer_carries_its_completeness(report):
    told = {one.key: one.completeness for one in report.sections}

    assert all("99.9 %, 120 attempts are missing" in told[key] for key in KEYS[:4])
    assert told["backlog"].startswith("samples of the server")
    assert "99.9 %" in section(report, "audit").sentences[0]


def test_snoozed_attempts_are_counted_everywhere_as_the_server_does(tmp_path):
    append(tmp_path, "gold_minute", {"queue": "q", "name": "n", "window_start": minutes(0),
           "started": 9, "completed": 5, "failed": 2, "retried": 1, "dead": 1})  # fmt: skip
    append(tmp_path, "silver_attempts", *(
        {"queue": "q", "name": "n", "outcome": outcome, "ended_at": minutes(at / 60)}
        for at, outcome in enumerate(["completed"] * 5 + ["retried", "dead"] + ["snoozed"] * 2)
    ))  # fmt: skip

    report = report_of(tmp_path)
    throughput = section(report, "throughput")
    (row,) = throughput.grids[0].rows

    assert report.figures[0].text == "9"
    assert row["started"] == sum(row[name] for name in ("completed", "retried", "dead", "snoozed"))
    assert "snoozed" in [column.name for column in throughput.grids[0].columns]
    assert throughput.sentences[0].startswith("9 attempts ended, 1.1/s over the 8 s from the first")
    assert throughput.sentences[0].endswith("2 of them were snoozed (RetryLater).")


def test_the_completeness_of_a_stretch_is_of_its_days_and_says_so(tmp_path):
    audit = {"queue": "q", "channel": "history", "audited_at": minutes(1), "missing_maybe": 0,
             "is_settled": True}  # fmt: skip
    append(tmp_path, "gold_minute", {"queue": "q", "name": "n", "window_start": minutes(0),
           "started": 7, "completed": 7, "failed": 0, "retried": 0, "dead": 0})  # fmt: skip
    append(tmp_path, "gold_audit",
           {**audit, "server_finished": 9, "rows_finished": 2, "missing_proven": 7,
            "event_date": minutes(-1_440).date()},
           {**audit, "server_finished": 7, "rows_finished": 7, "missing_proven": 0})  # fmt: skip

    whole = section(report_of(tmp_path), "throughput").completeness
    last = section(report_of(tmp_path, last=timedelta(minutes=5)), "throughput").completeness

    assert whole == "56.2 %, 7 attempts are missing"
    assert last == (
        "100 %, all 7 attempts that the server counted"
        " (counted by whole days, all since 2026-11-14, not of this stretch alone)"
    )


def test_a_loss_with_two_witnesses_is_one_loss(tmp_path):
    gap = {"queue": "q", "channel": "history", "unit": "entries", "detected_at": minutes(1)}
    append(tmp_path, "bronze_gaps", {**gap, "cause": "sequence", "lost": 60},
           {**gap, "cause": "sequence", "lost": 9}, {**gap, "cause": "trimmed", "lost": 69},
           {**gap, "cause": "lost", "lost": 4, "unit": "attempts"})  # fmt: skip

    (losses,) = section(report_of(tmp_path), "audit").grids

    assert [(row["cause"], row["lost"], row["unit"]) for row in losses.rows] == [
        ("trimmed and sequence", 69, "entries"), ("lost", 4, "attempts"),
    ]  # fmt: skip
    assert losses.rows[0]["evidence"] == {"sequence": 69, "trimmed": 69}


def test_losses_of_two_days_are_two_losses(tmp_path):
    gap = {"queue": "q", "channel": "history", "unit": "entries", "detected_at": minutes(1)}
    append(tmp_path, "bronze_gaps", {**gap, "cause": "sequence", "lost": 10},
           {**gap, "cause": "trimmed", "lost": 5, "event_date": minutes(-1_440).date()})  # fmt: skip

    (losses,) = section(report_of(tmp_path), "audit").grids

    assert [(row["cause"], row["lost"]) for row in losses.rows] == [("trimmed and sequence", 15)]


def test_rows_that_the_server_did_not_count_make_no_whole(tmp_path):
    append(tmp_path, "gold_audit", {"queue": "q", "channel": "history", "audited_at": minutes(1),
           "server_finished": 100, "rows_finished": 200, "surplus": 100, "missing_proven": 0,
           "missing_maybe": 0, "is_settled": True})  # fmt: skip

    report = report_of(tmp_path)

    assert (report.figures[-1].text, report.figures[-1].tone) == ("not known", "bad")
    assert section(report, "audit").sentences[0] == (
        "Completeness: not known, 100 attempts are there that the server did not count."
    )


def test_a_gap_of_unknown_size_leaves_the_share_unknown(tmp_path):
    append(tmp_path, "gold_audit", {"queue": "q", "channel": "history", "audited_at": minutes(1),
           "server_finished": 7, "rows_finished": 7, "is_settled": True})  # fmt: skip
    append(tmp_path, "bronze_gaps", {"queue": "q", "channel": "history", "unit": "entries",
           "cause": "reset", "detected_at": minutes(1)})  # fmt: skip

    report = report_of(tmp_path)

    assert (report.figures[-1].text, report.figures[-1].tone) == ("not known", "bad")
    assert "not known, 1 gap is of unknown size" in section(report, "audit").sentences[0]


def test_a_whole_lake_says_that_it_is_whole(tmp_path):
    append(tmp_path, "gold_minute", {"queue": "q", "name": "n", "window_start": minutes(0),
           "started": 7, "completed": 7, "failed": 0, "retried": 0, "dead": 0})  # fmt: skip
    append(tmp_path, "gold_audit", {"queue": "q", "channel": "history", "audited_at": minutes(1),
           "server_finished": 7, "rows_finished": 7, "missing_proven": 0, "missing_maybe": 0,
           "is_settled": True})  # fmt: skip

    report = report_of(tmp_path)

    assert section(report, "throughput").completeness == (
        "100 %, all 7 attempts that the server counted"
    )
    assert report.figures[-1].text == "100 %"


def test_an_audit_without_the_servers_count_proves_nothing(tmp_path):
    append(tmp_path, "gold_audit", {"queue": "q", "channel": "events", "audited_at": minutes(1),
           "rows_finished": 7})  # fmt: skip

    assert report_of(tmp_path).figures[-1].text == "not proven"


def test_a_count_taken_while_jobs_ran_is_no_proof_yet(tmp_path):
    append(tmp_path, "gold_audit", {"queue": "q", "channel": "history", "audited_at": minutes(1),
           "server_finished": 7, "rows_finished": 7, "is_settled": False})  # fmt: skip

    assert report_of(tmp_path).figures[-1].text == "100 % so far"


def test_what_was_not_read_yet_is_on_the_way_and_not_missing(tmp_path):
    append(tmp_path, "gold_audit", {"queue": "q", "channel": "history", "audited_at": minutes(1),
           "server_finished": 30, "rows_finished": 10, "missing_proven": 0, "missing_maybe": 20,
           "rows_lost": 0, "is_settled": False})  # fmt: skip

    report = report_of(tmp_path)

    assert report.figures[-1].text == "100 % so far"
    assert section(report, "audit").sentences[0] == (
        "Completeness: nothing is missing so far; 20 attempts are still on the way."
    )


def test_only_the_last_audit_of_a_day_counts(tmp_path):
    row = {"queue": "q", "channel": "history", "missing_maybe": 0, "is_settled": True}
    append(tmp_path, "gold_audit",
           {**row, "audited_at": minutes(1), "server_finished": 9, "rows_finished": 5,
            "missing_proven": 4},
           {**row, "audited_at": minutes(2), "server_finished": 9, "rows_finished": 9,
            "missing_proven": 0})  # fmt: skip

    assert report_of(tmp_path).figures[-1].text == "100 %"


def test_a_report_may_be_about_some_queues(lake):
    report = report_of(lake, queues=["shop"])
    (grid,) = section(report, "throughput").grids

    assert {row["name"] for row in grid.rows} == {"charge-card", "import-row"}
    assert "queue" not in [column.name for column in grid.columns]
    assert report.figures[-1].text == "100 %"


def test_a_report_may_be_about_the_last_stretch_counted_from_the_newest_fact(lake):
    whole = section(report_of(lake), "throughput").grids[0]
    last = section(report_of(lake, last=timedelta(minutes=28)), "throughput").grids[0]

    assert last.rows[0]["retried"] == 30 * 5
    assert whole.rows[0]["retried"] == 120 * 5


def test_a_long_table_is_cut_and_says_what_is_left(tmp_path):
    row = {"queue": "q", "window_start": minutes(0), "completed": 1, "retried": 0, "dead": 0}
    append(tmp_path, "gold_minute", *({**row, "name": f"n{at}", "started": at} for at in range(40)))

    (grid,) = section(report_of(tmp_path), "throughput").grids

    assert len(grid.rows) == 25
    assert grid.note.startswith("and 15 more names")


QUIET = ("alpha", "beta", "gamma", "delta", "epsilon")
BUSY = "zeta"


def lay(lake: Path, queue: str, *, attempts: int, ready: int = 0) -> None:
    """Two minutes of a queue: its attempts, of which every tenth is retried, and its depth."""
    for at in range(2):
        append(lake, "gold_minute", {
            "queue": queue, "name": f"{queue}-job", "window_start": minutes(at),
            "started": attempts, "completed": attempts, "failed": 0, "retried": 0, "dead": 0,
            "run_kll": sketch(1.0), "wait_kll": sketch(1.0),
        })  # fmt: skip
        append(lake, "gold_backlog", {
            "queue": queue, "sampled_at": minutes(at), "ready": ready * at, "running": 0,
            "delayed": 0, "dlq": 0,
        })  # fmt: skip
    for attempt in (1, 2):
        append(lake, "gold_retries", {
            "queue": queue, "name": f"{queue}-job", "attempt": attempt,
            "runs": attempts // attempt, "completed": attempts // 2, "retried": attempts // 10,
            "dead": 0, "run_us": 0,
        })  # fmt: skip


def lay_six(lake: Path, **busy: int) -> None:
    for queue in QUIET:
        lay(lake, queue, attempts=10)
    lay(lake, BUSY, **busy)


def test_the_busiest_queue_is_drawn_and_told_first_whatever_it_is_called(tmp_path):
    lay_six(tmp_path, attempts=5_000)

    made = report_of(tmp_path)

    backlog = section(made, "backlog")
    assert backlog.drawings[0].title == f"Backlog of {BUSY}"
    assert backlog.sentences[0].startswith(f"{BUSY}: ")
    assert backlog.grids[0].rows[0]["queue"] == BUSY
    assert made.queues[0] == BUSY


def test_queues_that_are_not_drawn_are_counted_and_the_reader_is_sent_to_them(tmp_path):
    lay_six(tmp_path, attempts=5_000)

    backlog = section(report_of(tmp_path), "backlog")

    assert len(backlog.drawings) == 4
    assert backlog.sentences[-1] == "And 2 more queues, in the table; they wait or run less."
    assert len(backlog.grids[0].rows) == 6


def test_a_queue_that_does_not_clear_comes_before_a_deeper_one_that_does(tmp_path):
    lay_six(tmp_path, attempts=10, ready=5)
    lay(tmp_path, "deep", attempts=10, ready=900)
    append(tmp_path, "gold_forecast", {
        "queue": BUSY, "made_at": minutes(1), "never_clears": True, "arrival_rate": 9.0,
        "departure_rate": 1.0, "workers_needed": 3,
    })  # fmt: skip

    rows = section(report_of(tmp_path), "backlog").grids[0].rows

    assert [row["queue"] for row in rows[:2]] == [BUSY, "deep"]


def test_retries_of_the_name_with_most_of_them_come_first(tmp_path):
    lay_six(tmp_path, attempts=5_000)

    worth, attempts = section(report_of(tmp_path), "retries").grids

    assert worth.rows[0]["name"] == f"{BUSY}-job"
    assert [(row["name"], row["attempt"]) for row in attempts.rows[:2]] == [
        (f"{BUSY}-job", 1), (f"{BUSY}-job", 2),
    ]  # fmt: skip


def test_a_drawing_of_the_first_few_says_how_many_there_are(tmp_path):
    for number in range(14):
        lay(tmp_path, "q", attempts=1)
        append(tmp_path, "gold_minute", {
            "queue": "q", "name": f"job-{number:02}", "window_start": minutes(0),
            "started": number, "completed": number, "failed": 0, "retried": 0, "dead": 0,
            "run_kll": sketch(1.0), "wait_kll": sketch(1.0),
        })  # fmt: skip

    wait, run = section(report_of(tmp_path), "speed").drawings

    assert wait.title == "Wait before a start: median, 90 % and 99 % (the first 12 of 15)"
    assert run.title == "Run time: median, 90 % and 99 % (the first 12 of 15)"
    assert run.labels[:2] == ["q-job", "job-13"]


def test_the_day_with_missing_rows_is_in_the_table_however_many_days_there_are(tmp_path):
    for queue in (*(f"a{number:02}" for number in range(30)), "zz-lost"):
        append(tmp_path, "gold_audit", {
            "queue": queue, "channel": "history", "event_date": minutes(0).date(),
            "audited_at": minutes(1), "server_finished": 10, "rows_finished": 10,
            "missing_proven": 3 if queue == "zz-lost" else 0, "missing_maybe": 0, "surplus": 0,
            "stale": 40 if queue == "zz-lost" else 1, "is_settled": True,
        })  # fmt: skip

    counts, odd = section(report_of(tmp_path), "audit").grids

    assert counts.rows[0]["queue"] == "zz-lost"
    assert odd.rows[0]["queue"] == "zz-lost"
    assert counts.note.startswith("and 6 more rows")


def test_seconds_are_drawn_where_minutes_would_say_nothing(tmp_path):
    minute = {"queue": "q", "name": "n", "started": 3, "completed": 3, "retried": 0, "dead": 0}
    append(tmp_path, "gold_minute", {**minute, "window_start": minutes(0)})
    append(tmp_path, "silver_attempts", *(
        {"queue": "q", "name": "n", "outcome": "completed", "ended_at": minutes(at / 60)}
        for at in (1, 1, 30)))  # fmt: skip

    (drawing,) = section(report_of(tmp_path), "throughput").drawings

    assert drawing.width_s == 1
    assert len(drawing.moments) == 30, "moments in which nothing ended are there, too"
    assert drawing.series[0].values[0] == 2


def test_waits_that_nobody_knows_are_left_out_and_said(tmp_path):
    append(tmp_path, "gold_minute", {"queue": "q", "name": "n", "window_start": minutes(0),
           "started": 1, "completed": 1, "failed": 0, "retried": 0, "dead": 0,
           "run_kll": sketch(3)})  # fmt: skip

    speed = section(report_of(tmp_path), "speed")

    assert speed.sentences[0] == "n runs longest (p99 3 ms); how long jobs waited is not known."
    assert [drawing.key for drawing in speed.drawings] == ["run"]


def test_an_empty_lake_makes_a_page_of_sentences(tmp_path):
    append(tmp_path, "gold_minute")

    report = report_of(tmp_path)
    page = Page(page_of(report))

    assert [one.absence != "" for one in report.sections] == [True] * len(KEYS)
    assert "svg" not in page.tags
    assert "table" not in page.tags
    assert "no queue yet" in page.words


def test_a_page_is_well_formed_and_complete(html):
    page = Page(html)

    assert page.open == []
    assert "</html>" in html
    assert all(f'id="{key}"' in html for key in KEYS)


def test_a_page_needs_no_network_and_no_script(html):
    page = Page(html)
    outside = [place for place in page.places if not place.startswith(("#", "data:,"))]

    assert "script" not in page.tags
    assert outside == []
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_ids_are_unique_and_references_lead_to_them(html):
    page = Page(html)
    referred = {place[1:] for place in page.places if place.startswith("#")}
    referred |= set(re.findall(r"url\(#([^)]+)\)", html))

    assert len(page.ids) == len(set(page.ids))
    assert referred <= set(page.ids)


def test_colours_are_those_of_the_page_so_that_dark_is_dark(html):
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    colours = {colour for one in drawings for colour in re.findall(r"#[0-9a-f]{6}\b", one)}

    assert drawings
    assert colours == set()
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_names_and_errors_are_shown_and_do_nothing(html):
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m" in html
    assert "\\x00&lt;b&gt;bad&lt;/b&gt; &amp; \\u202eworse" in html
    assert not re.search("[\0-\x08\x0b-\x1f\x7f\u202e]", html)


@pytest.mark.parametrize("name", ["$x^2$", "a" * 256, "日本語", "\\frac{1}{0}", "%s {0}", "&amp;"])
def test_an_odd_name_is_drawn_as_it_is(tmp_path, name):
    append(tmp_path, "gold_minute", {"queue": "q", "name": name, "window_start": minutes(0),
           "started": 1, "completed": 1, "failed": 0, "retried": 0, "dead": 0,
           "run_kll": sketch(1), "wait_kll": sketch(0)})  # fmt: skip

    page = Page(page_of(report_of(tmp_path)))

    assert any(shown(name, 20) in word for word in page.words)


def test_a_job_without_a_name_is_told_as_such(tmp_path):
    row = {"queue": "q", "name": "", "window_start": minutes(0)}
    append(tmp_path, "gold_minute", {**row, "started": 1, "completed": 0, "failed": 1,
           "retried": 1, "dead": 0, "run_kll": sketch(1), "wait_kll": sketch(0)})  # fmt: skip
    append(tmp_path, "gold_failures", {**row, "fingerprint": "f", "failed": 1, "dead": 0})
    append(tmp_path, "gold_slo", {**row, "target_ms": 5, "within": 0, "breached": 1,
           "allowed_share": 0.01})  # fmt: skip
    append(tmp_path, "gold_retries", {"queue": "q", "name": "", "attempt": 1, "runs": 1,
           "completed": 0, "retried": 1, "dead": 0})  # fmt: skip

    html = page_of(report_of(tmp_path))

    assert re.findall(r'<td class="\w+" data-label="name">([^<]*)</td>', html) == ["(no name)"] * 6
    assert "(no name) waits longest (p99 0 ms), (no name) runs longest" in html
    assert "all of one kind: (no name), no message." in html


@pytest.mark.parametrize("name", ["#010207", 'id="x"', "url(#p1)", "font: 9px sans;"])
def test_a_drawing_spells_names_as_they_are(name):
    drawn = f'<svg id="a"><g style="fill: #010207"><text>{escape(name)}</text></g></svg>'

    inked = as_page_ink(drawn, "key", "title")

    assert f"<text>{escape(name)}</text>" in inked
    assert 'id="key-a"' in inked
    assert 'style="fill: var(--bad)"' in inked


def test_the_same_lake_always_makes_the_same_page(lake, html):
    assert page_of(report_of(lake)) == html


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (ms_text(0), "0 ms"), (ms_text(0.25), "250 µs"), (ms_text(1), "1 ms"),
        (ms_text(9.96), "10 ms"), (ms_text(999), "999 ms"), (ms_text(59_900), "1 min 0 s"), (ms_text(999.96), "1 s"), (ms_text(0.9999), "1 ms"),
        (ms_text(61_000), "1 min 1 s"), (ms_text(3_600_000), "1 h 0 min"),
        (ms_text(200_000_000), "2 d 7 h"), (share_text(1), "100 %"), (share_text(0), "0 %"),
        (share_text(0.99999), "> 99.9 %"), (share_text(0.00001), "< 0.1 %"),
        (share_text(0.5), "50 %"), (share_text(0.123), "12.3 %"), (rate_text(0), "0.0/s"),
        (rate_text(0.01), "0.6/min"), (rate_text(12345), "12,345/s"),
        (shown("a\nb\u202e"), "a\\nb\\u202e"), (shown("x" * 5, 4), "xxx…"),
    ],
)  # fmt: skip
def test_figures_are_written_in_units_that_fit(text, wanted):
    assert text == wanted
