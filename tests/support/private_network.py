"""A network namespace with the loopback interface alone, and what its system counts of other packets."""

import subprocess
from functools import cache
from pathlib import Path

from process_sockets import LISTENING

BRING_UP = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# As root, or as anybody.
NAMESPACES = (["unshare", "--net", *BRING_UP], ["unshare", "--user", "--map-root-user", "--net", *BRING_UP])
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@cache
def find_network_command():
    """Return the command that runs another one in a new network namespace, or None, and why there is none."""
    problems = []
    for words in NAMESPACES:
        try:
            done = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=30)
        except OSError as error:
            return None, f"no private network here: {error}"
        if not done.returncode:
            return words, ""
        problems.append(done.stderr.strip())
    return None, f"no private network here: {'; '.join(problems)}"


def count_unroutable(pid):
    """Return how many packets to hosts beyond loopback processes in the namespace of `pid` tried to send.

    In a namespace without another interface, every attempt is counted and fails, with TCP and UDP, also to
    multicast groups.
    """
    folder = Path("/proc") / str(pid) / "net"
    names, values = (
        line.split() for line in (folder / "snmp").read_text().splitlines() if line.startswith("Ip:")
    )
    found = int(values[names.index("OutNoRoutes")])
    path = folder / "snmp6"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return found + sum(int(value) for name, value in lines if name == "Ip6OutNoRoutes")


def is_on_loopback(found):
    """Return whether a socket, as `process_sockets.list_sockets` finds it, is TCP within this machine."""
    protocol, local, remote, state = found
    is_within = state == LISTENING or (local[0] in LOOPBACK and remote[0] in LOOPBACK)
    return protocol in ("tcp", "tcp6") and is_within


# Dials outside by TCP, and sends to a multicast group, as programs do that look for others.
DIAL_OUTSIDE = """
import socket
for kind, host in ((socket.SOCK_STREAM, "192.0.2.1"), (socket.SOCK_DGRAM, "224.0.0.224")):
    try:
        with socket.socket(socket.AF_INET, kind) as outside:
            outside.connect((host, 7446))
    except OSError:
        print("failed")
"""
