"""Whoever answers at an address is believed only when it answers like a server."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from chasquimq.server import SessionServer
from chasquimq.server.probe import Address, free_port, identify, is_serving, unix_address
from server.talk import address_of


@contextmanager
def impostor(answer: bytes) -> Iterator[Address]:
    """A listener that reads one request, says one thing and hangs up."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(port=listener.getsockname()[1])
        thread.join()


def test_a_server_says_who_it_is(binary: Path):
    with SessionServer(binary=binary) as server:
        identity = identify(address_of(server.url))

        assert identity is not None
        assert identity.pid == server.pid
        assert identity.kind in {"redis", "valkey"}
        assert identity.version[0].isdigit()
        assert identity.is_ready
        assert is_serving(identity, server.data_dir)


def test_nobody_at_a_port_is_nobody():
    assert identify(Address(port=free_port())) is None


def test_nobody_at_a_socket_is_nobody(tmp_path: Path):
    assert identify(Address(socket_path=tmp_path / "none.sock")) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-NOAUTH Authentication required.\r\n" * 3,
        b"$5\r\nhello\r\n*0\r\n+PONG\r\n",
        b"$999999999999\r\n",
        b"*2\r\n",
        b"*1\r\n" * 5_000,
    ],
    ids=["silence", "http", "password", "no facts", "endless", "cut short", "deep"],
)
def test_an_impostor_is_nobody(answer: bytes):
    with impostor(answer) as address:
        assert identify(address) is None


def test_a_frozen_server_does_not_freeze_who_asks(bundled: Path):
    with SessionServer(binary=bundled) as server:
        os.kill(server.pid, signal.SIGSTOP)

        assert identify(address_of(server.url), timeout_s=0.05) is None


def test_a_socket_url_can_be_read_back(tmp_path: Path):
    address = Address(socket_path=tmp_path / "with space & ñ.sock")

    assert unix_address(address.url) == address
    assert unix_address("redis://127.0.0.1:1") is None
