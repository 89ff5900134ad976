"""Binds the names of mailboxes whose processes have ended, as another user.

    squatters.py --pid VICTIM --uid UID

Every mailbox there is but the victim's is tried again and again, until its process has ended and the
name is free. For each line of input it prints how many it holds; it ends with its input.
"""

import argparse
import os
import socket
import sys
import threading
import time

from datagrams import mailbox_of, names


class Squatter(threading.Thread):
    def __init__(self, spared):
        super().__init__(daemon=True)
        self._spared, self._wanted, self.held = set(spared), set(), []

    def run(self):
        while True:
            found = {name for name in names()[0] if b"/process/" in name}
            self._wanted |= found - self._spared
            for name in list(self._wanted):
                self._bind(name)
            time.sleep(0.001)

    def _bind(self, name):
        box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            box.bind(name)
        except OSError:
            box.close()
            return
        self.held.append(box)
        self._wanted.discard(name)
        self._spared.add(name)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pid", type=int, required=True)
    arguments.add_argument("--uid", type=int, required=True)
    told = arguments.parse_args()
    spared = mailbox_of(told.pid)
    os.setuid(told.uid)
    squatter = Squatter(spared)
    squatter.start()
    for _ in sys.stdin:
        print(f"holds {len(squatter.held)}", flush=True)


main()
