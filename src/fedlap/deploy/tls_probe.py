"""A TLS handshake with the server, which names the cause of a failed connection.

Zenoh reports no cause. This handshake sends no message: after it, the client ends its half of the connection
and reads what the server has left to say, since a server refuses a certificate only after the handshake of
TLS 1.3.
"""

import socket
import ssl
from contextlib import suppress

from fedlap.deploy.keys import ClientKeys, load_certificate_facts
from fedlap.deploy.transport import ExitCode, PermanentError, UnreachableError

PROBE_TIMEOUT = 5.0  # seconds

# Codes of OpenSSL's verification of the server's certificate.
EXPIRED_CODES = {9, 10}  # not valid yet, expired
HOST_CODES = {62, 64}  # another host name, another IP address
# Alerts by which the server refuses the client's certificate.
EXPIRED_ALERTS = ("CERTIFICATE_EXPIRED",)
AUTHORITY_ALERTS = (
    "UNKNOWN_CA",
    "DECRYPT_ERROR",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_REQUIRED",
)


def probe_server(host: str, port: int, keys: ClientKeys | None, timeout: float = PROBE_TIMEOUT) -> None:
    """Return if a TLS connection to the server works; raise the cause if it does not.

    UnreachableError: nothing answers at this address, or it does not answer now.
    PermanentError: a certificate is expired, from another authority or for another host.
    keys: None to test only whether the port accepts connections.
    """
    address = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise UnreachableError(f"{address} is not reachable ({_describe_os_error(error)})") from error
    with connection:
        if keys is not None:
            _shake_hands(connection, host, address, keys)


def _shake_hands(connection: socket.socket, host: str, address: str, keys: ClientKeys) -> None:
    facts = load_certificate_facts(keys.certificate)
    if reason := facts.describe_invalidity():
        raise PermanentError(
            f"the certificate {facts.common_name} of this client {reason}; "
            "renew it with `fedlap keys request`, or correct the clock",
            ExitCode.EXPIRED,
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=keys.authority)
        context.load_cert_chain(keys.certificate, keys.key)
    except (OSError, ssl.SSLError) as error:
        raise UnreachableError(f"the keys in {str(keys.folder)!r} cannot be used now ({error})") from error
    try:
        connection.getpeername()  # Python leaks the socket if it wraps one that is closed already
        with context.wrap_socket(connection, server_hostname=host) as secure:
            with suppress(OSError):  # the server may have closed the connection: reading tells why
                socket.socket.shutdown(secure, socket.SHUT_WR)
            secure.recv(1)
    except ssl.SSLCertVerificationError as error:
        raise _explain_verification(error, host, address) from error
    except ssl.SSLError as error:
        raise _explain_alert(error, address, facts.common_name) from error
    except OSError as error:
        raise UnreachableError(
            f"{address} broke the TLS handshake off ({_describe_os_error(error)})"
        ) from error


def _explain_verification(error: ssl.SSLCertVerificationError, host: str, address: str) -> PermanentError:
    reason = error.verify_message
    if error.verify_code in EXPIRED_CODES:
        text = (
            f"the certificate of the server {address} is not valid now ({reason}); renew it at the server, "
        )
        return PermanentError(f"{text}or correct the clock", ExitCode.EXPIRED)
    if error.verify_code in HOST_CODES:
        text = f"the certificate of the server {address} is not for the host {host!r} ({reason}); "
        return PermanentError(f"{text}use a host that it names", ExitCode.WRONG_NAME)
    text = f"the certificate of the server {address} is from another authority ({reason}); "
    return PermanentError(f"{text}use certificates of one authority", ExitCode.OTHER_AUTHORITY)


def _explain_alert(error: ssl.SSLError, address: str, common_name: str) -> Exception:
    reason = error.reason or str(error)
    if any(alert in reason for alert in EXPIRED_ALERTS):
        text = (
            f"the server {address} says that the certificate {common_name} of this client is not valid now; "
        )
        return PermanentError(f"{text}compare the clocks of both machines", ExitCode.EXPIRED)
    if any(alert in reason for alert in AUTHORITY_ALERTS):
        text = f"the server {address} does not accept the authority of the certificate {common_name} "
        return PermanentError(
            f"{text}of this client ({reason}); use certificates of one authority", ExitCode.OTHER_AUTHORITY
        )
    if "UNSUPPORTED_CERTIFICATE" in reason:
        text = (
            f"the certificate {common_name} is not a client's; request one with `fedlap keys request --name`"
        )
        return PermanentError(text, ExitCode.REFUSED)
    return UnreachableError(f"{address} does not speak TLS as a server of fedlap does ({reason})")


def _describe_os_error(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error)
