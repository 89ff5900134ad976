"""A client that is not Sidestep, meets a Sidestep server, and then breaks one rule.

    scripted_client.py PORT

The error scenarios of RFC 7609 Appendix C that a client can cause, one connection for each:
it binds the name of the connection, introduces itself with memory of its own, proposes, and
then says what the scenario wants, or nothing. The server echoes. Before, between and after,
every byte must come back by TCP. It prints a line for each scenario.

Formats and offsets are those of crates/wire/src/host_control.rs and clc.rs, and of
crates/device/src/slab.rs and wake.rs.
"""

import array
import fcntl
import mmap
import os
import socket
import struct
import sys
import time

SLAB_LEN, WAKE_LEN, RINGS_AT = 4 << 30, 6 << 20, 16 << 20
SLOTS, RECORD_LEN, CLC_LEN = 16384, 256, 512
RECORDS_AT = 4096
CLC_AT = RECORDS_AT + SLOTS * RECORD_LEN
CELLS_AT, CELL_LEN = 5 << 20, 16
F_ADD_SEALS, LENGTH_SEALS = 1033, 0x1 | 0x2 | 0x4
SO_PASSCRED = 16
# Places in a record.
PHASE, PEER_SLOT = 192, 196
# Phases.
PROPOSED, ACCEPTED, CONFIRMED, DECLINED = 1, 2, 3, 4
GENERATION = 1
HELLO, INTRODUCTION = 1, 2
EYECATCHER = bytes.fromhex("e2d4c3d9")
LOOPBACK_CHID = 0xFFFF
CNFERR, SYNCERR = 0x03000000, 0x04000000
PATIENCE_S = 20


def memory_file(name, length):
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    fcntl.fcntl(fd, F_ADD_SEALS, LENGTH_SEALS)
    return fd


def ueid(name):
    return name.ljust(32).encode()


# ---- messages ------------------------------------------------------------


def clc(kind, flags, body, eyecatcher=EYECATCHER):
    whole = struct.pack(">4sBHB", eyecatcher, kind, 8 + len(body) + 4, flags)
    return whole + body + eyecatcher


def proposal(instance):
    base = bytes(30) + struct.pack(">H", 0)
    area = bytes(10) + struct.pack(">H", 28) + bytes(28)
    v2 = struct.pack(">BBxBxxH16xBBH12x", 1, 2, 0x10, 64, 0, 0, 1) + ueid("SIDESTEP")
    entries = b"".join(half + struct.pack(">H", LOOPBACK_CHID) for half in halves(instance))
    return clc(1, 0x26, base + area + v2 + bytes(48) + entries)


def decline(diagnosis, out_of_sync=False):
    body = struct.pack(">8xIB3x16x", diagnosis, 0x20)
    return clc(4, 0x20 | (0x08 if out_of_sync else 0), body)


def confirm_of(accept, instance, eid):
    """What a client would confirm, but for the EID."""
    gid, gid_ext = halves(instance)
    whole = bytearray(accept)
    whole[4] = 3
    whole[8:16], whole[66:74], whole[34:66] = gid, gid_ext, ueid(eid)
    return bytes(whole)


def halves(sixteen):
    return sixteen[:8], sixteen[8:]


def words(sixteen):
    """As the library keeps them."""
    return struct.unpack(">QQ", sixteen)


# ---- one process ---------------------------------------------------------


class Client:
    """Our mailbox, and memory as a Sidestep process has it."""

    def __init__(self):
        self.instance = os.urandom(16)
        self.slab_fd = memory_file("sidestep-slab", SLAB_LEN)
        os.pwrite(self.slab_fd, struct.pack("=QI", int.from_bytes(b"SIDESLAB", "big"), 3), 0)
        self.wake_fd = memory_file("sidestep-wake", WAKE_LEN)
        self.slab = mmap.mmap(self.slab_fd, RINGS_AT)
        self.mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.mailbox.bind(b"\0sidestep/1/process/" + self.instance.hex().encode())
        self.mailbox.settimeout(PATIENCE_S)
        self.server_slab = self.server_wake = None

    def introduce(self, server, poke):
        """Both sides, once. `poke` makes the server look."""
        if self.server_slab is not None:
            return
        body = struct.pack(">BxxxIQI", 1, os.getpid(), SLAB_LEN, 5)
        whole = b"SSTP" + struct.pack(">HHI", 1, INTRODUCTION, 48) + self.instance + body
        rights = array.array("i", [self.slab_fd, self.wake_fd])
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        name = b"\0sidestep/1/process/" + server.hex().encode()
        self.mailbox.sendmsg([whole], beside, 0, name)
        poke()
        while True:
            letter, fds, _, _ = socket.recv_fds(self.mailbox, 256, 4)
            if struct.unpack_from(">H", letter, 6)[0] == INTRODUCTION and len(fds) == 2:
                break
        self.server_slab = mmap.mmap(fds[0], RINGS_AT, prot=mmap.PROT_READ)
        self.server_wake = mmap.mmap(fds[1], WAKE_LEN)

    def say(self, slot, message, phase):
        """Puts a message into our CLC box, and shows it."""
        at = CLC_AT + slot * CLC_LEN
        self.slab[at : at + 8 + len(message)] = struct.pack("=Q", len(message)) + message
        self.turn(slot, phase)

    def turn(self, slot, phase):
        at = RECORDS_AT + slot * RECORD_LEN + PHASE
        self.slab[at : at + 4] = struct.pack("=I", GENERATION << 8 | phase)


class Connection:
    """A TCP connection to the server, and what it has said beside it."""

    def __init__(self, client, port, slot):
        self.client, self.slot, self.sent = client, slot, 0
        self.tcp = socket.create_connection(("127.0.0.1", port))
        self.tcp.settimeout(PATIENCE_S)
        ends = [self.tcp.getsockname(), self.tcp.getpeername()]
        name = "-".join(f"{ip}:{port}" for ip, port in ends)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as place:
            place.settimeout(PATIENCE_S)
            place.bind(b"\0sidestep/1/connection/" + name.encode())
            self.echo()
            hello = place.recv(256)
        if struct.unpack_from(">H", hello, 6)[0] != HELLO:
            sys.exit("no hello")
        self.server = hello[12:28]
        self.server_slot, self.generation = struct.unpack_from(">II", hello, 28)
        self.token = hello[36:52]
        client.introduce(self.server, self.echo)

    def echo(self):
        """Messages by TCP. Each makes the server look, too."""
        for _ in range(4):
            message = struct.pack(">I", self.sent) * 25
            self.sent += 1
            self.tcp.sendall(message)
            back = b""
            while len(back) < len(message):
                piece = self.tcp.recv(len(message) - len(back))
                if not piece:
                    sys.exit("the connection has ended")
                back += piece
            if back != message:
                sys.exit(f"sent {message!r}, got {back!r}")

    def propose(self, message):
        record = RECORDS_AT + self.slot * RECORD_LEN
        ring = (RINGS_AT, 65536, 65536)
        identity = struct.pack("=IQIIQQ", self.server_slot, *ring, *words(self.token))
        self.client.slab[record + PEER_SLOT : record + PEER_SLOT + len(identity)] = identity
        self.client.say(self.slot, message, PROPOSED)
        cell = CELLS_AT + self.server_slot * CELL_LEN
        key = words(self.client.instance)[0]
        self.client.server_wake[cell : cell + CELL_LEN] = struct.pack("=QQ", key, self.slot + 1)
        self.echo()

    def server_phase(self):
        at = RECORDS_AT + self.server_slot * RECORD_LEN + PHASE
        (word,) = struct.unpack_from("=I", self.client.server_slab, at)
        return word & 0xFF if word >> 8 == self.generation & 0xFFFFFF else 0

    def accept(self):
        """Proposes as one should; the server's Accept."""
        self.propose(proposal(self.client.instance))
        end = time.monotonic() + PATIENCE_S
        while self.server_phase() != ACCEPTED:
            if time.monotonic() > end:
                sys.exit(f"no Accept, but phase {self.server_phase()}")
            self.echo()
        at = CLC_AT + self.server_slot * CLC_LEN
        (length,) = struct.unpack_from("=Q", self.client.server_slab, at)
        return self.client.server_slab[at + 8 : at + 8 + length]

    def must_not_be_accepted(self):
        for _ in range(10):
            self.echo()
        if self.server_phase() == ACCEPTED:
            sys.exit("the server has accepted that")


# ---- the scenarios -------------------------------------------------------


def in_place_of_proposal(make):
    def play(connection):
        connection.propose(make(connection.client.instance))
        connection.must_not_be_accepted()

    return play


def in_place_of_confirm(make, phase):
    def play(connection):
        accept = connection.accept()
        connection.client.say(connection.slot, make(accept, connection.client.instance), phase)

    return play


def silent_after_accept(connection):
    connection.accept()


def wrong_length(instance):
    whole = bytearray(proposal(instance))
    struct.pack_into(">H", whole, 5, len(whole) + 4)
    return bytes(whole)


def wrong_eyecatcher(instance):
    return proposal(instance)[:-1] + b"\0"


SCENARIOS = {
    "C.1 Decline in place of the Proposal": in_place_of_proposal(lambda _: decline(CNFERR)),
    "C.1 Decline in place of the Confirm": in_place_of_confirm(
        lambda *_: decline(CNFERR), DECLINED
    ),
    "C.3 a Confirm of what was not accepted": in_place_of_confirm(
        lambda accept, instance: confirm_of(accept, instance, "OTHER"), CONFIRMED
    ),
    "C.4 out of sync in place of the Confirm": in_place_of_confirm(
        lambda *_: decline(SYNCERR, True), DECLINED
    ),
    "C.5 no Proposal": lambda connection: None,
    "C.5 no Confirm": silent_after_accept,
    "C.6 a Confirm in place of the Proposal": in_place_of_proposal(
        lambda instance: clc(3, 0x21, bytes(66))
    ),
    "C.6 application data in place of the Proposal": in_place_of_proposal(
        lambda _: b"GET / HTTP/1.1\r\n\r\n"
    ),
    "C.6 application data in place of the Confirm": in_place_of_confirm(
        lambda *_: b"GET / HTTP/1.1\r\n\r\n", CONFIRMED
    ),
    "C.6 a wrong length": in_place_of_proposal(wrong_length),
    "C.6 a wrong eyecatcher": in_place_of_proposal(wrong_eyecatcher),
}


def main():
    client = Client()
    for slot, (name, play) in enumerate(SCENARIOS.items()):
        connection = Connection(client, int(sys.argv[1]), slot)
        play(connection)
        for _ in range(30):
            connection.echo()
        connection.tcp.shutdown(socket.SHUT_WR)
        if connection.tcp.recv(1) != b"":
            sys.exit(f"{name}: bytes after the end")
        connection.tcp.close()
        print(name, flush=True)


main()
