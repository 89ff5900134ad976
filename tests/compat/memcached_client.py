"""A memcached client by hand: stores values, reads them back, compares.

    memcached_client.py PORT SEED

Each thread has a connection and keys of its own, so that a value which came
by another's connection is a wrong one.
"""

import random
import socket
import sys
import threading

CLIENTS = 16
ROUNDS = 100
VALUE_LEN_MAX = 500_000

# Keys asked for at once in the end.
GET_MANY = 20

# No answer takes this long unless something hangs.
PATIENCE_S = 300


class Memcached:
    """One connection, text protocol."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(PATIENCE_S)
        self._reader = self._socket.makefile("rb")

    def store(self, key, value):
        """Stores one value."""
        self._socket.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        if (line := self._reader.readline()) != b"STORED\r\n":
            raise ValueError(f"set: {line!r}")

    def get(self, keys):
        """The values of these keys, by key."""
        self._socket.sendall(b"get %s\r\n" % b" ".join(keys))
        values = {}
        while (line := self._reader.readline()) != b"END\r\n":
            word, key, _, length = line.split()
            if word != b"VALUE":
                raise ValueError(f"get: {line!r}")
            values[key] = self._reader.read(int(length))
            self._reader.read(2)
        return values


def use(port, seed, verified):
    rng = random.Random(seed)
    memcached = Memcached(port)
    stored = {}
    for number in range(ROUNDS):
        key = b"key-%d-%d" % (seed, number % GET_MANY)
        # Even in the logarithm: short and long values alike.
        stored[key] = rng.randbytes(int(VALUE_LEN_MAX ** rng.random()))
        memcached.store(key, stored[key])
        if memcached.get([key]) != {key: stored[key]}:
            raise ValueError(f"{key!r} came back wrong")
        verified.append(len(stored[key]))
    if memcached.get(list(stored)) != stored:
        raise ValueError("many keys came back wrong")
    verified.append(sum(map(len, stored.values())))


def main(port, seed):
    verified, failures = [], []

    def run(number):
        try:
            use(port, seed + number, verified)
        except (OSError, ValueError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"memcached: {failures[0]}")
    print(f"{sum(verified)} bytes read back by {CLIENTS} clients")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
