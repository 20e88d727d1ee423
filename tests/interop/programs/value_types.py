"""The values that callers hand over, as they look and compare."""

from dataclasses import FrozenInstanceError, replace

from stage import play

from chasquimq import (
    BackoffSpec,
    Job,
    MissedFiresPolicy,
    NotSupportedError,
    RepeatableMeta,
    RepeatPattern,
    UnrecoverableError,
)


async def main():
    values = [
        RepeatPattern.cron("* * * * *"),
        RepeatPattern.cron("0 9 * * 1-5", tz="America/Lima"),
        RepeatPattern.every(1000),
        BackoffSpec.fixed(5),
        BackoffSpec.fixed(5, 2),
        BackoffSpec.exponential(10),
        BackoffSpec.exponential(10, multiplier=3.0, max_ms=99, jitter_ms=1),
        MissedFiresPolicy.skip(),
        MissedFiresPolicy.fire_once(),
        MissedFiresPolicy.fire_all(7),
    ]
    for value in values:
        print(value, value.to_dict(), hash(value) == hash(replace(value)))
    try:
        values[0].kind = "every"
    except FrozenInstanceError:
        print("frozen")

    meta = RepeatableMeta("key", "name", values[2], 5, None, None, None, None)
    print(meta, meta.limit, meta.missed_fires)
    job = Job("id", "name", {"a": 1}, 2, 3)
    print(job, job.attempts_made, job == Job("id", "name", {"a": 1}, 2, 3, _queue="any"))
    job.data = "changed"
    print(job.data, job.__hash__)
    for kind in (NotSupportedError, UnrecoverableError):
        print(kind.__name__, issubclass(kind, RuntimeError), str(kind("because")))


play(main)
