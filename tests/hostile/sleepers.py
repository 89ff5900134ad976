"""Sends descriptors whose last close sleeps for a minute to the sockets of a victim and its peers.

    sleepers.py --pid VICTIM --uid UID --seconds S

Each is a TCP connection with SO_LINGER and more unsent bytes than its peer takes, of which nobody else
has a descriptor: who drops the message, or closes the socket in which it lies, sleeps. They go to the
mailbox of the victim and to the names of connections, from another user. It prints how many were
sent, and how many the kernel would not send (SO_PASSRIGHTS).
"""

import argparse
import array
import errno
import os
import random
import socket
import struct
import sys
import time

from datagrams import INTRODUCTION, HELLO, mailbox_of, message, names

ON_FOR_A_MINUTE = struct.pack("ii", 1, 60)
RESET = struct.pack("ii", 1, 0)
# Into the mailbox, which takes more than that: it is to have room for the introductions of others.
MAILBOX_MAX = 3
# Each takes two descriptors and a full socket.
SLEEPERS_MAX = 100


class Sleepers:
    def __init__(self):
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._peers = []

    def one(self):
        tcp = socket.socket()
        tcp.connect(self._listener.getsockname())
        self._peers.append(self._listener.accept()[0])
        tcp.setblocking(False)
        try:
            while True:
                tcp.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ON_FOR_A_MINUTE)
        return tcp


def send(sender, to, beside, dice):
    """Whether it was sent. If not, the sender itself must not sleep."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [beside.fileno()]))]
    kind = dice.choice([HELLO, INTRODUCTION])
    try:
        sender.sendmsg([message(kind, dice.randbytes(16), dice)], rights, 0, to)
    except OSError:
        beside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        raise
    finally:
        beside.close()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pid", type=int, required=True)
    arguments.add_argument("--uid", type=int, required=True)
    arguments.add_argument("--seconds", type=float, default=2)
    told = arguments.parse_args()
    mailbox = mailbox_of(told.pid)
    os.setuid(told.uid)
    dice, sleepers = random.Random(told.pid), Sleepers()
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    sent, letters, refused, end = 0, 0, 0, time.monotonic() + told.seconds
    while time.monotonic() < end and sent < SLEEPERS_MAX:
        connections = [name for name in names()[0] if b"connection" in name]
        some = dice.sample(connections, k=min(5, len(connections)))
        for to in some + (mailbox if letters < MAILBOX_MAX else []):
            try:
                send(sender, to, sleepers.one(), dice)
                sent += 1
                letters += to in mailbox
            except OSError as error:
                # Others have ended, or take no more now.
                refused += error.errno == errno.EPERM
        time.sleep(0.01)
    print(f"sent {sent}, {refused} refused by the kernel", flush=True)
    # With this process its peers would go, and wake who sleeps.
    sys.stdin.read()


main()
