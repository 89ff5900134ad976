"""Stores large values in redis and reads them back, and compares every byte.

    large_values.py ADDRESS PORT SEED

It does so once, says "compared", and does it again over the same connection and over a new one when its standard input has ended.
"""

import random
import socket
import sys

LENGTHS = [1, 1400, 1453, 65_536, 6_000_000]
# No answer takes this long unless something hangs.
PATIENCE_S = 60


def connect():
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=PATIENCE_S)
    return connection, connection.makefile("rb")


def compare(connection, reader):
    """Each value goes there and comes back."""
    for length in LENGTHS:
        value = generator.randbytes(length)
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$%d\r\n%s\r\n" % (length, value))
        expect(reader.readline(), b"+OK\r\n")
        connection.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n")
        expect(reader.readline(), b"$%d\r\n" % length)
        if reader.read(length) != value:
            sys.exit(f"a value of {length} bytes came back as another one")
        expect(reader.read(2), b"\r\n")


def expect(line, due):
    if line != due:
        sys.exit(f"redis said {line!r}, not {due!r}")


generator = random.Random(int(sys.argv[3]))
first = connect()
compare(*first)
print("compared", flush=True)
sys.stdin.read()
compare(*first)
compare(*connect())
