"""An echo server that is not Sidestep, meets a Sidestep client, and then breaks one rule.

    scripted_server.py PORT

The error scenarios of RFC 7609 Appendix C that a server can cause, one for each connection
of one client: it leaves the marker of a listener, says hello, introduces itself, waits for
the Proposal, and then says what the scenario wants, or nothing. Then it looks what the
client has answered. It prints a line for each scenario, and ends after the last.
"""

import socket
import struct
import sys
import time

from scripted import (
    ACCEPTED, CELL_LEN, CELLS_AT, CNFERR, CONFIRMED, DECLINED, GENERATION, HELLO, LINK_ID,
    LOOPBACK_CHID, PATIENCE_S, PROPOSED, SYNCERR, Process, clc, decline, halves, ueid,
)

SO_COOKIE, SO_NETNS_COOKIE = 57, 71
SMC_D = bytes.fromhex("e2d4c3c4")
MODEUNSUPP, NOUEID = 0x03040000, 0x03030008
# Code of 64 KiB; all from 7 on are reserved.
SIZE_64K, SIZE_RESERVED = 2, 9
# Calls of the client in which it must have answered.
ECHOES = 4


def accept(instance, size=SIZE_64K, link_id=LINK_ID, eid="SIDESTEP", kind=2, chid=LOOPBACK_CHID):
    gid, gid_ext = halves(instance)
    body = gid + struct.pack(">QBBxxIH", 9, 0, size << 4, link_id, chid) + ueid(eid) + gid_ext
    return clc(kind, 0x21, body, SMC_D)


# What is said, with which phase; and the code of the Decline that the client must answer,
# if it must.
SCENARIOS = {
    "C.1 Decline in place of the Accept": (lambda _: decline(CNFERR), DECLINED, None),
    "C.1 an Accept with an EID that was not offered": (
        lambda instance: accept(instance, eid="OTHER"), ACCEPTED, NOUEID
    ),
    "C.4 an Accept of another link group": (
        lambda instance: accept(instance, link_id=LINK_ID + 1), ACCEPTED, SYNCERR
    ),
    "C.5 no Accept": (None, None, None),
    "C.6 a Confirm in place of the Accept": (
        lambda instance: accept(instance, kind=3), ACCEPTED, None
    ),
    "C.6 application data in place of the Accept": (lambda _: b"HTTP/1.1 200 OK\r\n", ACCEPTED, None),
    "C.6 an Accept that is cut off": (lambda instance: accept(instance)[:-9], ACCEPTED, None),
    "C.6 a reserved value": (
        lambda instance: accept(instance, size=SIZE_RESERVED), ACCEPTED, MODEUNSUPP
    ),
    "an Accept of another device": (
        lambda instance: accept(instance, chid=1), ACCEPTED, MODEUNSUPP
    ),
}


def cookie(of, name):
    return struct.unpack("=Q", of.getsockopt(socket.SOL_SOCKET, name, 8))[0]


class Connection:
    def __init__(self, server, tcp, slot):
        self.server, self.tcp, self.slot = server, tcp, slot
        self.token = struct.pack(">QQ", slot + 1, 77)
        tcp.settimeout(PATIENCE_S)

    def echo(self):
        """What there is, back; false at the end."""
        data = self.tcp.recv(65536)
        self.tcp.sendall(data)
        return bool(data)

    def say_hello(self):
        ends = [self.tcp.getpeername(), self.tcp.getsockname()]
        name = "-".join(f"{ip}:{port}" for ip, port in ends)
        netns = cookie(self.server.mailbox, SO_NETNS_COOKIE)
        body = struct.pack(">II", self.slot, GENERATION) + self.token
        body += struct.pack(">QQI", cookie(self.tcp, SO_COOKIE), netns, 65536)
        whole = b"SSTP" + struct.pack(">HHI", 1, HELLO, 72) + self.server.instance + body
        self.server.mailbox.sendto(whole, b"\0sidestep/1/connection/" + name.encode())

    def await_proposal(self):
        """The client's slot."""
        cell = CELLS_AT + self.slot * CELL_LEN
        end = time.monotonic() + PATIENCE_S
        while True:
            (slot,) = struct.unpack_from("=Q", self.server.wake, cell + 8)
            if slot and self.server.peer_phase(slot - 1) & 0xFF == PROPOSED:
                return slot - 1
            if time.monotonic() > end or not self.echo():
                sys.exit("no Proposal")

    def be_found(self):
        """A client that knows us binds its name when our first answer was no greeting."""
        end = time.monotonic() + PATIENCE_S
        while True:
            data = self.tcp.recv(65536)
            try:
                return self.say_hello()
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    sys.exit("no name")
            finally:
                self.tcp.sendall(data)

    def play(self, make, phase, expected):
        self.be_found()
        if self.server.peer_slab is None:
            self.server.introduce(self.server.await_introduction())
        client_slot = self.await_proposal()
        self.server.identify(self.slot, client_slot, self.token)
        if make:
            self.server.say(self.slot, make(self.server.instance), phase)
        for _ in range(ECHOES):
            self.echo()
        self.check(client_slot, expected)
        while self.echo():
            pass

    def check(self, client_slot, expected):
        phase = self.server.peer_phase(client_slot) & 0xFF
        if phase == CONFIRMED:
            sys.exit("the client has confirmed that")
        if expected is None:
            if phase == DECLINED:
                sys.exit("the client has declined, where it must not")
            return
        message = self.server.peer_message(client_slot)
        code = struct.unpack_from(">I", message, 16)[0] if len(message) == 44 else None
        out_of_sync = bool(message[7] & 0x08)
        if (phase, code, out_of_sync) != (DECLINED, expected, expected == SYNCERR):
            sys.exit(f"the client is in phase {phase} and has said {message.hex()}")


def main():
    port = int(sys.argv[1])
    server = Process()
    marker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    marker.bind(f"\0sidestep/1/listen/{port}/0".encode())
    listener = socket.create_server(("", port))
    for slot, (name, (make, phase, expected)) in enumerate(SCENARIOS.items()):
        tcp, _ = listener.accept()
        with tcp:
            Connection(server, tcp, slot).play(make, phase, expected)
        print(name, flush=True)


main()
