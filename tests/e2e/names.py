"""Who is at the other end, as programs see it that did not make the connection.

    names.py server ADDRESS PORT MESSAGES    answers so many messages, and gives the connection away:
                                             by exec, and beside a message (SCM_RIGHTS)
    names.py client ADDRESS PORT MESSAGES    says them, and its own address
    names.py told HOW FD                     says what the kernel says of a descriptor that it was given
    names.py taken HOW FD                    the same of one that comes over this socket

A line is: how it was given, the own address, the peer's. What it says is for the driver to compare.
"""

import socket
import subprocess
import sys

from common import receive_exactly

MESSAGE = b"0123456789" * 30


def tell(how, connection):
    own, peer = connection.getsockname(), connection.getpeername()
    print(how, f"{own[0]}:{own[1]}", f"{peer[0]}:{peer[1]}", flush=True)


def begin(what, how, given):
    given.set_inheritable(True)
    words = [sys.executable, __file__, what, how, str(given.fileno())]
    return subprocess.Popen(words, close_fds=False)


def serve(address, port, messages):
    listener = socket.create_server((address, port))
    connection, _ = listener.accept()
    for _ in range(messages):
        connection.sendall(receive_exactly(connection, len(MESSAGE)))
    tell("own", connection)
    ours, theirs = socket.socketpair()
    taker = begin("taken", "rights", theirs)
    socket.send_fds(ours, [b"x"], [connection.fileno()])
    taker.wait()
    begin("told", "exec", connection).wait()
    # It is still ours: the client hears so.
    connection.sendall(b"end")
    connection.close()


def ask(address, port, messages):
    connection = socket.create_connection((address, port))
    for _ in range(messages):
        connection.sendall(MESSAGE)
        if receive_exactly(connection, len(MESSAGE)) != MESSAGE:
            sys.exit("a byte is wrong")
    tell("client", connection)
    if receive_exactly(connection, 3) != b"end":
        sys.exit("a byte is wrong")


def take(how, fd):
    _, fds, _, _ = socket.recv_fds(socket.socket(fileno=fd), 1, 1)
    tell(how, socket.socket(fileno=fds[0]))


match sys.argv[1:]:
    case ["server", address, port, messages]:
        serve(address, int(port), int(messages))
    case ["client", address, port, messages]:
        ask(address, int(port), int(messages))
    case ["told", how, fd]:
        tell(how, socket.socket(fileno=int(fd)))
    case ["taken", how, fd]:
        take(how, int(fd))
    case _:
        sys.exit(__doc__)
