"""Keep secrets out of everything that is stored or logged about an error."""

import asyncio
import os
import re

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-redact"


async def charge(job: Job) -> None:
    raise ConnectionError(f"card {job.data['card']} was refused by https://key@pay.example.org")


# region redact
def redact(error_type: str, message: str) -> str:
    message = re.sub(r"//[^/@]*@", "//***@", message)
    return re.sub(r"\d{12,}", "****", message)


# endregion


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add("charge", {"card": "4111111111111111"}, attempts=1)
        # region worker
        worker = Worker(QUEUE, charge, redis_url=url, redact=redact)
        # endregion
        await worker.run_until_idle()
        for letter in await queue.peek_dlq():
            print(letter["error"])


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
