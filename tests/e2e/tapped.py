"""A client of an echo server whose bytes an onlooker is to find again.

    tapped.py PORT SEED FILE

It talks until its connection has moved, and says so. For each line on its standard input it sends and
gets back as many bytes as that says, in messages with pauses, and says "went on" with how many each
direction has had in all. It closes when its standard input ends; FILE has what it has sent.
"""

import socket
import sys
import time

from common import Pattern, receive_exactly

# Untracked connections move after 16 messages or 64 KiB.
FIRST_MESSAGES = 40
MESSAGE_LEN = 1000
PAUSE_S = 0.0005


def talk(connection, pattern, position, length):
    connection.sendall(pattern.at(position, length))
    pattern.check(position, receive_exactly(connection, length), "echo")
    return position + length


def main():
    port, pattern = int(sys.argv[1]), Pattern(int(sys.argv[2]))
    connection = socket.create_connection(("127.0.0.1", port))
    position = 0
    for _ in range(FIRST_MESSAGES):
        position = talk(connection, pattern, position, 100)
    print(f"talking, {position} bytes so far", flush=True)
    for line in sys.stdin:
        goal = position + int(line)
        while position < goal:
            position = talk(connection, pattern, position, min(MESSAGE_LEN, goal - position))
            time.sleep(PAUSE_S)
        print(f"went on to {position}", flush=True)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    connection.close()
    with open(sys.argv[3], "wb") as file:
        file.write(pattern.at(0, position))
    print(f"verified {position} bytes", flush=True)


if __name__ == "__main__":
    main()
