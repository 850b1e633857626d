"""Ports of this machine for processes that are killed and started again."""

import os
import socket
import sys
from collections import deque

MOST = 128  # ports that are reserved at a time: those of a test, and of the tests shortly before it
_reserved = deque()


def find_ports(count):
    """Return ports that no other process is given, also while nobody listens at them.

    A socket that is bound but does not listen reserves its port. Linux lets another process listen there if
    both sockets have SO_REUSEADDR, as Zenoh's have. Elsewhere another process may take a port.
    """
    found = []
    for _ in range(count):
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", 0))
            found.append(free.getsockname()[1])
            _reserved.append(free.detach())
    is_shared = sys.platform == "linux"
    while len(_reserved) > (MOST if is_shared else 0):
        os.close(_reserved.popleft())
    return found
