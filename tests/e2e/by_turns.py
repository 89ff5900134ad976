"""A client of echo_threads.py whose connections come one after the other.

    by_turns.py PORT SEED

For each line "CONNECTIONS MESSAGES" of its standard input it makes so many connections, one
at a time, each for so many messages and their echoes.
"""

import socket
import sys

from common import Pattern
from connect_again import receive_exactly

MESSAGE_LEN = 200


def talk(port, pattern, messages):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for i in range(messages):
            connection.sendall(pattern.at(i * MESSAGE_LEN, MESSAGE_LEN))
            pattern.check(i * MESSAGE_LEN, receive_exactly(connection, MESSAGE_LEN), "message")


def serve_turns(port, pattern):
    print("ready", flush=True)
    for line in sys.stdin:
        connections, messages = map(int, line.split())
        for _ in range(connections):
            talk(port, pattern, messages)
        print(f"verified {connections} connections", flush=True)


if __name__ == "__main__":
    serve_turns(int(sys.argv[1]), Pattern(int(sys.argv[2])))
