"""A redis client by hand: writes RESP, reads RESP, compares every byte.

    redis_client.py PORT SEED
"""

import random
import socket
import sys
import threading

from common import hold

CLIENTS = 4
VALUES_PER_CLIENT = 60
VALUE_LEN_MAX = 1_000_000
PIPELINE_DEPTH = 200
PIPELINE_VALUE_LEN_MAX = 4_000

# No answer takes this long unless something hangs.
PATIENCE_S = 300


class Redis:
    """One connection."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(PATIENCE_S)
        self._reader = self._socket.makefile("rb")

    def send(self, *words):
        """Sends one command."""
        self._socket.sendall(encode(words))

    def send_all(self, commands):
        """Sends a pipeline in one piece."""
        self._socket.sendall(b"".join(encode(words) for words in commands))

    def answer(self):
        """Reads one answer: bytes, an int, a list of answers, or None."""
        line = self._reader.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        sys.exit(f"redis said {line!r}")

    def _bulk(self, length):
        if length < 0:
            return None
        value = self._reader.read(length)
        if self._reader.read(2) != b"\r\n":
            sys.exit("a value without its end")
        return value

    def ask(self, *words):
        """A command and its answer."""
        self.send(*words)
        return self.answer()

    def must(self, expected, *words):
        """A command whose answer is known."""
        if (got := self.ask(*words)) != expected:
            sys.exit(f"{words[0]}: {differ(got, expected)}")


def encode(words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


def differ(got, expected):
    """Where two values differ, without printing a megabyte."""
    if not isinstance(got, bytes) or len(got) != len(expected):
        return f"expected {len(expected)} bytes, got {str(got)[:80]}"
    return f"byte {next(i for i in range(len(got)) if got[i] != expected[i])} is wrong"


def random_value(rng, len_max):
    """Even in the logarithm: short and long values alike."""
    return rng.randbytes(int(len_max ** rng.random()))


def one_by_one(redis, rng, name):
    """SET, GET and back, value by value; returns the bytes compared."""
    values = {}
    for i in range(VALUES_PER_CLIENT):
        key = f"{name}:{i % (VALUES_PER_CLIENT // 2)}"
        values[key] = random_value(rng, VALUE_LEN_MAX)
        redis.must(b"OK", "SET", key, values[key])
        redis.must(values[key], "GET", key)
    for length in (1, VALUE_LEN_MAX):
        key = f"{name}:len{length}"
        values[key] = rng.randbytes(length)
        redis.must(b"OK", "SET", key, values[key])
    if redis.ask("MGET", *values) != list(values.values()):
        sys.exit("MGET gave other values")
    return 2 * sum(map(len, values.values()))


def pipelined(redis, rng, name):
    """Many commands before the first answer is read."""
    values = {
        f"{name}:p{i}": random_value(rng, PIPELINE_VALUE_LEN_MAX)
        for i in range(PIPELINE_DEPTH)
    }
    redis.send_all(("SET", key, value) for key, value in values.items())
    redis.send_all(("GET", key) for key in values)
    for key in values:
        if redis.answer() != b"OK":
            sys.exit(f"SET {key} in a pipeline failed")
    for key, value in values.items():
        if (got := redis.answer()) != value:
            sys.exit(f"GET {key} in a pipeline: {differ(got, value)}")
    return sum(map(len, values.values()))


def exercise(redis, seed, results):
    rng = random.Random(seed)
    name = f"key{seed}"
    try:
        results[seed] = one_by_one(redis, rng, name) + pipelined(redis, rng, name)
    except SystemExit as wrong:
        results[seed] = str(wrong.code)
    except OSError as error:
        results[seed] = str(error)


def main(port, seed):
    clients = [Redis(port) for _ in range(CLIENTS)]
    results = {}
    threads = [
        threading.Thread(target=exercise, args=(redis, seed + i, results), daemon=True)
        for i, redis in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    wrong = [it for it in results.values() if isinstance(it, str)]
    if wrong or len(results) < CLIENTS:
        sys.exit("; ".join(wrong) or "a client did not finish")
    hold(sum(results.values()))
    for redis in clients:
        redis.must(b"PONG", "PING")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
