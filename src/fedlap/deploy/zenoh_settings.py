"""Settings of Zenoh sessions of servers, clients and peers: keys of messages, addresses, limits, rules.

Zenoh finds no other node by itself (no multicast, no gossip): a client dials the server's address and nothing
else, and a peer those of its neighbours. A name is hexadecimal in the key of its messages, since keys give a
meaning to `/ * $ ? #`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedlap.deploy.keys import Keys
from fedlap.errors import InputError

PREFIX = "fedlap"
HELLO_KEY = f"{PREFIX}-hello"  # every client with a certificate of the authority may ask for it
LEASE = 10.0  # seconds of silence after which either side closes a link
MESSAGE_OVERHEAD = 1 << 16  # bytes that Zenoh adds to a message, at most
OPEN_TIMEOUT = 5.0  # seconds in which a connection must open
REFUSED = b"refused"
BUSY = b"too many requests of this name wait for an answer"


class Permission(NamedTuple):
    """A kind of message that may cross a link: "ingress" or "egress", its kind and its key."""

    flow: str
    message: str
    key: str


@dataclass(frozen=True)
class Grant:
    """Permissions of the holders of certificates.

    owner: identifies the grant.
    common_names: of the certificates; None for every certificate of the authority.
    """

    owner: str
    common_names: Sequence[str] | None
    permissions: Sequence[Permission]


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


def split_dialled_address(address: str, secure: bool) -> tuple[str, int]:
    """Return host and port of an address to dial; Zenoh cannot verify an IPv6 address in a certificate."""
    host, port = split_address(address)
    if secure and ":" in host:
        raise InputError(
            f"address {address!r}; expected a host name or an IPv4 address, as TLS connections need; "
            "use a host name"
        )
    return host, port


def format_endpoint(host: str, port: int, secure: bool) -> str:
    """Return the address as Zenoh writes it."""
    return f"{'tls' if secure else 'tcp'}/{f'[{host}]' if ':' in host else host}:{port}"


def describe_session(
    most_bytes: int,
    lease: float,
    open_timeout: float,
    keys: Keys | None,
    *,
    listens: bool = False,
    dials: bool = False,
) -> dict[str, Any]:
    """Return the settings that all sessions share."""
    tls: dict[str, Any] = {
        "enable_mtls": True,
        "close_link_on_expiration": True,
        "verify_name_on_connect": True,
    }
    if keys is not None:
        tls["root_ca_certificate"] = str(keys.authority.absolute())
        for side, is_used in (("listen", listens), ("connect", dials)):
            if is_used:
                tls[f"{side}_private_key"] = str(keys.key.absolute())
                tls[f"{side}_certificate"] = str(keys.certificate.absolute())
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
                "tls": tls,
            },
        },
    }


def permit_questions(key: str) -> list[Permission]:
    """Return the permissions to ask this session with a key, and to get its answers."""
    return [Permission("ingress", "query", key), Permission("egress", "reply", key)]


def permit_answers(key: str) -> list[Permission]:
    """Return the permissions to be asked by this session with a key, and to answer it."""
    return [Permission("egress", "query", key), Permission("ingress", "reply", key)]


def describe_access(grants: Iterable[Grant]) -> dict[str, Any]:
    """Return Zenoh's access control: what no grant allows is denied."""
    rules: list[dict[str, Any]] = []
    subjects: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    for grant in grants:
        if grant.common_names is not None and not grant.common_names:
            continue  # for Zenoh, a subject without common names is everybody
        names = [f"{grant.owner}-{number}" for number in range(len(grant.permissions))]
        rules += [
            {
                "id": name,
                "permission": "allow",
                "flows": [permission.flow],
                "messages": [permission.message],
                "key_exprs": [permission.key],
            }
            for name, permission in zip(names, grant.permissions, strict=True)
        ]
        subject = {} if grant.common_names is None else {"cert_common_names": list(grant.common_names)}
        subjects.append({"id": grant.owner, **subject})
        policies.append({"rules": names, "subjects": [grant.owner]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }
