"""A program that keeps the lock of a socket which it hands over to the gateway.

    hold_lock.py ADDRESS

It listens at ADDRESS, connects there, and lets a thread send bytes of a page that does not come (userfaultfd): the
kernel holds the socket's lock meanwhile. Then it does by hand what the library does with a connection, says "held", and
lets go when its standard input ends. It must not run under Sidestep.
"""

import array
import ctypes
import fcntl
import mmap
import os
import platform
import socket
import struct
import sys
import threading

# `linux/userfaultfd.h`
SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}[platform.machine()]
UFFD_API = 0xAA
UFFDIO_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
MODE_MISSING = 1
PAGE = 4096

# `sidestep_wire::hand_over`
NAME = "\0sidestep/1/gateway"
VERSION, HAND_OVER, LEN = 1, 2, 20
CLIENT, RMBE = 1, 65536


def hold(connection):
    """Returns what ends it when it is closed."""
    libc = ctypes.CDLL(None, use_errno=True)
    faults = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if faults < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(faults, UFFDIO_API, bytearray(struct.pack("=QQQ", UFFD_API, 0, 0)))
    memory = mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(faults, UFFDIO_REGISTER, bytearray(struct.pack("=QQQQ", page, PAGE, MODE_MISSING, 0)))
    send = threading.Thread(target=libc.send, args=(connection.fileno(), ctypes.c_void_p(page), PAGE, 0))
    send.start()
    # The page is asked for, so the lock is taken.
    os.read(faults, 32)
    return faults


def hand_over(connection):
    """Returns what has to stay open: the line to the gateway, and H."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(NAME)
    (port,) = struct.unpack_from(">H", line.recv(64), 12)
    h = socket.create_connection(("127.0.0.1", port))
    own_port = h.getsockname()[1]
    message = struct.pack(">4sHHIBxHI", b"SSGW", VERSION, HAND_OVER, LEN, CLIENT, own_port, RMBE)
    rights = array.array("i", [connection.fileno()])
    line.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    return line, h


def main():
    listener = socket.create_server((sys.argv[1], 0))
    connection = socket.create_connection(listener.getsockname())
    faults = hold(connection)
    kept = hand_over(connection)
    print("held", flush=True)
    sys.stdin.read()
    os.close(faults)
    for socket_ in kept:
        socket_.close()
    print("let go", flush=True)


main()
