"""The handle below a Worker: results are the bytes that handlers return."""

from stage import QUEUE, URL, consuming, play, until

from chasquimq import Producer, UnrecoverableError

RETRY = {"max_attempts": 2, "backoff": {"kind": "fixed", "delay_ms": 1}}
RETURNED = {"bytes": b"\xc1", "empty": b"", "text": "x", "none": None, "bytearray": bytearray(2)}


async def main():
    producer = Producer(URL, QUEUE)
    ran = []

    async def handler(job):
        ran.append((job.name, job.payload, job.attempt))
        if job.name == "fail" and len(ran) <= 8:
            raise ValueError("no")
        if job.name == "bury" and len(ran) <= 8:
            raise UnrecoverableError("never")
        return RETURNED.get(job.name)

    async def has_two():
        return len(await producer.peek_dlq(5)) == 2

    async with consuming(handler, store_results=True, result_ttl_ms=60_000) as ended:
        ids = await producer.add_bulk_named([(name, b"") for name in RETURNED])
        await producer.add_with_options(b"2", {"name": "fail", "retry": RETRY})
        await producer.add_with_options(b"3", {"name": "bury", "id": "buried"})
        await until(has_two)
        print(sorted(ran))
        print(await producer.get_result_bulk(ids))
        print(await producer.get_result(ids[0]), await producer.get_result("unknown"))
        letters = await producer.peek_dlq(5)
        print(sorted((letter["name"], letter["reason"], letter["detail"]) for letter in letters))

        print(await producer.replay_dlq(5) == 2, await producer.peek_dlq(5))
        await ended(10)
    print(sorted(ran[8:]))
    await producer.shutdown()


play(main)
