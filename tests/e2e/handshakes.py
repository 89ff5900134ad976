"""A program with a connection that nobody accepts, and one to an echo server of its own.

    handshakes.py SEED

Both ends of the second connection, and the first, are in this process. What comes back on
the second is compared byte by byte.
"""

import socket
import sys
import threading

from common import Pattern, hold

MESSAGES = 60
MESSAGE_LEN = 3_000


def echo(listener):
    connection, _ = listener.accept()
    while data := connection.recv(65_536):
        connection.sendall(data)


def use(pattern):
    unwilling = socket.create_server(("127.0.0.1", 0))
    pending = socket.create_connection(unwilling.getsockname())
    pending.sendall(b"x")
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, args=(listener,), daemon=True).start()
    connection = socket.create_connection(listener.getsockname())
    position = 0
    for _ in range(MESSAGES):
        connection.sendall(pattern.at(position, MESSAGE_LEN))
        end = position + MESSAGE_LEN
        while position < end:
            data = connection.recv(end - position)
            if not data:
                sys.exit("connection ended inside a message")
            pattern.check(position, data, "message")
            position += len(data)
    hold(position)


if __name__ == "__main__":
    use(Pattern(int(sys.argv[1])))
