"""An echo server on asyncio, and its client: one event loop a side.

    echo_asyncio.py server PORT
    echo_asyncio.py client PORT SEED
"""

import asyncio
import random
import sys

from common import Pattern, hold

CONNECTIONS = 20
# In as many pieces as it takes until the ends have agreed, on a busy machine, too.
BYTES_PER_CONNECTION = 3_000_000
CHUNK_LEN_MAX = 100_000

# No step of the test takes this long unless something hangs.
PATIENCE_S = 300


async def echo(reader, writer):
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


async def send_pattern(writer, pattern, seed):
    rng = random.Random(seed)
    position = 0
    while position < BYTES_PER_CONNECTION:
        # Even in the logarithm: small and large lengths alike.
        length = int(CHUNK_LEN_MAX ** rng.random())
        length = min(length, BYTES_PER_CONNECTION - position)
        writer.write(pattern.at(position, length))
        await writer.drain()
        position += length


async def receive_pattern(reader, pattern, seed):
    position = 0
    while position < BYTES_PER_CONNECTION:
        data = await reader.read(65_536)
        if not data:
            sys.exit(f"stream {seed} ended at byte {position}")
        pattern.check(position, data, f"stream {seed}")
        position += len(data)


async def exchange(connection, seed):
    reader, writer = connection
    pattern = Pattern(seed)
    await asyncio.gather(
        send_pattern(writer, pattern, seed), receive_pattern(reader, pattern, seed)
    )


async def half_close(connection):
    """After our end of file the server must send its own, and nothing else."""
    reader, writer = connection
    writer.write_eof()
    if await reader.read() != b"":
        sys.exit("data after the end")
    writer.close()
    await writer.wait_closed()


async def bounded(steps):
    await asyncio.wait_for(asyncio.gather(*steps), PATIENCE_S)


async def use(port, seed):
    connections = [
        await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)
    ]
    await bounded(exchange(it, seed + i) for i, it in enumerate(connections))
    # In a thread: the loop stays awake, as a program's would.
    await asyncio.to_thread(hold, CONNECTIONS * BYTES_PER_CONNECTION)
    await bounded(half_close(it) for it in connections)


if __name__ == "__main__":
    role, port, *rest = sys.argv[1:]
    if role == "server":
        asyncio.run(serve(int(port)))
    else:
        asyncio.run(use(int(port), int(rest[0])))
