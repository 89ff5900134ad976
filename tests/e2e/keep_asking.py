"""Asks a server of echoes over many connections, until its standard input ends; then says how that went.

    keep_asking.py ADDRESS PORT CONNECTIONS PAUSE

Each connection sends one byte, waits for it to come back, pauses for so many seconds and begins again. At the end a line of JSON has how
many connections broke, how many echoes there were, and the longest wait for one, in seconds.
"""

import json
import selectors
import socket
import sys
import time

address, port, count, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
selector = selectors.DefaultSelector()
sent, due = {}, []
for _ in range(count):
    connection = socket.create_connection((address, port), timeout=10)
    connection.setblocking(False)
    connection.send(b"x")
    sent[connection] = time.monotonic()
    selector.register(connection, selectors.EVENT_READ)
selector.register(sys.stdin, selectors.EVENT_READ)
print("connected", flush=True)

broken, echoes, longest, end = 0, 0, 0.0, None
while sent or (end is None and due):
    if end is not None and time.monotonic() > end:
        break
    for key, _ in selector.select(0.01):
        if key.fileobj is sys.stdin:
            selector.unregister(sys.stdin)
            # What is on its way still has time to come back.
            end = time.monotonic() + 15
            continue
        connection = key.fileobj
        now = time.monotonic()
        try:
            alive = connection.recv(1) == b"x"
        except OSError:
            alive = False
        longest = max(longest, now - sent.pop(connection, now))
        if not alive:
            broken += 1
            selector.unregister(connection)
            # It may have been reset between two echoes.
            due = [it for it in due if it[1] is not connection]
        else:
            echoes += 1
            due.append((now + pause, connection))
    now = time.monotonic()
    while end is None and due and due[0][0] <= now:
        _, connection = due.pop(0)
        sent[connection] = now
        try:
            connection.send(b"x")
        except OSError:
            sent.pop(connection)
            broken += 1
            selector.unregister(connection)
broken += len(sent)
print(json.dumps({"broken": broken, "echoes": echoes, "longest_wait": longest}), flush=True)
