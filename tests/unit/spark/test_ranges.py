"""Ranges are shared out by rows, whatever the queues and entries they come from."""

from __future__ import annotations

import pickle

from chasquimq.spark.sources.planning import StreamRange, share_out


def pieces(queue: str, rows: list[int]) -> list[StreamRange]:
    return [
        StreamRange(
            queue=queue, after_id=f"{at}-0", until_id=f"{at + 1}-0", entry_count=1, row_count=count
        )
        for at, count in enumerate(rows)
    ]


def rows_of(tasks) -> list[int]:
    return [sum(part.row_count for part in task.ranges) for task in tasks]


def test_tasks_get_the_same_number_of_rows():
    assert rows_of(share_out(pieces("emails", [100] * 8), 4)) == [200] * 4


def test_rows_count_and_not_entries():
    assert rows_of(share_out(pieces("emails", [600, 100, 100, 100, 100, 200]), 2)) == [600, 600]


def test_neighbours_become_one_range():
    (task,) = share_out(pieces("emails", [10, 10, 10]), 1)

    (part,) = task.ranges
    assert (part.after_id, part.until_id, part.entry_count) == ("0-0", "3-0", 3)


def test_many_small_queues_share_a_task():
    queues = [piece for at in range(20) for piece in pieces(f"q{at}", [10])]

    tasks = share_out(queues, 2)

    assert [len(task.ranges) for task in tasks] == [10, 10]


def test_a_task_stays_short_however_few_were_asked_for():
    tasks = share_out(pieces("emails", [1_000] * 1_000), 2)

    assert rows_of(tasks) == [250_000] * 4


def test_fewer_pieces_than_tasks_leave_no_task_empty():
    assert rows_of(share_out(pieces("emails", [10, 10]), 8)) == [10, 10]


def test_nothing_to_read_is_no_task():
    assert share_out([], 2) == []


def test_a_range_of_which_nobody_counted_a_part_is_not_counted():
    one, two = pieces("emails", [10, 10])
    uncounted = StreamRange(
        queue="emails", after_id=one.after_id, until_id=one.until_id, entry_count=None, row_count=1
    )

    (task,) = share_out([uncounted, two], 1)

    assert task.ranges[0].entry_count is None


def test_a_task_travels_to_its_executor():
    (task,) = share_out(pieces("emails", [10]), 1)

    assert pickle.loads(pickle.dumps(task)).ranges == task.ranges
