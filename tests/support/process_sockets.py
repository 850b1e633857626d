"""Sockets of a process, read from /proc."""

import os
import socket
from pathlib import Path

ESTABLISHED, LISTENING = "01", "0A"


def list_sockets(pid=None):
    """Return the internet sockets of a process: protocol, local and remote port, state; sorted."""
    process = Path("/proc") / str(pid or os.getpid())
    inodes = set()
    for link in (process / "fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for protocol in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in (process / "net" / protocol).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                local, remote = (_decode_address(field) for field in fields[1:3])
                found.append((protocol, local, remote, fields[3]))
    return sorted(found)


def _decode_address(field):
    """Return host and port of an address in /proc/net, IPv4 or IPv6."""
    host, _, port = field.partition(":")
    words = bytes.fromhex(host)
    ordered = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    return socket.inet_ntop(socket.AF_INET if len(ordered) == 4 else socket.AF_INET6, ordered), int(port, 16)
