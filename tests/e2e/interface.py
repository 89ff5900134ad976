"""What `ethtool` does, for machines that have none: SIOCETHTOOL of linux/ethtool.h.

    interface.py NAME gro on|off        the interface receives by GRO, so on veth by NAPI
    interface.py NAME tx on|off         senders leave checksums to it
    interface.py NAME count COUNTER     the sum of its counters whose names end so
"""

import array
import fcntl
import socket
import struct
import sys

SIOCETHTOOL = 0x8946
SET_GRO = 0x2C
SET_TX = 0x17
GET_STRING_SETS = 0x37
GET_STRINGS = 0x1B
GET_COUNTERS = 0x1D
COUNTERS = 1
NAME_LEN = 32


def ask(question):
    answer = array.array("B", question)
    address, _ = answer.buffer_info()
    request = struct.pack("16sQ16x", sys.argv[1].encode(), address)
    fcntl.ioctl(opened, SIOCETHTOOL, request)
    return answer.tobytes()


def count(name):
    sets = ask(struct.pack("=IIQI4x", GET_STRING_SETS, 0, 1 << COUNTERS, 0))
    (number,) = struct.unpack_from("=I", sets, 16)
    names = ask(struct.pack("=III", GET_STRINGS, COUNTERS, number) + bytes(NAME_LEN * number))
    values = ask(struct.pack("=II", GET_COUNTERS, number) + bytes(8 * number))
    total = 0
    for place in range(number):
        its_name = names[12 + NAME_LEN * place :][:NAME_LEN].split(b"\0")[0].decode()
        if its_name.endswith(name):
            total += struct.unpack_from("=Q", values, 8 + 8 * place)[0]
    return total


opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
what, word = sys.argv[2:]
if what == "count":
    print(count(word))
else:
    ask(struct.pack("=II", {"gro": SET_GRO, "tx": SET_TX}[what], word == "on"))
