"""A client of echo_threads.py that makes one connection after the other.

    connect_again.py PORT SEED

The first at once, another for each line of its standard input. All of them stay open, and
each time every byte is compared on all.
"""

import socket
import sys

from common import Pattern, receive_exactly

# Enough for a connection to move.
MESSAGES = 60
MESSAGE_LEN = 3_000


def echo(connection, pattern):
    for i in range(MESSAGES):
        connection.sendall(pattern.at(i * MESSAGE_LEN, MESSAGE_LEN))
        pattern.check(i * MESSAGE_LEN, receive_exactly(connection, MESSAGE_LEN), "message")


def use(port, pattern):
    connections = []
    while True:
        connections.append(socket.create_connection(("127.0.0.1", port)))
        for connection in connections:
            echo(connection, pattern)
        print(f"verified {len(connections)} connections", flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    use(int(sys.argv[1]), Pattern(int(sys.argv[2])))
