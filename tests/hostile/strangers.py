"""Clients that do not do what clients do, to an echo server.

    strangers.py PORT --seed N --seconds S

Each of its threads makes one connection after the other, by dice: it connects and says nothing,
connects and vanishes, says what looks like CLC or is nonsense, reads byte by byte, never reads,
or ends in the middle. Whatever it is that a stranger reads, each byte is the one that stands at
its place in what he sent. It prints how many connections there were; a wrong byte or a
refused connection is an error.
"""

import argparse
import random
import socket
import struct
import sys
import threading
import time

THREADS = 8
PATIENCE_S = 300
LOOPBACKS = 16
# What begins and ends a CLC message.
EYECATCHER = bytes.fromhex("e2d4c3d9")
# SO_LINGER of 0: the end is a reset.
VANISH = struct.pack("ii", 1, 0)


def payload(length, key):
    """Bytes that tell their place: no two connections have the same."""
    return random.Random(key).randbytes(length)


def expect(tcp, sent, piece):
    """Reads all that was sent, so much at a time."""
    at = 0
    while at < len(sent):
        got = tcp.recv(min(piece, len(sent) - at))
        if not got:
            raise AssertionError(f"the end after {at} of {len(sent)} bytes")
        if got != sent[at : at + len(got)]:
            raise AssertionError(f"a wrong byte behind {at}")
        at += len(got)


def half_open(tcp, dice, key):
    time.sleep(dice.random())


def vanish(tcp, dice, key):
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, VANISH)
    if dice.randrange(2):
        tcp.sendall(payload(dice.randrange(1, 5000), key))


def garbage(tcp, dice, key):
    """What the first bytes of an SMC connection would be; the server's program is to have it."""
    kind, flags = dice.randrange(6), dice.randrange(256)
    body = payload(dice.randrange(0, 300), key)
    length = dice.choice([8 + len(body) + 4, 0, 1, 65535])
    sent = EYECATCHER + struct.pack(">BHB", kind, length, flags) + body + EYECATCHER
    tcp.sendall(sent)
    expect(tcp, sent, 65536)


def bytewise(tcp, dice, key):
    sent = payload(dice.randrange(100, 1500), key)
    tcp.sendall(sent)
    expect(tcp, sent, 1)
    # And in the other direction.
    sent = payload(dice.randrange(10, 100), key + " again")
    for at in range(len(sent)):
        tcp.sendall(sent[at : at + 1])
    expect(tcp, sent, 65536)


def never_read(tcp, dice, key):
    tcp.setblocking(False)
    sent = payload(65536, key)
    end = time.monotonic() + dice.random()
    while time.monotonic() < end:
        try:
            tcp.send(sent)
        except BlockingIOError:
            time.sleep(0.02)


def end_in_the_middle(tcp, dice, key):
    """Ends its half in order, and has everything back."""
    for turn in range(dice.randrange(1, 40)):
        sent = payload(dice.randrange(1, 3000), f"{key} {turn}")
        tcp.sendall(sent)
        expect(tcp, sent, 65536)
    sent = payload(1000, key)
    tcp.sendall(sent)
    tcp.shutdown(socket.SHUT_WR)
    expect(tcp, sent, 65536)
    if tcp.recv(1):
        raise AssertionError("bytes behind the end")


KINDS = [half_open, vanish, garbage, bytewise, never_read, end_in_the_middle]


class Strangers:
    def __init__(self, port, seed, seconds):
        self.port, self.seed, self.end = port, seed, time.monotonic() + seconds
        self.visits, self.faults = [0] * THREADS, []

    def visit(self, dice, key):
        play = dice.choice(KINDS)
        host = f"127.0.0.{dice.randrange(1, LOOPBACKS)}"
        try:
            with socket.create_connection((host, self.port), PATIENCE_S) as tcp:
                tcp.settimeout(PATIENCE_S)
                play(tcp, dice, key)
        except (AssertionError, OSError) as fault:
            self.faults.append(f"{play.__name__}: {fault!r}")

    def work(self, index):
        dice = random.Random(f"{self.seed} {index}")
        while time.monotonic() < self.end and not self.faults:
            self.visit(dice, f"{self.seed} {index} {self.visits[index]}")
            self.visits[index] += 1


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("port", type=int)
    arguments.add_argument("--seed", required=True)
    arguments.add_argument("--seconds", type=float, required=True)
    told = arguments.parse_args()
    strangers = Strangers(told.port, told.seed, told.seconds)
    threads = [threading.Thread(target=strangers.work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if strangers.faults:
        sys.exit("\n".join(strangers.faults))
    print(f"{sum(strangers.visits)} connections", flush=True)


main()
