"""Sends random bytes to a server of echoes over several connections, and compares each that comes back.

    compare_echoes.py ADDRESS PORT CONNECTIONS LEN

Over each connection LEN bytes go there and come back, again and again, until standard input ends, and once more. Then a line of JSON has how
many connections broke, how many bytes came back, and the longest wait for LEN of them, in seconds.
"""

import json
import os
import socket
import sys
import threading
import time

address, port, count, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
# No echo takes this long unless something hangs.
PATIENCE_S = 60
# Others need the CPUs as well.
PAUSE_S = 0.02
is_over = threading.Event()
begun = threading.Barrier(count + 1)
told = {"broken": 0, "bytes": 0, "longest_wait": 0.0}
lock = threading.Lock()


def exchange(connection):
    data, begin = os.urandom(length), time.monotonic()
    connection.sendall(data)
    got = bytearray()
    while len(got) < length:
        piece = connection.recv(length - len(got))
        if not piece:
            raise OSError("it has ended")
        got += piece
    if got != data:
        raise OSError("what came back is something else")
    with lock:
        told["bytes"] += length
        told["longest_wait"] = max(told["longest_wait"], time.monotonic() - begin)


def talk():
    with socket.create_connection((address, port), timeout=PATIENCE_S) as connection:
        try:
            exchange(connection)
            begun.wait()
            while not is_over.wait(PAUSE_S):
                exchange(connection)
            exchange(connection)
        except OSError as error:
            print(error, file=sys.stderr)
            with lock:
                told["broken"] += 1


talks = [threading.Thread(target=talk) for _ in range(count)]
for one in talks:
    one.start()
begun.wait(PATIENCE_S)
print("connected", flush=True)
sys.stdin.read()
is_over.set()
for one in talks:
    one.join()
print(json.dumps(told), flush=True)
