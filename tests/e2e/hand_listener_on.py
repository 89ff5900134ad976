"""A server whose listener was made by another process, and its client.

    hand_listener_on.py server PORT HOW WHEN
    hand_listener_on.py client PORT SEED

HOW does the listener come to the process that serves: `exec` (it is inherited) or `rights`
(it is received)? WHEN does it begin to listen: `before` that or `after`? The server accepts
only when the client has sent enough to be worth moving: it has to find the server before that.
"""

import os
import select
import socket
import sys
import time

from common import Pattern, hold

# The first is more than what makes a connection worth moving, and waits in TCP's buffers;
# others are no more than fits between two ends that both write before they read.
ROUNDS_LEN = [100_000] + 50 * [30_000]
PIECE_LEN = 10_000

# For how long a client waits to be accepted: it sends what it may meanwhile.
ENOUGH_S = 0.3


def make(port, how, when):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    if when == "before":
        listener.listen()
    if how == "exec":
        listener.set_inheritable(True)
        number = str(listener.fileno())
        os.execvp(sys.executable, [sys.executable, __file__, "serve", number, when])
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        listener.close()
        _, [number], _, _ = socket.recv_fds(theirs, 1, 1)
        return serve(number, when)
    theirs.close()
    socket.send_fds(ours, [b"l"], [listener.fileno()])
    listener.close()
    os.wait()


def serve(number, when):
    listener = socket.socket(fileno=number)
    if when == "after":
        listener.listen()
    while True:
        select.select([listener], [], [])
        time.sleep(ENOUGH_S)
        connection, _ = listener.accept()
        echo(connection)


def echo(connection):
    while data := connection.recv(65_536):
        connection.sendall(data)


def use(port, seed):
    connection = socket.create_connection(("127.0.0.1", port))
    pattern = Pattern(seed)
    sent = received = 0
    for round_len in ROUNDS_LEN:
        for _ in range(round_len // PIECE_LEN):
            connection.sendall(pattern.at(sent, PIECE_LEN))
            sent += PIECE_LEN
        while received < sent:
            data = connection.recv(sent - received)
            if not data:
                sys.exit(f"connection ended at byte {received}")
            pattern.check(received, data, "echo")
            received += len(data)
    hold(received)


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "server":
        make(int(rest[0]), rest[1], rest[2])
    elif role == "serve":
        serve(int(rest[0]), rest[1])
    else:
        use(int(rest[0]), int(rest[1]))
