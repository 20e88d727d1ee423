"""Views without an event loop add jobs and ask for them; a worker elsewhere runs them."""

import asyncio
import os

from chasquimq import Job, SettingsError, Worker
from chasquimq.blocking import Queue
from chasquimq.server import SessionServer

QUEUE = "example-views"


# region queue
def open_queue(url: str) -> Queue:
    """Once for the whole process; it connects when it is first used."""
    return Queue(QUEUE, redis_url=url)


# endregion


# region views
def sign_up(queue: Queue, form: dict[str, str]) -> tuple[str, int]:
    """Answer at once, leave the slow part to a worker."""
    job = queue.add("welcome", {"to": form["email"]})
    return job.id, 202


def status(queue: Queue, job_id: str) -> tuple[str, int]:
    """What a page asks for while its visitor waits."""
    try:
        # The id comes from outside: an unknown one must not make the server send its whole backlog.
        found = queue.get_job(job_id, max_scanned_bytes=100_000)
    except SettingsError:  # blank, too long or not Unicode, so it is the id of no job
        return "unknown", 404
    is_gone = found.state == "unknown" and found.scanned_all
    return found.state, 404 if is_gone else 200


# endregion


def welcome(job: Job) -> str:
    return f"mail to {job.data['to']}"


def main(url: str) -> None:
    with open_queue(url) as queue:
        job_id, code = sign_up(queue, {"email": "ada@example.org"})
        print(code, *status(queue, job_id))
        print(*status(queue, " "), "for an id that a visitor made up")
        asyncio.run(run_worker(url))
        print(*status(queue, job_id))
        # region result
        print(queue.wait_for_result(job_id, timeout=5))
        # endregion


async def run_worker(url: str) -> None:
    """Stands for a process of its own."""
    await Worker(QUEUE, {"welcome": welcome}, redis_url=url, store_results=True).run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url)
    server.stop()
