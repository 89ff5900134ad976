"""Datagrams of UDP that come back, up to the largest that fits the way to the server.

    datagrams.py serve ADDRESS PORT
    datagrams.py ask ADDRESS PORT FITS

The asking side sends datagrams as large as its own link carries, which are too large for the rest of the way, until the kernel has been
told what fits. That has to be FITS bytes, headers and all; a datagram of so many then comes back.
"""

import socket
import sys
import time

IP_MTU = 14
HEADERS_LEN = 20 + 8
PATIENCE_S = 20

what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def serve():
    datagrams.bind((address, port))
    while True:
        data, sender = datagrams.recvfrom(65_536)
        datagrams.sendto(data, sender)


def ask(fits):
    datagrams.connect((address, port))
    datagrams.settimeout(0.2)
    whole = datagrams.getsockopt(socket.IPPROTO_IP, IP_MTU)
    deadline = time.monotonic() + PATIENCE_S
    while datagrams.getsockopt(socket.IPPROTO_IP, IP_MTU) == whole:
        if time.monotonic() > deadline:
            sys.exit("nothing has said that a datagram does not fit")
        exchange(whole)
    told = datagrams.getsockopt(socket.IPPROTO_IP, IP_MTU)
    if told != fits:
        sys.exit(f"{told} bytes are said to fit, not {fits}")
    while not exchange(fits):
        if time.monotonic() > deadline:
            sys.exit(f"a datagram of {fits} bytes does not come back")


def exchange(length):
    """Whether a datagram of so many bytes, headers and all, comes back."""
    data = bytes(length - HEADERS_LEN)
    try:
        datagrams.send(data)
        return datagrams.recv(65_536) == data
    except OSError:
        # It is lost, or what fits was told meanwhile.
        return False


if what == "serve":
    serve()
else:
    ask(int(sys.argv[4]))
