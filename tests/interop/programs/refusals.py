"""Each refusal can be caught by the built-in error that callers know."""

from refusal_cases import CASES
from stage import QUEUE, URL, play

from chasquimq import Producer, Queue


async def main():
    queue, producer = Queue(QUEUE, redis_url=URL), Producer(URL, QUEUE)
    for label, (expected, call) in CASES.items():
        print(label, "→", await caught(expected, call, queue, producer))
    await queue.close()
    await producer.shutdown()


async def caught(expected, call, queue, producer) -> str:
    try:
        await call(queue, producer)
    except expected:
        return expected.__name__
    except Exception as error:  # noqa: BLE001 - what else it was is the answer
        return f"{type(error).__name__}: {error}"
    return "nothing"


play(main)
