"""A client of an echo server whose gateway is killed.

    orphans.py ADDRESS PORT SEED

It has connections that sleep in recv, poll, select and epoll, by level and by edge, and one that talks all the
time. On the line "sleep" of its standard input it waits until each of them is told of its end, and says of each
"reset KIND TIME", by the monotonic clock in seconds. Anything else than ECONNRESET is an error: an orderly end
would be a lie. For "connect" it makes a connection and exchanges messages on it, again if the one before was reset
because it was given to the gateway in its last moment; it says "connected TIME", in seconds from the first attempt to the
first echo of the one that lives.
"""

import select
import socket
import sys
import threading
import time

from common import Pattern, receive_exactly

MESSAGES = 20
MESSAGE_LEN = 300

failed = threading.Event()


def await_nothing(connection):
    pass


def await_poll(connection):
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.poll()


def await_select(connection):
    select.select([connection], [], [])


def await_epoll(connection, flags=0):
    with select.epoll() as events:
        events.register(connection, select.EPOLLIN | flags)
        # The edge of the past is no news.
        while not events.poll():
            pass


def await_edge(connection):
    await_epoll(connection, select.EPOLLET)


WAITS = {
    "recv": await_nothing,
    "poll": await_poll,
    "select": await_select,
    "epoll": await_epoll,
    "edge": await_edge,
}


def be_told(kind, connection):
    WAITS[kind](connection)
    told(kind, lambda: connection.recv(1))


def talk_on(connection, pattern):
    position = MESSAGES * MESSAGE_LEN

    def talk():
        nonlocal position
        while True:
            connection.sendall(pattern.at(position, MESSAGE_LEN))
            data = connection.recv(MESSAGE_LEN)
            if not data:
                return data
            while len(data) < MESSAGE_LEN:
                piece = connection.recv(MESSAGE_LEN - len(data))
                if not piece:
                    return piece
                data += piece
            pattern.check(position, data, "talk")
            position += MESSAGE_LEN

    told("talk", talk)


def say(line):
    """Whole, whatever other threads say."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def told(kind, act):
    try:
        data = act()
        print(f"{kind}: {data!r} in place of a reset", file=sys.stderr, flush=True)
        failed.set()
    except ConnectionResetError:
        say(f"reset {kind} {time.monotonic()}")
    except BrokenPipeError:
        # The reset was told to a call before this one, and there is none.
        print(f"{kind}: EPIPE in place of a reset", file=sys.stderr, flush=True)
        failed.set()


def connect_at_last(to, pattern):
    begin = time.monotonic()
    while True:
        try:
            connection, first = connect(to, pattern)
            return connection, first - begin
        except ConnectionResetError:
            pass


def connect(to, pattern):
    connection = socket.create_connection(to)
    for message in range(MESSAGES):
        at = message * MESSAGE_LEN
        connection.sendall(pattern.at(at, MESSAGE_LEN))
        pattern.check(at, receive_exactly(connection, MESSAGE_LEN), "message")
        if message == 0:
            first = time.monotonic()
    return connection, first


def main():
    to, pattern = (sys.argv[1], int(sys.argv[2])), Pattern(int(sys.argv[3]))
    threads, later = [], []
    for line in sys.stdin:
        if line.strip() == "sleep":
            for kind in WAITS:
                sleeper, _ = connect(to, pattern)
                threads.append(threading.Thread(target=be_told, args=(kind, sleeper)))
            talker, _ = connect(to, pattern)
            threads.append(threading.Thread(target=talk_on, args=(talker, pattern)))
            for thread in threads:
                thread.start()
            print(f"asleep on {len(threads)}", flush=True)
        elif line.strip() == "told":
            for thread in threads:
                thread.join()
            threads.clear()
            if failed.is_set():
                sys.exit(1)
            print("all were told", flush=True)
        else:
            connection, first = connect_at_last(to, pattern)
            later.append(connection)
            say(f"connected {first}")


if __name__ == "__main__":
    main()
