"""An add that returns only when it is on the disk, or on replicas."""

import asyncio

from chasquimq import DurabilityNotMet, Queue
from chasquimq.server import SessionServer

QUEUE = "example-durability"


async def main(server: SessionServer) -> None:
    async with Queue(QUEUE, redis_url=server.url) as queue:
        # region fsync
        await queue.add("pay-out", {"amount": 100}, durability="fsync")
        # endregion
    server.restart()  # as after a power cut
    async with Queue(QUEUE, redis_url=server.url) as queue:
        print(f"there after the cut: {(await queue.counts()).ready}")
        # region replica
        try:
            await queue.add("pay-out", {"amount": 200}, durability="replica:1")
        except DurabilityNotMet as error:
            print(f"written, but not on a replica: {len(error.job_ids)}")
        # endregion


if __name__ == "__main__":
    # Always a private server: this program kills it.
    with SessionServer(aof="everysec") as server:
        asyncio.run(main(server))
