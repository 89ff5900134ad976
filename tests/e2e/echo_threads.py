"""An echo server with a blocking thread per connection, and its client.

    echo_threads.py server PORT
    echo_threads.py client PORT SEED
"""

import random
import socket
import sys
import threading

from common import Pattern, hold, receive_exactly

CONNECTIONS = 8
BYTES_PER_CONNECTION = 3_000_000
PINGS = 300

# From a byte to as much as the largest ring holds.
CHUNK_LEN_MAX = 1_000_000

# No step of the test takes this long unless something hangs.
PATIENCE_S = 300


def serve(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection):
    with connection:
        while data := connection.recv(65_536):
            connection.sendall(data)


def random_len(rng):
    """Small and large lengths alike: even in the logarithm."""
    return int(CHUNK_LEN_MAX ** rng.random())


def send_pattern(connection, pattern, seed):
    rng = random.Random(seed)
    position = 0
    while position < BYTES_PER_CONNECTION:
        length = min(random_len(rng), BYTES_PER_CONNECTION - position)
        connection.sendall(pattern.at(position, length))
        position += length


def receive_pattern(connection, pattern, seed):
    rng = random.Random(-1 - seed)
    position = 0
    while position < BYTES_PER_CONNECTION:
        data = connection.recv(random_len(rng))
        if not data:
            sys.exit(f"connection ended at byte {position}")
        pattern.check(position, data, f"stream {seed}")
        position += len(data)


def pings(connection, pattern):
    """Short messages, each waiting for the one before: returns their bytes."""
    position = 0
    for i in range(PINGS):
        length = 1 + i % 200
        connection.sendall(pattern.at(position, length))
        pattern.check(position, receive_exactly(connection, length), "ping")
        position += length
    return position


class Worker(threading.Thread):
    """A thread whose failure is the program's."""

    def __init__(self, body, *args):
        super().__init__(daemon=True)
        self._body, self._args = body, args
        self.failure = "did not finish"
        self.start()

    def run(self):
        try:
            self._body(*self._args)
            self.failure = None
        except SystemExit as wrong:
            self.failure = wrong.code
        except OSError as error:
            self.failure = str(error)

    def finish(self):
        self.join(PATIENCE_S)
        if self.failure is not None:
            sys.exit(self.failure)


def exchange(connections, seed):
    """Streams both ways on all connections at once."""
    workers = []
    for index, connection in enumerate(connections):
        own_seed = seed + index
        pattern = Pattern(own_seed)
        for body in (send_pattern, receive_pattern):
            workers.append(Worker(body, connection, pattern, own_seed))
    for worker in workers:
        worker.finish()
    return len(connections) * BYTES_PER_CONNECTION


def half_close(connection):
    """After our end of file the server must send its own, and nothing else."""
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(PATIENCE_S)
    if connection.recv(1) != b"":
        sys.exit("data after the end")
    connection.close()


def use(port, seed):
    connections = [
        socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)
    ]
    verified = pings(connections[0], Pattern(seed))
    verified += exchange(connections, seed)
    hold(verified)
    for connection in connections:
        half_close(connection)


if __name__ == "__main__":
    role, port, *rest = sys.argv[1:]
    if role == "server":
        serve(int(port))
    else:
        use(int(port), int(rest[0]))
