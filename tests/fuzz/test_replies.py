"""A server that speaks nonsense: every question ends in an answer or in one of our errors."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.connect import open_connection
from fuzz.seeds import CORPUS, RUN_S_MAX, budget, mutated
from store.fake_server import OLD, FakeServer

ASK_S_MAX = 5.0
SPELLED = json.loads((CORPUS / "replies.json").read_text())
REPLIES = [bytes.fromhex(text) for answers in SPELLED.values() for text in answers.values()]
ODD = [
    b"*-2\r\n", b"$-2\r\n", b"$99999999999999\r\n", b"*1000000000\r\n", b":\r\n", b":1e9\r\n", b"-\r\n",
    b"+\r\n+more\r\n", b"\r\n", b"\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"%1\r\n+a\r\n+b\r\n",
    b"*1\r\n" * 100, b"-ERR " + b"x" * 10_000 + b"\r\n", b"-\xff\xfe\r\n", b"_\r\n", b"#t\r\n", b",nan\r\n",
]  # fmt: skip


async def ask(reply: bytes) -> object:
    """What a question comes to when this is the answer."""
    async with FakeServer({**OLD, "PING": reply}) as server:
        settings = ConnectionSettings(url=server.url, command_timeout_ms=40)
        connection = await open_connection(settings)
        try:
            return await asyncio.wait_for(connection.call("PING"), ASK_S_MAX)
        except StoreError as error:
            return error
        finally:
            await connection.close()


@pytest.mark.parametrize("reply", ODD, ids=lambda reply: repr(reply[:12]))
async def test_an_odd_reply_is_an_answer_or_an_error(reply):
    await ask(reply)


@pytest.mark.timeout(RUN_S_MAX)
def test_any_reply_is_an_answer_or_an_error():
    @budget(40)
    @given(mutated(REPLIES) | st.binary(min_size=1, max_size=30))
    def is_understood(reply):
        if reply:
            asyncio.run(ask(reply))

    is_understood()
