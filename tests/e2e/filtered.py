"""A client of redis whose connections a filter is about to deny, or not.

    filtered.py PORT DENIED_ADDRESS PERMITTED_ADDRESS

From each address it has connections of every kind of waiting: one that talks all the time, and one each that
sleeps in recv, in poll and in epoll. It says "ready" when all of them have carried commands. Whenever one ends it
says how and when ("ended ADDRESS KIND ERROR TIME", in seconds since 1970). One more from the denied address carries
nothing before the line "try" comes. The line "alive" has it talk over further permitted ones. It ends with its
standard input.
"""

import errno
import os
import select
import socket
import sys
import threading
import time

from redis_client import encode

PING = encode((b"PING",))
PONG = b"+PONG\r\n"
TURNS = 50


def connect(address):
    connection = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ping(connection):
    connection.sendall(PING)
    answer = b""
    while len(answer) < len(PONG):
        part = connection.recv(len(PONG) - len(answer))
        if not part:
            raise EOFError
        answer += part
    if answer != PONG:
        sys.exit(f"redis answers {answer}")


def talk(connection):
    while not permitted_is_over.is_set():
        ping(connection)


def sleep_in_recv(connection):
    if not connection.recv(1):
        raise EOFError


def sleep_in_poll(connection):
    connection.setblocking(False)
    events = select.poll()
    events.register(connection, select.POLLIN)
    events.poll()
    sleep_in_recv(connection)


def sleep_in_epoll(connection):
    connection.setblocking(False)
    events = select.epoll()
    events.register(connection, select.EPOLLIN | select.EPOLLET)
    events.poll()
    sleep_in_recv(connection)


KINDS = {"talk": talk, "recv": sleep_in_recv, "poll": sleep_in_poll, "epoll": sleep_in_epoll}


def live(address, kind, connection):
    """Says how the connection ends; a permitted one is to be there until the program ends."""
    try:
        KINDS[kind](connection)
        how = "nothing"
    except EOFError:
        how = "end"
    except OSError as error:
        how = errno.errorcode[error.errno]
    if not permitted_is_over.is_set():
        # In one piece: other threads say the same.
        os.write(1, f"ended {address} {kind} {how} {time.time():.6f}\n".encode())


port, denied, permitted = int(sys.argv[1]), sys.argv[2], sys.argv[3]
permitted_is_over = threading.Event()
for address in (denied, permitted):
    for kind in KINDS:
        connection = connect(address)
        for _ in range(TURNS):
            ping(connection)
        threading.Thread(target=live, args=(address, kind, connection), daemon=True).start()
# One that sleeps is woken by the answer to a command: those that are to be alive later do not sleep.
spare = [connect(permitted) for _ in range(3)]
for connection in spare:
    for _ in range(TURNS):
        ping(connection)
young = connect(denied)
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "try":
        young.sendall(PING)
        print("tried", flush=True)
    if line.strip() == "alive":
        for connection in spare:
            ping(connection)
        print(f"alive {len(spare)}", flush=True)
permitted_is_over.set()
