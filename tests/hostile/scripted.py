"""What scripted_client.py and scripted_server.py share: memory and messages of a process that
meets Sidestep programs without being one.

Formats and offsets are those of crates/wire/src/host_control.rs and clc.rs, and of
crates/device/src/slab.rs and wake.rs.
"""

import array
import fcntl
import mmap
import os
import socket
import struct

SLAB_LEN, WAKE_LEN, RINGS_AT = 4 << 30, 6 << 20, 16 << 20
SLOTS, RECORD_LEN, CLC_LEN = 16384, 256, 512
RECORDS_AT = 4096
CLC_AT = RECORDS_AT + SLOTS * RECORD_LEN
CELLS_AT, CELL_LEN = 5 << 20, 16
F_ADD_SEALS, LENGTH_SEALS = 1033, 0x1 | 0x2 | 0x4
# Places in a record.
PHASE, PEER_SLOT = 192, 196
# Phases.
PROPOSED, ACCEPTED, CONFIRMED, DECLINED = 1, 2, 3, 4
GENERATION = 1
LINK_ID = 5
HELLO, INTRODUCTION = 1, 2
EYECATCHER = bytes.fromhex("e2d4c3d9")
LOOPBACK_CHID = 0xFFFF
CNFERR, SYNCERR = 0x03000000, 0x04000000
PATIENCE_S = 300


def memory_file(name, length):
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    fcntl.fcntl(fd, F_ADD_SEALS, LENGTH_SEALS)
    return fd


def ueid(name):
    return name.ljust(32).encode()


def clc(kind, flags, body, eyecatcher=EYECATCHER):
    whole = struct.pack(">4sBHB", eyecatcher, kind, 8 + len(body) + 4, flags)
    return whole + body + eyecatcher


def decline(diagnosis, out_of_sync=False):
    body = struct.pack(">8xIB3x16x", diagnosis, 0x20)
    return clc(4, 0x20 | (0x08 if out_of_sync else 0), body)


def halves(sixteen):
    return sixteen[:8], sixteen[8:]


class Process:
    """Our mailbox, and memory as a Sidestep process has it; and the memory of one peer."""

    def __init__(self):
        self.instance = os.urandom(16)
        self.slab_fd = memory_file("sidestep-slab", SLAB_LEN)
        os.pwrite(self.slab_fd, struct.pack("=QI", int.from_bytes(b"SIDESLAB", "big"), 8 << 16 | 2), 0)
        self.wake_fd = memory_file("sidestep-wake", WAKE_LEN)
        self.slab = mmap.mmap(self.slab_fd, RINGS_AT)
        self.wake = mmap.mmap(self.wake_fd, WAKE_LEN)
        self.mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.mailbox.bind(b"\0sidestep/1/process/" + self.instance.hex().encode())
        self.mailbox.settimeout(PATIENCE_S)
        self.peer_slab = self.peer_wake = None

    def introduce(self, peer):
        """Shows our memory to the process of this instance."""
        body = struct.pack(">BxxxIQI", 1, os.getpid(), SLAB_LEN, LINK_ID)
        whole = b"SSTP" + struct.pack(">HHI", 1, INTRODUCTION, 48) + self.instance + body
        rights = array.array("i", [self.slab_fd, self.wake_fd])
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        name = b"\0sidestep/1/process/" + peer.hex().encode()
        self.mailbox.sendmsg([whole], beside, 0, name)

    def await_introduction(self):
        """Maps what a peer shows; its instance."""
        while True:
            letter, fds, _, _ = socket.recv_fds(self.mailbox, 256, 4)
            if struct.unpack_from(">H", letter, 6)[0] == INTRODUCTION and len(fds) == 2:
                break
        self.peer_slab = mmap.mmap(fds[0], RINGS_AT, prot=mmap.PROT_READ)
        self.peer_wake = mmap.mmap(fds[1], WAKE_LEN)
        return letter[12:28]

    def peer_phase(self, slot):
        at = RECORDS_AT + slot * RECORD_LEN + PHASE
        return struct.unpack_from("=I", self.peer_slab, at)[0]

    def peer_message(self, slot):
        """What is in a CLC box of the peer."""
        at = CLC_AT + slot * CLC_LEN
        (length,) = struct.unpack_from("=Q", self.peer_slab, at)
        return self.peer_slab[at + 8 : at + 8 + length]

    def identify(self, slot, peer_slot, token):
        """What a record says of a connection beside its phase."""
        at = RECORDS_AT + slot * RECORD_LEN + PEER_SLOT
        words_of_token = struct.unpack(">QQ", token)
        place = struct.pack("=IQIIQQ", peer_slot, RINGS_AT, 65536, 65536, *words_of_token)
        self.slab[at : at + len(place)] = place

    def say(self, slot, message, phase):
        """Puts a message into our CLC box, and shows it."""
        at = CLC_AT + slot * CLC_LEN
        self.slab[at : at + 8 + len(message)] = struct.pack("=Q", len(message)) + message
        self.turn(slot, phase)

    def turn(self, slot, phase):
        at = RECORDS_AT + slot * RECORD_LEN + PHASE
        self.slab[at : at + 4] = struct.pack("=I", GENERATION << 8 | phase)
