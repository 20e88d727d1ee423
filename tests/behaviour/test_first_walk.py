"""The shortest path of a job: added, run, gone."""

from __future__ import annotations

from support.waiting import eventually


async def test_an_added_job_runs_once_and_leaves_the_queue(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append((job.name, job.data))

    await running_worker(handler)
    await queue.add("greet", {"to": "ada"})

    await eventually(lambda: seen)
    await eventually(lambda: is_empty(queue))
    assert seen == [("greet", {"to": "ada"})]


async def is_empty(queue):
    return (await queue.counts()).backlog == 0
