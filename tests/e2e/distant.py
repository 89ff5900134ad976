"""An echo server and its client at addresses that are not loopback's.

    distant.py server ADDRESS PORT
    distant.py client ADDRESS PORT SEED [PORT OF THE CLIENT]
    distant.py proxy ADDRESS PORT ADDRESS-OF-THE-SERVER PORT-OF-THE-SERVER

For each line "CONNECTIONS MESSAGES" of its standard input the client makes so many more
connections, and exchanges so many messages on each that it has, in turns. With "give" it hands its
connections to a child, which obeys from then on; with "exec" it becomes another program that has
them. Either may name a library that the other program is to run with. With "reset" it waits until each of its connections is reset, and goes on without them. The
server ends a connection when the client does. A proxy passes on what comes on each connection by another one.
"""

import os
import socket
import subprocess
import sys
import threading

from common import Pattern
from connect_again import receive_exactly
from echo_threads import echo

MESSAGE_LEN = 300
CONNECTIONS_MAX = 100


def serve(address, port, answer=echo):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=256)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def pass_on(connection, to):
    with connection, socket.create_connection(to) as server:
        back = threading.Thread(target=copy, args=(server, connection), daemon=True)
        back.start()
        copy(connection, server)
        back.join()


def copy(source, sink):
    while data := source.recv(65_536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def talk(to, seed, source=None, connections=(), position=0):
    connections, pattern = list(connections), Pattern(seed)
    for line in sys.stdin:
        word, *library = line.split()
        if word == "give":
            return give(to, seed, connections, position, environment(*library))
        if word == "exec":
            for connection in connections:
                connection.set_inheritable(True)
            numbers = [str(connection.fileno()) for connection in connections]
            words = child("heir", to, seed, position, *numbers)
            os.execve(sys.executable, words, environment(*library))
        if word == "reset":
            for connection in connections:
                await_reset(connection)
            connections.clear()
            print("all were reset", flush=True)
            continue
        more, messages = map(int, line.split())
        for _ in range(more):
            connections.append(socket.create_connection(to, source_address=source))
        for _ in range(messages):
            for connection in connections:
                connection.sendall(pattern.at(position, MESSAGE_LEN))
                pattern.check(position, receive_exactly(connection, MESSAGE_LEN), "message")
                position += MESSAGE_LEN
        print(f"verified {position} bytes", flush=True)


def await_reset(connection):
    try:
        sys.exit(f"{connection.recv(1)!r} in place of a reset")
    except ConnectionResetError:
        connection.close()


def child(role, to, seed, position, *rest):
    return [sys.executable, __file__, role, to[0], str(to[1]), str(seed), str(position), *rest]


def environment(library=None):
    return os.environ | ({"LD_PRELOAD": library} if library else {})


def give(to, seed, connections, position, env):
    """Standard input is the child's, too; nothing of it was read ahead."""
    ours, theirs = socket.socketpair()
    words = child("taker", to, seed, position, str(theirs.fileno()))
    taker = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env)
    socket.send_fds(ours, [b"!"], [connection.fileno() for connection in connections])
    for connection in connections:
        connection.close()
    ours.close()
    theirs.close()
    sys.exit(taker.wait())


def take(number):
    with socket.socket(fileno=number) as giver:
        _, numbers, _, _ = socket.recv_fds(giver, 1, CONNECTIONS_MAX)
    return numbers


def main():
    role, address, port, *rest = sys.argv[1:]
    to = (address, int(port))
    if role == "server":
        serve(*to)
    elif role == "proxy":
        server = (rest[0], int(rest[1]))
        serve(*to, lambda connection: pass_on(connection, server))
    elif role == "client":
        seed, *source = map(int, rest)
        talk(to, seed, ("", *source) if source else None)
    else:
        seed, position, *numbers = map(int, rest)
        numbers = take(*numbers) if role == "taker" else numbers
        connections = [socket.socket(fileno=number) for number in numbers]
        print(f"verified as {role} of {len(connections)} connections", flush=True)
        talk(to, seed, None, connections, position)


if __name__ == "__main__":
    main()
