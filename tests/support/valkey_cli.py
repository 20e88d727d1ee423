"""As much of `valkey-cli` as the kit uses, for machines without it: -u URL, -s SOCKET, a command."""

from __future__ import annotations

import sys

from chasquimq.errors import ChasquiError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection


def main(words: list[str]) -> int:
    url = ""
    while words and words[0] in ("-u", "-s"):
        option, value, *words = words
        url = value if option == "-u" else f"unix://{value}"
    try:
        connection = BlockingConnection(ConnectionSettings(url=url))
        print(shown(connection.call(*words)))
        connection.close()
    except ChasquiError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def shown(reply: object) -> str:
    if isinstance(reply, list):
        return "\n".join(map(shown, reply))
    return reply.decode() if isinstance(reply, bytes) else str(reply)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
