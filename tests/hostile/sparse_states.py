"""A program whose states claim to be full, and of which next to no page exists.

    sidestep run -- sparse_states.py STATES

It connects to itself, so that the library makes its state; makes copies of that one's first page, all
of whose slots and young connections are said to be used; prints `ready`, and waits for its end of input.
What the first page has is in crates/device/src/state.rs.
"""

import fcntl
import os
import socket
import struct
import sys

NAME = "sidestep-state"
PAGE = 4096
SLOTS_USED_AT = 32
MANY = 1 << 30
F_ADD_SEALS, SEAL_SEAL, SEAL_SHRINK, SEAL_GROW = 1033, 1, 2, 4


def state():
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + fd).startswith("/memfd:" + NAME):
                return int(fd)
        except OSError:
            pass
    sys.exit("there is no state")


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    client.sendall(b"x")
    server.recv(1)
    original = state()
    page = bytearray(os.pread(original, PAGE, 0))
    # The page, slots used, young connections used.
    struct.pack_into("II", page, SLOTS_USED_AT, MANY, MANY)
    copies = []
    for _ in range(int(sys.argv[1])):
        copy = os.memfd_create(NAME, os.MFD_ALLOW_SEALING)
        os.ftruncate(copy, os.fstat(original).st_size)
        os.pwrite(copy, page, 0)
        fcntl.fcntl(copy, F_ADD_SEALS, SEAL_SEAL | SEAL_SHRINK | SEAL_GROW)
        copies.append(copy)
    print("ready", flush=True)
    sys.stdin.read()
    # KiB of them that exist, after somebody has looked.
    print(sum(os.fstat(copy).st_blocks for copy in copies) // 2)


main()
