"""Begins connections one after the other, which are refused: knock.py FROM ADDRESS PORT COUNT"""

import socket
import sys

source, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for _ in range(count):
    with socket.socket() as connection:
        connection.bind((source, 0))
        connection.settimeout(20)
        try:
            connection.connect((address, port))
            sys.exit("a server listens there")
        except ConnectionRefusedError:
            pass
