"""Ends with 0 when a page on this machine's loopback answers 200, else with 1 and the reason."""
# ruff: noqa: INP001  a program, not a package

from __future__ import annotations

# Nothing but a socket: a probe runs every few seconds, and an HTTP client takes longer to import.
import socket
import sys

ANSWER_S_MAX = 4.0
HEAD_BYTES_MAX = 256


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or not arguments[0].isdigit():
        print("usage: probe.py PORT /PATH", file=sys.stderr)  # noqa: T201  the container's log
        return 2
    try:
        status = ask(int(arguments[0]), arguments[1])
    except OSError as error:
        status = str(error)
    if status == "200":
        return 0
    print(f"{arguments[1]}: {status}", file=sys.stderr)  # noqa: T201  what the manager shows
    return 1


def ask(port: int, path: str) -> str:
    """The status that a page answers with."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX) as talk:
        talk.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = talk.recv(HEAD_BYTES_MAX).split(b" ", 2)
    return head[1].decode("latin-1") if len(head) > 1 else "no answer"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
