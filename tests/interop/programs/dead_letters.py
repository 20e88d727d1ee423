"""What is given up lies in the DLQ, and can be sent back."""

from stage import QUEUE, URL, play, until, working

from chasquimq import NotSupportedError, Queue, UnrecoverableError

KEYS = ("dlq_id", "source_id", "reason", "detail", "payload", "name")


class Hopeless(UnrecoverableError):
    pass


ERRORS = {1: ValueError, 2: Hopeless, 3: NotSupportedError}


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    ran = []

    async def handler(job):
        ran.append((job.name, job.data, job.attempt))
        if len(ran) <= 4:
            raise ERRORS[job.data]("no")

    async def has_three():
        return len(await queue.peek_dlq()) == 3

    async with working(handler) as ended:
        await queue.add("exhausted", 1, attempts=2, backoff={"kind": "fixed", "delay_ms": 1})
        await queue.add("hopeless", 2, attempts=9)
        await queue.add("unsupported", 3, attempts=1)
        await until(has_three)
        print(sorted(ran))
        show(await queue.peek_dlq())
        print(len(await queue.peek_dlq(limit=2)), len(await queue.peek_dlq(0)))

        print("replayed", await queue.replay_dlq(limit=1) == 1)
        print("replayed", await queue.replay_dlq() == 2)
        await ended(7)
        print(sorted(ran[4:]), await queue.peek_dlq(), await queue.replay_dlq() == 0)
    await queue.close()


def show(letters):
    for letter in sorted(letters, key=lambda letter: letter["name"]):
        print(letter["name"], letter["reason"], letter["detail"], type(letter["payload"]).__name__)
        print([key for key in KEYS if key in letter])


play(main)
