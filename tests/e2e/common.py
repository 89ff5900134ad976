"""What the Python programs of the end-to-end tests share.

The agreement with the driver: a client verifies all it received, says
`verified N bytes`, keeps its connections open so that somebody can look at
them, and ends when its standard input does. A wrong byte is an error exit.
"""

import random
import sys

# A prime, so that data which slipped by any power of two, such as the size
# of a ring, never looks right again.
PERIOD = 1_000_003


class Pattern:
    """An endless stream of bytes in which every position knows its value."""

    def __init__(self, seed):
        block = random.Random(seed).randbytes(PERIOD)
        self._block = block + block

    def at(self, position, length):
        """The bytes from `position` on; at most PERIOD of them."""
        start = position % PERIOD
        return self._block[start : start + length]

    def check(self, position, data, what):
        """Ends the program when `data` is not what stands at `position`."""
        if data != self.at(position, len(data)):
            good = self.at(position, len(data))
            first = next(i for i in range(len(data)) if data[i] != good[i])
            sys.exit(f"{what}: byte {position + first} is wrong")


def hold(verified_len):
    """Reports success and keeps everything open until the driver hangs up."""
    print(f"verified {verified_len} bytes", flush=True)
    sys.stdin.read()


def receive_exactly(connection, length):
    """So many bytes; the end of the connection before them ends the program."""
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            sys.exit(f"connection ended {length - len(data)} bytes early")
        data += piece
    return bytes(data)
