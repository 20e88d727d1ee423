"""Write the log of workers as JSON, a line for each record."""

import asyncio
import json
import logging
import os
from io import StringIO

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-json-log"


# region formatter
class JsonLines(logging.Formatter):
    KEYS = ("job_id", "job_name", "run_number", "fate", "reason", "loop", "error")

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname, "message": record.getMessage()}
        line |= {key: getattr(record, f"chasqui_{key}", None) for key in self.KEYS}
        return json.dumps({key: value for key, value in line.items() if value is not None})


# endregion


async def charge(job: Job) -> None:
    raise ConnectionError("the bank is closed")


async def main(url: str) -> None:
    written = StringIO()  # yours would be sys.stdout
    lines = logging.StreamHandler(written)
    lines.setFormatter(JsonLines())
    logging.getLogger("chasquimq").addHandler(lines)
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add_unique("charge", {"amount": 5}, job_id="order-7")
    await Worker(QUEUE, charge, redis_url=url, max_attempts=1).run_until_idle()
    for line in map(json.loads, written.getvalue().splitlines()):
        if "fate" in line:
            print(f"{line['job_id']} failed in run {line['run_number']}: {line['fate']}")


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
