"""A client of an echo server that talks until it is told to end.

    steady_talk.py PORT SEED [ADDRESS]

Some of its connections wait for each echo, with messages of all sizes; others stream in both
directions at once; one uses poll and never blocks. Every byte is verified. For each number on its
standard input it says "went on" when each stream has got so many bytes further, and the others have by
no more than a few messages. It ends with its standard input, when all streams have come to their ends.
"""

import random
import select
import socket
import sys
import threading
import time

from common import Pattern
from connect_again import receive_exactly

TURNS, STREAMS = 4, 2

# No more than fits between two ends that both write before they read.
MESSAGE_LEN_MAX = 30_000
CHUNK_LEN_MAX = 200_000

# Some messages more.
FURTHER_MAX = 2 * MESSAGE_LEN_MAX

verified = {}
failed = threading.Event()
ends = threading.Event()


def count(seed, n):
    verified[seed] += n


def some_len(rng, most):
    """Small and large lengths alike: even in the logarithm."""
    return int(most ** rng.random())


def take_turns(connection, pattern, seed):
    rng = random.Random(seed)
    position = 0
    while not ends.is_set():
        length = some_len(rng, MESSAGE_LEN_MAX)
        connection.sendall(pattern.at(position, length))
        pattern.check(position, receive_exactly(connection, length), f"turns {seed}")
        position += length
        count(seed, length)


def stream(connection, pattern, seed):
    writer = threading.Thread(target=guard, args=(write_stream, connection, pattern, seed))
    writer.start()
    rng = random.Random(-1 - seed)
    position = 0
    while data := connection.recv(some_len(rng, CHUNK_LEN_MAX)):
        pattern.check(position, data, f"stream {seed}")
        position += len(data)
        count(seed, len(data))
    writer.join()
    if position != sent[seed]:
        sys.exit(f"stream {seed}: {position} of {sent[seed]} bytes came back")


sent = {}


def write_stream(connection, pattern, seed):
    rng = random.Random(seed)
    position = 0
    while not ends.is_set():
        length = some_len(rng, CHUNK_LEN_MAX)
        connection.sendall(pattern.at(position, length))
        position += length
    sent[seed] = position
    connection.shutdown(socket.SHUT_WR)


def poll(connection, pattern, seed):
    connection.setblocking(False)
    events = select.poll()
    rng = random.Random(seed)
    out, back = 0, 0
    while not ends.is_set() or back < out:
        wants_out = not ends.is_set() and out - back < MESSAGE_LEN_MAX
        events.register(connection, select.POLLIN | (select.POLLOUT if wants_out else 0))
        for _, said in events.poll(300_000) or sys.exit("poll: nothing for five minutes"):
            try:
                if said & select.POLLIN:
                    data = connection.recv(some_len(rng, CHUNK_LEN_MAX))
                    pattern.check(back, data, "poll")
                    back += len(data)
                    count(seed, len(data))
                if said & select.POLLOUT:
                    out += connection.send(pattern.at(out, some_len(rng, MESSAGE_LEN_MAX)))
            except BlockingIOError:
                pass


def guard(act, *args):
    """A failed thread ends the program, and not only itself."""
    try:
        act(*args)
    except SystemExit as error:
        print(error, file=sys.stderr, flush=True)
        failed.set()
        ends.set()
    except BaseException as error:
        print(f"{act.__name__}: {error!r}", file=sys.stderr, flush=True)
        failed.set()
        ends.set()


def go_on(acts, length):
    """Waits until each connection has got further."""
    further = [length if act is stream else min(length, FURTHER_MAX) for act in acts]
    goals = [verified[seed] + n for seed, n in enumerate(further)]
    while not ends.is_set() and any(verified[seed] < goal for seed, goal in enumerate(goals)):
        time.sleep(0.01)


def main():
    port, pattern = int(sys.argv[1]), Pattern(int(sys.argv[2]))
    address = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"
    acts = [take_turns] * TURNS + [stream] * STREAMS + [poll]
    threads = []
    for seed, act in enumerate(acts):
        verified[seed] = 0
        connection = socket.create_connection((address, port))
        threads.append(threading.Thread(target=guard, args=(act, connection, pattern, seed)))
    for thread in threads:
        thread.start()
    print(f"talking on {len(acts)} connections", flush=True)
    for line in sys.stdin:
        go_on(acts, int(line))
        if ends.is_set():
            break
        print("went on", flush=True)
    ends.set()
    for thread in threads:
        thread.join()
    if failed.is_set():
        sys.exit(1)
    print(f"verified {sum(verified.values())} bytes", flush=True)


if __name__ == "__main__":
    main()
