"""The path of a row of the history, traced from its stream to the report, leads through few files."""

from __future__ import annotations

import pytest

from chasquimq.cli.app import main
from chasquimq.spark.sources.history import HistorySource
from support.called import CallLog, files_to_open
from support.ceilings import check
from support.drive import Drive

pytestmark = pytest.mark.takes_turns


def test_a_row_leads_through_few_files(feed, pipeline, settings, tmp_path, capsys):
    feed.attempts(20)
    args = ["--lake", str(settings.lake), "--output", str(tmp_path / "report.html")]

    with CallLog() as log:
        # Executors read in processes of their own, and do there what is done here.
        rows = Drive(HistorySource, settings_of_a_source(feed)).batch()
        run = pipeline().once()
        exit_code = main(["pipeline", "report", *args])

    said = capsys.readouterr()
    assert (len(rows), run.rows, exit_code) == (20, 20, 0), said.err
    check("files of the path history to report", files_to_open(log.steps))


def settings_of_a_source(feed) -> dict[str, str]:
    return {"chasqui.redis.url": feed.url, "subscribe": feed.queue}
