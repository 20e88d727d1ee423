"""Plans of repeatable jobs: made, listed, replaced and removed."""

from stage import QUEUE, URL, play

from chasquimq import MissedFiresPolicy, Queue, RepeatPattern

FAR_MS = 4_102_444_800_000


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    yearly = RepeatPattern.cron("0 0 1 1 *", tz="Europe/Berlin")
    hourly = RepeatPattern.every(3_600_000)

    job = await queue.upsert_repeatable_job(
        "report", {"a": 1}, repeat=hourly, limit=5, start_after_ms=FAR_MS - 10**9,
        end_before_ms=FAR_MS, missed_fires=MissedFiresPolicy.fire_all(3),
    )  # fmt: skip
    print(job.id, job.name, job.data, job.attempt)
    print((await queue.upsert_repeatable_job("backup", None, repeat=yearly)).id)
    print((await queue.add("tick", 1, repeat=RepeatPattern.cron("30 4 1 1 *"))).id)
    once = await queue.add(
        "once", 1, repeat={"kind": "every", "interval_ms": 7_200_000},
        missed_fires=MissedFiresPolicy.fire_once(),
    )  # fmt: skip
    print(once.id)

    listed = await queue.get_repeatable_jobs()
    print([meta.next_fire_ms for meta in listed] == sorted(meta.next_fire_ms for meta in listed))
    for meta in sorted(listed, key=lambda meta: meta.key):
        print(meta.key, meta.job_name, meta.pattern, meta.limit)
        print(" ", meta.start_after_ms, meta.end_before_ms, meta.missed_fires)
    print(len(await queue.get_repeatable_jobs(limit=2)))

    print(await queue.remove_repeatable_by_key("once::every:7200000"))
    print(await queue.remove_repeatable_by_key("once::every:7200000"))
    await queue.upsert_repeatable_job("backup", "changed", repeat=yearly, limit=9)
    print(sorted((meta.key, meta.limit or 0) for meta in await queue.get_repeatable_jobs()))
    await queue.close()


play(main)
