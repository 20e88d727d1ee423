"""Answers come from the tables alone: merged by key, read-only, and the same every time."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from chasquimq.errors import SettingsError
from chasquimq.spark.lake.compaction import compact
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.lake.sketches import count_of, gathered, merged, quantile_of, quantiles
from chasquimq.spark.lake.tables import TABLES
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope
from chasquimq.spark.query.traffic import by_name
from support.made_lake import append, minutes, sketch

JOBS = "select job_id, attempts, status from silver_jobs order by job_id"


def append_jobs_in_parts(lake: Path) -> None:
    part = {"queue": "q", "attempts": 1}
    append(lake, "silver_jobs")
    append(lake, "silver_jobs_parts", {**part, "job_id": "a", "status": "retrying",
                                       "updated_at": minutes(0)})  # fmt: skip
    append(lake, "silver_jobs_parts", {**part, "job_id": "a", "status": "completed",
                                       "updated_at": minutes(1)},
           {**part, "job_id": "b", "status": "dead", "updated_at": minutes(2)})  # fmt: skip


@pytest.fixture
def lake(tmp_path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def ask(lake):
    """Ask the lake as it is when the question comes."""

    def answer(question: str, **options) -> list[tuple]:
        with Answers(lake) as answers:
            return answers.sql(question, **options).rows

    return answer


def test_parts_of_a_key_are_added_and_their_edges_kept(lake, ask):
    key = {"queue": "mail", "name": "send", "fingerprint": "f1", "window_start": minutes(0)}
    append(lake, "gold_failures", {**key, "failed": 2, "dead": 1, "first_seen": minutes(0),
                                   "last_seen": minutes(1), "run_us": 5})  # fmt: skip
    append(lake, "gold_failures", {**key, "failed": 3, "dead": 0, "first_seen": minutes(-1),
                                   "last_seen": minutes(0), "run_us": 7})  # fmt: skip

    assert ask(
        "select failed, dead, run_us, first_seen, last_seen from gold_failures"
    ) == [(5, 1, 12, minutes(-1), minutes(1))]  # fmt: skip


def test_a_figure_that_follows_from_others_is_computed_after_the_merge(lake, ask):
    key = {"queue": "mail", "name": "send", "window_start": minutes(0), "target_ms": 100}
    append(lake, "gold_slo", {**key, "within": 90, "breached": 0, "allowed_share": 0.01})
    append(lake, "gold_slo", {**key, "within": 5, "breached": 5, "allowed_share": 0.01})

    assert ask("select within, breached, burn_rate from gold_slo") == [(95, 5, pytest.approx(5))]


def test_sketches_of_a_key_are_one_sketch_in_the_view(lake, ask):
    key = {"queue": "mail", "name": "send", "window_start": minutes(0)}
    append(lake, "gold_minute", {**key, "completed": 2, "run_kll": sketch(1, 2)})
    append(lake, "gold_minute", {**key, "completed": 2, "run_kll": sketch(3, 4)})
    append(lake, "gold_minute", {**key, "completed": 1})

    assert ask(
        "select completed, kll_sketch_get_n_double(run_kll),"
        " kll_sketch_get_quantile_double(run_kll, 1.0), wait_kll from gold_minute"
    ) == [(5, 4, 4.0, None)]


def test_sketches_of_many_keys_merge_under_the_name_that_spark_has_for_it(lake, ask):
    rows = [
        {"queue": "q", "name": "n", "window_start": minutes(at), "run_kll": sketch(at, at + 0.5)}
        for at in range(10)
    ]
    append(lake, "gold_minute", *rows)

    merge = "kll_sketch_get_quantile_double(kll_merge_agg_double(run_kll), 1.0)"
    assert ask(f"select {merge} from gold_minute") == [(9.5,)]


def test_percentiles_from_sql_never_change_and_are_those_of_the_report(lake, ask):
    key = {"queue": "q", "name": "n"}
    for part in range(2):
        append(lake, "gold_minute", *(
            {**key, "window_start": minutes(at), "started": 1, "completed": 1, "failed": 0,
             "retried": 0, "dead": 0, "run_kll": sketch(*range(at * 2 + part, 50_000, 20))}
            for at in range(10)))  # fmt: skip
    merge = "kll_sketch_get_quantile_double(kll_merge_agg_double(run_kll), 0.99)"

    told = {ask(f"select {merge} from gold_minute")[0][0] for _ in range(5)}
    with Answers(lake) as answers:
        (row,) = by_name(answers, Scope()).names

    assert told == {row["run_p99_ms"]}


def test_a_job_that_ended_at_once_and_one_in_parts_are_a_row_each(lake, ask):
    done = {"queue": "q", "status": "completed", "attempts": 1, "failures": 0}
    append(lake, "silver_jobs", {**done, "job_id": "a", "updated_at": minutes(0)})
    part = {"queue": "q", "job_id": "b", "attempts": 1}
    append(lake, "silver_jobs_parts", {**part, "failures": 1, "status": "retrying",
                                       "reason": "boom", "updated_at": minutes(0)})  # fmt: skip
    append(lake, "silver_jobs_parts", {**part, "failures": 0, "status": "completed",
                                       "updated_at": minutes(1)})  # fmt: skip

    assert ask(
        "select job_id, attempts, failures, status, reason from silver_jobs order by 1"
    ) == [("a", 1, 0, "completed", None), ("b", 2, 1, "completed", "boom")]  # fmt: skip


def test_parts_that_come_after_compaction_merge_with_the_compacted_row(lake, ask):
    append(lake, "silver_jobs", {"queue": "q", "job_id": "a", "attempts": 2, "status": "retrying",
                                 "updated_at": minutes(0)})  # fmt: skip
    append(lake, "silver_jobs_parts", {"queue": "q", "job_id": "a", "attempts": 1,
                                       "status": "dead", "updated_at": minutes(5)})  # fmt: skip

    assert ask("select attempts, status from silver_jobs") == [(3, "dead")]


def test_compaction_changes_no_answer_about_jobs(lake, ask):
    append_jobs_in_parts(lake)
    before = ask(JOBS)

    compact(Lake(lake))

    assert ask("select count(*) from silver_jobs_parts") == [(0,)]
    assert ask(JOBS) == before == [("a", 2, "completed"), ("b", 1, "dead")]


def test_a_move_of_parts_that_was_killed_on_the_way_shows_no_job_twice(lake, ask, monkeypatch):
    append_jobs_in_parts(lake)
    commit = Lake.commit

    def killed_before_the_parts_leave(self, change, once=None):
        if change.table == "silver_jobs_parts":
            raise KeyboardInterrupt
        return commit(self, change, once)

    monkeypatch.setattr(Lake, "commit", killed_before_the_parts_leave)
    with pytest.raises(KeyboardInterrupt):
        compact(Lake(lake))

    assert ask("select count(*) from silver_jobs_parts") == [(3,)], "the move is half done"
    assert ask(JOBS) == [("a", 2, "completed"), ("b", 1, "dead")]


def test_the_same_id_in_two_queues_is_two_jobs(lake, ask):
    row = {"job_id": "a", "attempts": 1}
    append(lake, "silver_jobs", {**row, "queue": "q"}, {**row, "queue": "r"})

    assert ask("select count(*) from silver_jobs") == [(2,)]


def test_the_day_comes_from_the_folder_and_is_a_date(lake, ask):
    append(lake, "silver_attempts", {"queue": "q", "event_date": date(2026, 11, 1)},
           {"queue": "q", "event_date": date(2026, 11, 2)})  # fmt: skip

    assert ask("select event_date from silver_attempts order by 1") == [
        (date(2026, 11, 1),), (date(2026, 11, 2),),
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_that_is_not_there_yet_is_empty_and_has_its_columns(lake, ask, name):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})

    assert ask(f"select count(*) from {name}") == [(int(name == "bronze_gaps"),)]


def test_a_column_that_an_older_lake_lacks_is_null(lake, ask):
    import pyarrow as pa
    from deltalake import write_deltalake

    old = pa.table({"queue": ["q"], "event_date": pa.array([date(2026, 11, 1)])})
    write_deltalake(str(lake / "bronze_gaps"), old, partition_by=["event_date"])

    assert ask("select queue, lost from bronze_gaps") == [("q", None)]


@pytest.mark.parametrize("name", ["with space", "it's", "50%", "a*b?", "größe"])
def test_a_lake_may_have_an_odd_name(tmp_path, name):
    append(tmp_path / name, "bronze_gaps", {"queue": "q", "lost": 1})

    with Answers(tmp_path / name) as answers:
        assert answers.sql("select lost from bronze_gaps").rows == [(1,)]


@pytest.mark.parametrize(
    "question",
    [
        "drop view bronze_gaps",
        "create table mine (a int)",
        "copy (select 1) to 'out.csv'",
        "attach 'other.db'",
        "install httpfs",
        "set enable_external_access = true",
        "select 1; select 2",
        "",
        "selec 1",
        "select nothing from bronze_gaps",
        "select * from no_table",
        "select * from read_csv('/etc/hostname')",
        "select * from 'http://127.0.0.1:1/a.parquet'",
        "explain analyze copy (select 1) to '{lake}/x.csv'",
        "EXPLAIN /* so */ ANALYZE create table mine (a int)",
        "explain copy (select 1) to '{lake}/x.csv'",
        "copy (select 1) to '{lake}/x.csv'",
        "pivot bronze_gaps on queue using sum(lost)",
        "select \udcff",
    ],
)
def test_what_is_no_question_to_the_lake_is_refused_with_a_sentence(lake, ask, question):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})

    with pytest.raises(SettingsError, match=r"^sql must be") as refused:
        ask(question.replace("{lake}", str(lake)))
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in lake.iterdir()) == ["bronze_gaps"]


@pytest.mark.parametrize("question", ["from bronze_gaps", "describe bronze_gaps", "show tables",
                                      "with a as (select 1) from a", "explain select 1",
                                      "summarize bronze_gaps",
                                      "pivot bronze_gaps on queue in ('q') using sum(lost)"])  # fmt: skip
def test_every_form_of_reading_is_answered(lake, ask, question):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})

    ask(question)


@pytest.mark.parametrize("question", ["show tables", " SHOW ALL TABLES; ", "show tables;"])
def test_the_tables_of_the_lake_are_shown(lake, ask, question):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})

    names = [row[0] for row in ask(question)]

    assert names == sorted(names)
    assert {"bronze_gaps", "silver_jobs", "gold_minute"} < set(names)


def test_a_table_that_is_none_of_the_lake_is_told_with_those_that_are(lake, ask):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})

    with pytest.raises(SettingsError, match=r"'nothere'.*bronze_attempts.*gold_slo") as refused:
        ask("from nothere")
    assert "pg_" not in str(refused.value)


def test_names_of_tables_may_be_written_in_any_case(lake, ask):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})

    assert ask("select lost from BRONZE_Gaps") == [(1,)]


def test_an_answer_is_cut_at_its_most_rows_and_says_so(lake):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})

    with Answers(lake) as answers:
        cut = answers.sql("select * from range(10)", rows_max=3)
        whole = answers.sql("select * from range(3)", rows_max=3)

    assert (len(cut.rows), cut.is_cut) == (3, True)
    assert (len(whole.rows), whole.is_cut) == (3, False)


@pytest.mark.parametrize("made", [True, False], ids=["empty folder", "no folder"])
def test_a_lake_without_tables_is_refused_by_its_name(tmp_path, made):
    lake = tmp_path / "nothing"
    if made:
        lake.mkdir()

    with pytest.raises(SettingsError, match=r"nothing.*chasqui pipeline once"):
        Answers(lake)


def test_a_commit_between_two_questions_is_seen_by_who_asks_anew(lake, ask):
    append(lake, "bronze_gaps", {"queue": "q", "lost": 1})
    before = ask("select sum(lost) from bronze_gaps")
    append(lake, "bronze_gaps", {"queue": "q", "lost": 2})

    assert (before, ask("select sum(lost) from bronze_gaps")) == ([(1,)], [(3,)])


def test_quantiles_of_sketches_together_are_those_of_their_values():
    parts = [sketch(*range(0, 100, 2)), None, sketch(*range(1, 100, 2)), sketch()]

    assert quantiles(parts, [0.0, 0.5, 0.99, 1.0]) == [0.0, 49.0, 98.0, 99.0]
    assert quantiles([None, sketch()], [0.5]) == [None]


def test_quantiles_of_large_sketches_are_near_and_never_change():
    parts = [sketch(*range(start, 100_000, 10)) for start in range(10)]

    first, again = quantiles(parts, [0.5, 0.99]), quantiles(parts, [0.5, 0.99])

    assert first == again
    assert first == [pytest.approx(50_000, rel=0.03), pytest.approx(99_000, rel=0.02)]


def test_sketches_gathered_twice_stand_for_the_same_as_all_of_them():
    once = gathered([sketch(1, 2), None, sketch()])
    twice = gathered([once, sketch(3)])

    assert gathered([None]) is None
    assert gathered([sketch(7)]) == sketch(7), "a single one stays what it was"
    assert (count_of(twice), quantile_of(twice, 1.0), quantile_of(twice, 0.5)) == (3, 3.0, 2.0)
    assert quantiles([twice], [0.0]) == [1.0]


@pytest.mark.parametrize("count", [1, 2, 199, 201, 5_000, 40_000])
def test_a_single_sketch_answers_as_it_does_among_others(count):
    one = sketch(*(number * 7_919 % 10_007 for number in range(count)))

    for rank in (0.0, 0.01, 0.5, 0.9, 0.99, 1.0):
        assert quantile_of(one, rank) == quantiles([one], [rank])[0]


@pytest.mark.parametrize("rank", [99, -0.1])
def test_a_rank_that_is_none_is_refused_with_a_sentence(lake, ask, rank):
    row = {"queue": "q", "name": "n", "run_kll": sketch(1, 2)}
    append(lake, "gold_minute", *({**row, "window_start": minutes(at)} for at in range(2)))

    merge = f"kll_sketch_get_quantile_double(kll_merge_agg_double(run_kll), {rank})"
    with pytest.raises(SettingsError, match=r"rank must be between 0 and 1, got"):
        ask(f"select {merge} from gold_minute")


def test_a_merged_sketch_holds_all_that_its_parts_held():
    assert merged([None]) is None
    assert quantile_of(merged([sketch(1), None, sketch(2, 3)]) or b"", 1.0) == 3.0
    assert quantile_of(sketch(), 0.5) is None
