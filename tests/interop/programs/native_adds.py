"""The handle below a Queue: bytes in, ids out."""

import time

from stage import QUEUE, URL, consuming, play

from chasquimq import Producer


async def main():
    producer = Producer(URL, QUEUE, pool_size=2, max_stream_len=1000, max_delay_secs=3600)
    print(producer.stream_key().replace(QUEUE, "q"), producer.delayed_key().replace(QUEUE, "q"))
    print(producer.dlq_key().replace(QUEUE, "q"), len(producer.producer_id()))

    ids = [await producer.add(b"plain")]
    ids.append(await producer.add_with_options(b"named", {"name": "a", "id": "mine", "x": 1}))
    ids += await producer.add_bulk([b"bulk-1", b"bulk-2"])
    ids += await producer.add_bulk_named([("b", b"bulk-3"), ("", b"bulk-4")])
    ids += await producer.add_bulk_with_options([b"bulk-5", b"bulk-6"], {"name": "c"})
    print(len(set(ids)), ids[1], await producer.add_bulk([]))
    ids.append(await producer.add_in(0, b"at once"))
    ids.append(await producer.add_at(1, b"long ago"))
    ids.append(await producer.add_in(300, b"later"))
    at_ms = int(time.time() * 1000) + 600
    ids.append(await producer.add_at_with_options(at_ms, b"at", {"name": "d"}))
    ids += await producer.add_in_bulk(900, [b"both", b"both"])

    await producer.add_in_with_options(60_000, b"never", {"id": "never"})
    await producer.add_at_with_options(at_ms + 60_000, b"never", {"id": "never-2"})
    print(await producer.cancel_delayed("never"), await producer.cancel_delayed("never"))
    print(await producer.cancel_delayed_bulk(["never-2", "unknown"]))

    async def handler(job):
        known = job.id in ids and job.created_at_ms <= time.time() * 1000 + 1000
        print("ran", repr(job.name), job.payload, job.attempt, known)

    async with consuming(handler) as ended:
        await ended(len(ids))
    await producer.shutdown()


play(main)
