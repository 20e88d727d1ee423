"""Connect as a user of the server, with a password that is asked for at every connection."""

import asyncio

from redis.asyncio import Redis

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "reports"
VAULT = {"reports": "first password"}


# region provider
async def credentials(address: str) -> tuple[str | None, str | None]:
    """Answer user and password; `address` says which server wants them."""
    return "reports", VAULT["reports"]


# endregion


async def build(job: Job) -> None:
    print(f"report {job.data['month']}")


async def main(url: str) -> None:
    await allow(url, VAULT["reports"])
    # region connect
    async with Queue(QUEUE, redis_url=url, credential_provider=credentials) as queue:
        await queue.add("build", {"month": "May"})
    # endregion
    VAULT["reports"] = "second password"
    await allow(url, VAULT["reports"])
    worker = Worker(QUEUE, build, redis_url=url, credential_provider=credentials)
    await worker.run_until_idle()


async def allow(url: str, password: str) -> None:
    """Make a user that sees the keys of one queue and nothing else."""
    rights = ("~{chasqui:reports}:*", "+@read", "+@write", "+@connection", "+@scripting", "+time")
    async with Redis.from_url(url) as admin:
        await admin.execute_command(
            "ACL", "SETUSER", "reports", "reset", "on", f">{password}", *rights
        )


if __name__ == "__main__":
    # Always a private server: this program makes a user on it.
    with SessionServer() as server:
        asyncio.run(main(server.url))
