"""Zenoh sessions of our settings: opened, also at a port that was in use a moment ago, or at a free one."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import zenoh

from fedlap.errors import InputError

REOPEN_TIMEOUT = 10.0  # seconds in which the port must be free again
FREE_PORTS_TRIED = 10


def open_session(settings: dict[str, Any]) -> zenoh.Session:
    """Open a session; raise ZError if that fails."""
    return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))


def open_listener(
    describe: Callable[[int], dict[str, Any]], host: str, port: int
) -> tuple[zenoh.Session, int]:
    """Open a session that listens, and return it with its port; raise InputError if that fails.

    describe: returns the settings for a port.
    port: 0 for a free port, which another process may take in the meantime.
    """
    if port:
        return _open_at(describe(port), host, port, REOPEN_TIMEOUT), port
    for remaining in reversed(range(FREE_PORTS_TRIED)):
        port = _find_free_port(host)
        try:
            return _open_at(describe(port), host, port, 0.0), port
        except InputError:
            if not remaining:
                raise
    raise AssertionError("unreachable")


def _open_at(settings: dict[str, Any], host: str, port: int, timeout: float) -> zenoh.Session:
    """Open a session within `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        try:
            return open_session(settings)
        except zenoh.ZError as error:
            if time.monotonic() >= end:
                raise InputError(
                    f"cannot listen on {host}:{port}: the port is in use, the address is not one of this "
                    "machine, or the keys do not fit; choose another address"
                ) from error
            time.sleep(0.05)


def _find_free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise InputError(
            f"cannot listen on {host!r} ({error.strerror or error}); use an address of this machine"
        ) from error
