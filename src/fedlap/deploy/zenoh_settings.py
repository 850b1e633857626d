"""Settings of Zenoh sessions that server and clients share: keys of messages, addresses and limits.

Zenoh finds no other node by itself (no multicast, no gossip): a client dials the server's address and nothing
else. A name is hexadecimal in the key of its messages, since keys give a meaning to `/ * $ ? #`.
"""

from typing import Any

from fedlap.errors import InputError

PREFIX = "fedlap"
HELLO_KEY = f"{PREFIX}-hello"  # every client with a certificate of the authority may ask for it
LEASE = 10.0  # seconds of silence after which either side closes a link
MESSAGE_OVERHEAD = 1 << 16  # bytes that Zenoh adds to a message, at most
OPEN_TIMEOUT = 5.0  # seconds in which a connection must open
REFUSED = b"refused"
BUSY = b"too many requests of this client wait for an answer"


def encode_key(name: str) -> str:
    """Return the key of a client's messages."""
    return f"{PREFIX}/{name.encode().hex()}"


def decode_key(key: str) -> str | None:
    """Return the name in the key of a message, or None for any other key."""
    prefix, _, code = key.partition("/")
    try:
        name = bytes.fromhex(code).decode()
    except ValueError:
        return None
    return name if prefix == PREFIX and encode_key(name) == key else None


def split_address(address: str, least_port: int = 1) -> tuple[str, int]:
    """Return host and port of an address like "server.example.org:7447" or "[::1]:7447"."""
    host, _, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not host
        or not (port.isascii() and port.isdigit() and least_port <= int(port) <= 65535)
        or (":" in host and not is_bracketed)
        or any(mark in host for mark in "/?#; ")
    ):
        raise InputError(
            f"address {address!r}; expected HOST:PORT with a port of {least_port} to 65535; "
            "use e.g. server.example.org:7447 or [::1]:7447"
        )
    return (host[1:-1] if is_bracketed else host), int(port)


def format_endpoint(host: str, port: int, secure: bool) -> str:
    """Return the address as Zenoh writes it."""
    return f"{'tls' if secure else 'tcp'}/{f'[{host}]' if ':' in host else host}:{port}"


def describe_session(most_bytes: int, lease: float, open_timeout: float) -> dict[str, Any]:
    """Return the settings that server and clients share."""
    return {
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}, "delay": 0},
        "adminspace": {"enabled": False},
        "plugins_loading": {"enabled": False},
        "transport": {
            "shared_memory": {"enabled": False},
            "unicast": {
                "open_timeout": round(1000 * open_timeout),
                "accept_timeout": round(1000 * open_timeout),
            },
            "link": {
                "tx": {"lease": round(1000 * lease)},
                "rx": {"max_message_size": most_bytes + MESSAGE_OVERHEAD},
                "tls": {
                    "enable_mtls": True,
                    "close_link_on_expiration": True,
                    "verify_name_on_connect": True,
                },
            },
        },
    }
