"""A scheduler in a process of its own, to be stopped and killed by tests.

`python scheduler_program.py '{"url": …, "queue": …, "holder": …, "tick_ms": …, "ttl_s": …}'`
prints its idea of the time when it has begun.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from chasquimq.engine.supervisor import Supervisor
from chasquimq.engine.upkeep import RepeatableScheduler
from chasquimq.settings import ConnectionSettings, UpkeepSettings
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.repeatables import FiringStore


async def main(options: dict) -> None:
    link = ReconnectingConnection(ConnectionSettings(url=options["url"]))
    upkeep = UpkeepSettings(scheduler_tick_ms=options["tick_ms"], lock_ttl_s=options["ttl_s"])
    store = FiringStore(options["queue"], link)
    scheduler = RepeatableScheduler(store, upkeep, holder=options["holder"])
    await link.connection()
    print(f"ready {time.time()}", flush=True)
    await Supervisor().keep(scheduler)


asyncio.run(main(json.loads(sys.argv[1])))
