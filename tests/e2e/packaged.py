#!/usr/bin/python3
"""A server and a client in one program each, for packages that are changed beneath them.

packaged.py serve PORT            answers what it is sent, until its client ends
packaged.py talk PORT FILE STOP   counts answers into FILE, until there is a file STOP
"""

import os
import socket
import sys
import time


def serve(port):
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)


def talk(port, counted, stop):
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    number = 0
    while not os.path.exists(stop):
        message = b"%08d" % number * 16
        connection.sendall(message)
        answer = b""
        while len(answer) < len(message):
            piece = connection.recv(len(message) - len(answer))
            if not piece:
                sys.exit(f"the server has ended at message {number}")
            answer += piece
        if answer != message:
            sys.exit(f"message {number} came back as {answer!r}")
        number += 1
        if number % 100 == 0:
            with open(counted + ".new", "w") as file:
                file.write(f"{number}\n")
            os.rename(counted + ".new", counted)
            time.sleep(0.01)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    talk(int(sys.argv[2]), sys.argv[3], sys.argv[4])
