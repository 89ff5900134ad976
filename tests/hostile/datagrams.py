"""Sends malformed datagrams to the Sidestep sockets of a victim and its peers.

    datagrams.py --pid VICTIM --seed N --seconds S [--uid UID]

Hello, Introduction and Channel, random or nearly right, in the name of strangers,
of the victim itself and of its honest peers, with descriptors of every kind beside
them. They go to the mailbox of the victim and to the names of connections, of
processes with the same parent as the victim. With --uid it becomes that user first,
and names everybody. It prints how many were sent.

The formats are those of crates/wire/src/host_control.rs.
"""

import argparse
import array
import fcntl
import os
import random
import re
import socket
import struct
import tempfile
import time

SLAB_LEN, WAKE_LEN = 4 << 30, 6 << 20
MFD_HUGETLB = 4
F_ADD_SEALS, LENGTH_SEALS = 1033, 0x1 | 0x2 | 0x4
HELLO, INTRODUCTION, CHANNEL = 1, 2, 3
LOOKS = 100
NAMES = re.compile(r"@(sidestep/1/(process/([0-9a-f]{32})|connection/\S+))")


def memory_file(length, seals=LENGTH_SEALS, magic=b"", flags=0):
    fd = os.memfd_create("sidestep-slab", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, length)
    if magic:
        os.pwrite(fd, magic, 0)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def slab(**how):
    """The stamp of crates/device/src/stamp.rs: the kind, and the layouts of slab and wake memory."""
    magic = struct.pack("=QI", int.from_bytes(b"SIDESLAB", "big"), 8 << 16 | 2)
    return memory_file(SLAB_LEN, magic=magic, **how)


def full_counter():
    """An event counter on which write(2) of anything waits for ever."""
    fd = os.eventfd(0, 0)
    os.eventfd_write(fd, 2**64 - 2)
    return fd


def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_pipe(keep):
    reader, writer = os.pipe()
    keep.append(reader)
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(65536))
    except BlockingIOError:
        os.set_blocking(writer, True)
    return writer


def nameless_file():
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Arsenal:
    """One descriptor of every kind."""

    def __init__(self):
        self._keep = []
        makers = [
            nameless_file,
            lambda: os.open("/dev/null", os.O_RDWR),
            lambda: os.open("/", os.O_RDONLY),
            lambda: socket.socket().detach(),
            lambda: full_pipe(self._keep),
            pipe_without_reader,
            full_counter,
            lambda: os.eventfd(0),
            lambda: memory_file(SLAB_LEN, seals=0),
            lambda: memory_file(4096),
            lambda: memory_file(SLAB_LEN, flags=MFD_HUGETLB),
        ]
        self.fds = [fd for fd in map(self._make, makers) if fd is not None]
        # What an honest process shows, and some that are nearly that.
        wake, short = memory_file(WAKE_LEN), memory_file(4096)
        self.pairs = [(slab(), wake), (slab(), short), (wake, slab())]
        huge = self._make(lambda: slab(flags=MFD_HUGETLB))
        if huge is not None:
            self.pairs.append((huge, wake))

    @staticmethod
    def _make(maker):
        try:
            return maker()
        except OSError:
            return None

    def some(self, dice):
        kind = dice.randrange(6)
        if kind == 0:
            return []
        if kind == 1:
            return dice.choices(self.fds, k=dice.choice([1, 2, 3, 4, 5, 40, 253]))
        if kind in (2, 3):
            return list(dice.choice(self.pairs))
        return [dice.choice(self.fds)]


def body(kind, dice):
    if kind == HELLO:
        slot = dice.choice([0, 5, 16383, 16384, 2**32 - 1])
        rmbe = dice.choice([0, 1, 65536, 1 << 20, 2**32 - 1])
        place = struct.pack(">II", slot, dice.randrange(2**32))
        return place + dice.randbytes(32) + struct.pack(">I", rmbe)
    if kind == INTRODUCTION:
        length = dice.choice([SLAB_LEN, SLAB_LEN, SLAB_LEN, 0, 2**64 - 1])
        pid, reply = dice.randrange(2**32), dice.choice([0, 1, 1, 7])
        return struct.pack(">BxxxIQI", reply, pid, length, 1)
    return struct.pack(">Hxx", dice.choice([0, 1, 2, 3, 63, 64, 65535]))


def message(kind, instance, dice):
    rest = body(kind, dice)
    whole = b"SSTP" + struct.pack(">HHI", 1, kind, 28 + len(rest)) + instance + rest
    damage = dice.randrange(4)
    if damage == 0:
        at = dice.randrange(len(whole))
        return whole[:at] + dice.randbytes(1) + whole[at + 1 :]
    if damage == 1:
        cut = whole[: dice.randrange(len(whole))]
        return dice.choice([cut, whole + dice.randbytes(300), b""])
    return whole


def inodes(pids):
    """Of the sockets of these processes."""
    found = set()
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}")[len("socket:[") : -1])
        except OSError:
            pass  # It has ended meanwhile.
    return found


def siblings(pid):
    """The processes that the parent of this one has started: not everybody's."""
    with open(f"/proc/{pid}/status") as status:
        parent = re.search(r"^PPid:\t(\d+)", status.read(), re.MULTILINE)[1]
    while True:
        found = []
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as children:
                    found += children.read().split()
            return found
        except FileNotFoundError:
            pass  # A thread has ended, and another one has its children now, which was looked at before perhaps.


def names(of_whom=None):
    """Addresses and instances of all there are, or of some sockets."""
    with open("/proc/net/unix") as table:
        rows = [line.split() for line in table]
    rows = [row for row in rows if len(row) > 7 and (of_whom is None or row[6] in of_whom)]
    found = [match for row in rows for match in NAMES.finditer(row[7])]
    addresses = [b"\0" + match[1].encode() for match in found]
    return addresses, [bytes.fromhex(match[3]) for match in found if match[3]]


def mailbox_of(pid):
    """Its address. The kernel shows its table of sockets in pieces: one is passed over
    when others before it go in between, so a look without it says nothing yet."""
    for _ in range(LOOKS):
        found = [name for name in names(inodes([pid]))[0] if b"/process/" in name]
        if found:
            return found
    raise SystemExit("the victim has no mailbox")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pid", type=int, required=True)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--seconds", type=float, default=2)
    arguments.add_argument("--uid", type=int)
    told = arguments.parse_args()
    mailbox = mailbox_of(told.pid)
    if told.uid is not None:
        os.setuid(told.uid)
    dice, arsenal = random.Random(f"{told.seed} {told.uid}"), Arsenal()
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    # A stranger with a mailbox of its own: its group is not dead.
    stranger = dice.randbytes(16)
    box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    box.bind(b"\0sidestep/1/process/" + stranger.hex().encode())
    sent, end = 0, time.monotonic() + told.seconds
    while time.monotonic() < end:
        # A stranger may not look whose sockets they are, and nobody believes him.
        addresses, instances = names(None if told.uid else inodes(siblings(told.pid)))
        connections = [name for name in addresses if b"connection" in name]
        for _ in range(50):
            to = dice.choice(mailbox + mailbox + connections)
            who = dice.choice([stranger, dice.randbytes(16), *instances])
            kind = dice.choice([HELLO, INTRODUCTION, CHANNEL, 0, 9])
            rights = array.array("i", arsenal.some(dice))
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
            try:
                sender.sendmsg([message(kind, who, dice)], beside, 0, to)
                sent += 1
            except OSError:
                time.sleep(0.0002)
    print(f"sent {sent}", flush=True)


if __name__ == "__main__":
    main()
