"""A client that is not Sidestep, meets a Sidestep server, and then breaks one rule.

    scripted_client.py PORT

The error scenarios of RFC 7609 Appendix C that a client can cause, one connection for each:
it binds the name of the connection, introduces itself with memory of its own, proposes, and
then says what the scenario wants, or nothing. The server echoes. Before, between and after,
every byte must come back by TCP. It prints a line for each scenario.
"""

import socket
import struct
import sys
import time

from scripted import (
    ACCEPTED, CELL_LEN, CELLS_AT, CNFERR, CONFIRMED, DECLINED, HELLO, LOOPBACK_CHID, PATIENCE_S,
    PROPOSED, SYNCERR, Process, clc, decline, halves, ueid,
)


# Between two messages that make the server look again.
LOOK_S = 0.05
# So long a server that has not given up needs at most to introduce itself.
ACQUAINTANCE_S = 4


def proposal(instance):
    base = bytes(30) + struct.pack(">H", 0)
    area = bytes(10) + struct.pack(">H", 28) + bytes(28)
    v2 = struct.pack(">BBxBxxH16xBBH12x", 1, 2, 0x10, 64, 0, 0, 1) + ueid("SIDESTEP")
    entries = b"".join(half + struct.pack(">H", LOOPBACK_CHID) for half in halves(instance))
    return clc(1, 0x26, base + area + v2 + bytes(48) + entries)


def confirm_of(accept, instance, eid):
    """What a client would confirm, but for the EID."""
    gid, gid_ext = halves(instance)
    whole = bytearray(accept)
    whole[4] = 3
    whole[8:16], whole[66:74], whole[34:66] = gid, gid_ext, ueid(eid)
    return bytes(whole)


# ---- one connection ------------------------------------------------------


class Connection:
    """A TCP connection to the server, and what it has said beside it."""

    def __init__(self, client, port, slot):
        self.client, self.slot, self.sent = client, slot, 0
        self.tcp = socket.create_connection(("127.0.0.1", port))
        self.tcp.settimeout(PATIENCE_S)
        ends = [self.tcp.getsockname(), self.tcp.getpeername()]
        name = "-".join(f"{ip}:{port}" for ip, port in ends)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as place:
            place.settimeout(LOOK_S)
            place.bind(b"\0sidestep/1/connection/" + name.encode())
            hello = self.until_heard(lambda: place.recv(256))
        if struct.unpack_from(">H", hello, 6)[0] != HELLO:
            sys.exit("no hello")
        self.server = hello[12:28]
        self.server_slot, self.generation = struct.unpack_from(">II", hello, 28)
        self.token = hello[36:52]

    @classmethod
    def make(cls, client, port, slot):
        """One on which the server has not given up. Whoever tells a server that there is no
        room for its memory ends every attempt that is under way, and anybody may."""
        end = time.monotonic() + PATIENCE_S
        while True:
            connection = cls(client, port, slot)
            try:
                connection.get_acquainted()
                return connection
            except TimeoutError:
                connection.tcp.close()
                if time.monotonic() > end:
                    raise

    def get_acquainted(self):
        if self.client.peer_slab is None:
            self.client.introduce(self.server)
            self.client.mailbox.settimeout(LOOK_S)
            self.until_heard(self.client.await_introduction, ACQUAINTANCE_S)

    def until_heard(self, listen, patience_s=PATIENCE_S):
        """What is heard after messages. A server whose mailbox is full says it later."""
        end = time.monotonic() + patience_s
        while True:
            self.echo()
            try:
                return listen()
            except TimeoutError:
                if time.monotonic() > end:
                    raise

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
        self.client.identify(self.slot, self.server_slot, self.token)
        self.client.say(self.slot, message, PROPOSED)
        cell = CELLS_AT + self.server_slot * CELL_LEN
        (key,) = struct.unpack(">Q", halves(self.client.instance)[0])
        self.client.peer_wake[cell : cell + CELL_LEN] = struct.pack("=QQ", key, self.slot + 1)
        self.echo()

    def server_phase(self):
        word = self.client.peer_phase(self.server_slot)
        return word & 0xFF if word >> 8 == self.generation & 0xFFFFFF else 0

    def accept(self):
        """Proposes as one should; the server's Accept."""
        self.propose(proposal(self.client.instance))
        end = time.monotonic() + PATIENCE_S
        while self.server_phase() != ACCEPTED:
            if time.monotonic() > end:
                sys.exit(f"no Accept, but phase {self.server_phase()}")
            self.echo()
        return self.client.peer_message(self.server_slot)

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
    client = Process()
    for slot, (name, play) in enumerate(SCENARIOS.items()):
        connection = Connection.make(client, int(sys.argv[1]), slot)
        play(connection)
        for _ in range(30):
            connection.echo()
        connection.tcp.shutdown(socket.SHUT_WR)
        if connection.tcp.recv(1) != b"":
            sys.exit(f"{name}: bytes after the end")
        connection.tcp.close()
        print(name, flush=True)


main()
