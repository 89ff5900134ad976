"""Forges RoCEv2 packets to a gateway that is at work, as somebody could who sees those of its peer.

    forge.py INTERFACE SOURCE DESTINATION PACKETS SEED

What SOURCE sends to DESTINATION is looked at on INTERFACE, of the host that has SOURCE; then so many
forged packets go from SOURCE to DESTINATION. One in its right place in the sequence would be the peer's own for
everybody, so none is near: the queue pair at the other end has to see that each of them is wrong, and how.
"""

import random
import socket
import struct
import sys
import zlib
from collections import Counter, deque

PORT = 4791
IP_LEN, UDP_LEN, BTH_LEN, ICRC_LEN = 20, 8, 12, 4
PAYLOAD = IP_LEN + UDP_LEN + BTH_LEN
FRAME_MAX = 1600

# A write's first or only packet, behind whose header are address, key and length.
WRITES = (0x06, 0x0A, 0x0B)
# All of reliable connections: also those that SMC never uses, and answers.
OPCODES = range(0x18)

# Packet sequence numbers have 24 bits, half of which are behind. This far from the right one nothing
# that is on its way comes near.
FAR = range(1 << 20, 1 << 22)

TEMPLATES = 200
LOOKED_AT_S = 0.002


class Packet:
    """From the IP header to the ICRC; offsets are from the beginning of the IP header."""

    def __init__(self, data):
        self.data = bytearray(data)

    def opcode(self):
        return self.data[IP_LEN + UDP_LEN]

    def set_opcode(self, opcode):
        self.data[IP_LEN + UDP_LEN] = opcode

    def queue_pair(self):
        at = IP_LEN + UDP_LEN + 5
        return int.from_bytes(self.data[at : at + 3], "big")

    def set_queue_pair(self, number):
        at = IP_LEN + UDP_LEN + 5
        self.data[at : at + 3] = number.to_bytes(3, "big")

    def shift_number(self, by):
        at = IP_LEN + UDP_LEN + 9
        number = int.from_bytes(self.data[at : at + 3], "big") + by
        self.data[at : at + 3] = (number % (1 << 24)).to_bytes(3, "big")

    def set_body(self, body):
        self.data[PAYLOAD:-ICRC_LEN] = body

    def body(self):
        return bytes(self.data[PAYLOAD:-ICRC_LEN])

    def seal(self):
        """Lengths and the ICRC, of which the fields are left out that routers change."""
        struct.pack_into("!H", self.data, 2, len(self.data))
        struct.pack_into("!HH", self.data, IP_LEN + 4, len(self.data) - IP_LEN, 0)
        masked = bytearray(self.data[:-ICRC_LEN])
        for at in (1, 8, 10, 11, IP_LEN + 6, IP_LEN + 7, IP_LEN + UDP_LEN + 4):
            masked[at] = 0xFF
        icrc = zlib.crc32(b"\xff" * 8 + bytes(masked))
        self.data[-ICRC_LEN:] = struct.pack("<I", icrc)
        return bytes(self.data)


def far(rng):
    return rng.choice((1, -1)) * rng.choice(FAR)


def damaged(packet, rng):
    """What the ICRC is there for."""
    at = rng.randrange(IP_LEN + UDP_LEN, len(packet.data))
    packet.data[at] ^= 1 << rng.randrange(8)
    return bytes(packet.data)


def again(packet, _):
    """An old one."""
    return bytes(packet.data)


def misnumbered(packet, rng):
    packet.shift_number(far(rng))
    return packet.seal()


def misdirected(packet, rng):
    packet.set_queue_pair(rng.randrange(1 << 24))
    packet.shift_number(far(rng))
    return packet.seal()


def keyed(packet, rng):
    """A write with an address, a key and a length of its own."""
    packet.set_opcode(rng.choice(WRITES))
    packet.shift_number(far(rng))
    target = struct.pack("!QII", rng.getrandbits(64), rng.getrandbits(32), rng.getrandbits(31))
    packet.set_body(target + rng.randbytes(rng.randrange(0, 1000, 4)))
    return packet.seal()


def cut(packet, rng):
    packet.shift_number(far(rng))
    body = packet.body()
    packet.set_body(body[: rng.randrange(len(body) + 1)])
    return packet.seal()


def other(packet, rng):
    """Of another kind: requests that nobody makes, answers to nothing."""
    packet.set_opcode(rng.choice(OPCODES))
    packet.shift_number(far(rng))
    return packet.seal()


def noise(packet, rng):
    packet.data[IP_LEN + UDP_LEN :] = rng.randbytes(rng.randrange(1, 1000))
    struct.pack_into("!H", packet.data, 2, len(packet.data))
    struct.pack_into("!HH", packet.data, IP_LEN + 4, len(packet.data) - IP_LEN, 0)
    return bytes(packet.data)


KINDS = (damaged, again, misnumbered, misdirected, keyed, cut, other, noise)


def is_template(frame, ends):
    """One RoCEv2 packet, with a body, of the right way."""
    ip = frame[14:]
    if frame[12:14] != b"\x08\x00" or len(ip) < PAYLOAD + ICRC_LEN or len(frame) > FRAME_MAX:
        return False
    to_port = int.from_bytes(ip[IP_LEN + 2 : IP_LEN + 4], "big")
    return ip[0] == 0x45 and ip[9] == socket.IPPROTO_UDP and ip[12:20] == ends and to_port == PORT


def main():
    interface, source, destination, packets, seed = sys.argv[1:]
    rng = random.Random(int(seed))
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    # ETH_P_ALL: what leaves is seen, too.
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sniffer.bind((interface, 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    templates, sent = deque(maxlen=TEMPLATES), Counter()
    while sum(sent.values()) < int(packets):
        sniffer.settimeout(LOOKED_AT_S if templates else None)
        try:
            frame = sniffer.recv(1 << 16)
        except TimeoutError:
            frame = b""
        if is_template(frame, ends):
            templates.append(frame[14:])
        if not templates:
            continue
        kind = rng.choice(KINDS)
        packet = Packet(rng.choice(templates))
        # The kernel would choose another identification than the ICRC counts with.
        if kind is not again:
            struct.pack_into("!H", packet.data, 4, rng.randrange(1, 1 << 16))
        sender.sendto(kind(packet, rng), (destination, 0))
        sent[kind.__name__] += 1
    print("forged", ", ".join(f"{count} {name}" for name, count in sorted(sent.items())))


if __name__ == "__main__":
    main()
