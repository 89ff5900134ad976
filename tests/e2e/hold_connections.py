"""Makes connections to a server of echoes and holds them until standard input ends.

    hold_connections.py ADDRESS PORT COUNT [idle]

Over each a line of its own goes there and back, at the beginning and at the end, and is compared; not so if they are idle. The peer of each is
ADDRESS. It says "connected" once all are there.
"""

import os
import socket
import sys

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
is_idle = len(sys.argv) > 4
# No echo takes this long unless something hangs.
PATIENCE_S = 60


def compare(connection):
    line = os.urandom(32)
    connection.sendall(line)
    got = b""
    while len(got) < len(line):
        piece = connection.recv(len(line))
        if not piece:
            sys.exit("a connection has ended")
        got += piece
    if got != line:
        sys.exit("what came back is something else")


connections = [socket.create_connection((address, port), timeout=PATIENCE_S) for _ in range(count)]
for connection in connections:
    peer = connection.getpeername()[:2]
    if peer != (address, port):
        sys.exit(f"the peer is {peer}")
    if not is_idle:
        compare(connection)
print("connected", flush=True)
sys.stdin.read()
if not is_idle:
    for connection in connections:
        compare(connection)
