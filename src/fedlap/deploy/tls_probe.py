"""A TLS handshake with a server or a neighbour, which names the cause of a failed connection.

Zenoh reports no cause. This handshake sends no message: after it, the client ends its half of the connection
and reads what the server has left to say, since a server refuses a certificate only after the handshake of
TLS 1.3.
"""

import socket
import ssl
from contextlib import suppress

from cryptography import x509

from fedlap.deploy.certificates import CertificateFacts, read_facts
from fedlap.deploy.keys import Keys, load_certificate_facts
from fedlap.deploy.transport import ExitCode, PermanentError, UnreachableError
from fedlap.errors import InputError

PROBE_TIMEOUT = 5.0  # seconds

# Codes of OpenSSL's verification of the server's certificate.
EXPIRED_CODES = {9, 10}  # not valid yet, expired
HOST_CODES = {62, 64}  # another host name, another IP address
PURPOSE_CODES = {26}  # a client's certificate
# Alerts by which the server refuses the client's certificate.
EXPIRED_ALERTS = ("CERTIFICATE_EXPIRED",)
AUTHORITY_ALERTS = (
    "UNKNOWN_CA",
    "DECRYPT_ERROR",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_REQUIRED",
)


def probe_server(
    host: str, port: int, keys: Keys | None, timeout: float = PROBE_TIMEOUT, whom: str = "server"
) -> CertificateFacts | None:
    """Return the facts of the server's certificate if a TLS connection works; raise the cause if it does not.

    UnreachableError: nothing answers at this address, or it does not answer now.
    PermanentError: a certificate is expired, from another authority or for another host.
    keys: None to test only whether the port accepts connections; then there is no certificate.
    whom: who listens there, in words.
    """
    address = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise UnreachableError(f"{address} is not reachable ({_describe_os_error(error)})") from error
    with connection:
        return None if keys is None else _shake_hands(connection, host, f"{whom} {address}", keys)


def speaks_tls(host: str, port: int, timeout: float = PROBE_TIMEOUT) -> bool:
    """Return whether a port answers a TLS handshake, whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:  # among them those of TLS
        return False


def check_validity(facts: CertificateFacts) -> None:
    """Raise PermanentError if the certificate of this client or peer is not valid now."""
    if reason := facts.describe_invalidity():
        raise PermanentError(
            f"the certificate {facts.common_name} of this {facts.role} {reason}; "
            "renew it with `fedlap keys request`, or correct the clock",
            ExitCode.EXPIRED,
        )


def _shake_hands(connection: socket.socket, host: str, whom: str, keys: Keys) -> CertificateFacts:
    """Return the facts of the certificate of the other side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        facts = load_certificate_facts(keys.certificate)
        check_validity(facts)
        context.load_verify_locations(cafile=keys.authority)
        context.load_cert_chain(keys.certificate, keys.key)
    except (OSError, ssl.SSLError, InputError) as error:  # such as a certificate that is not signed yet
        raise UnreachableError(f"the keys in {str(keys.folder)!r} cannot be used now ({error})") from error
    try:
        connection.getpeername()  # Python leaks the socket if it wraps one that is closed already
        with context.wrap_socket(connection, server_hostname=host) as secure:
            certificate = secure.getpeercert(binary_form=True)
            with suppress(OSError):  # the server may have closed the connection: reading tells why
                socket.socket.shutdown(secure, socket.SHUT_WR)
            secure.recv(1)
    except ssl.SSLCertVerificationError as error:
        raise _explain_verification(error, host, whom) from error
    except ssl.SSLError as error:
        raise _explain_alert(error, whom, facts) from error
    except OSError as error:
        raise UnreachableError(
            f"the {whom} broke the TLS handshake off ({_describe_os_error(error)})"
        ) from error
    assert certificate is not None
    try:
        return read_facts(x509.load_der_x509_certificate(certificate))
    except (ValueError, x509.ExtensionNotFound) as error:
        raise UnreachableError(f"the certificate of the {whom} is not one of fedlap ({error})") from error


def _explain_verification(error: ssl.SSLCertVerificationError, host: str, whom: str) -> PermanentError:
    reason = error.verify_message
    if error.verify_code in EXPIRED_CODES:
        text = f"the certificate of the {whom} is not valid now ({reason}); renew it there, "
        return PermanentError(f"{text}or correct the clock", ExitCode.EXPIRED)
    if error.verify_code in HOST_CODES:
        text = f"the certificate of the {whom} is not for the host {host!r} ({reason}); "
        return PermanentError(f"{text}use a host that it names", ExitCode.WRONG_NAME)
    if error.verify_code in PURPOSE_CODES:
        text = f"the certificate of the {whom} is a client's ({reason}); "
        return PermanentError(f"{text}request one with `fedlap keys request --host`", ExitCode.WRONG_NAME)
    text = f"the certificate of the {whom} is from another authority ({reason}); "
    return PermanentError(f"{text}use certificates of one authority", ExitCode.OTHER_AUTHORITY)


def _explain_alert(error: ssl.SSLError, whom: str, facts: CertificateFacts) -> Exception:
    reason = error.reason or str(error)
    certificate = f"the certificate {facts.common_name} of this {facts.role}"
    if any(alert in reason for alert in EXPIRED_ALERTS):
        text = f"the {whom} says that {certificate} is not valid now; "
        return PermanentError(f"{text}compare the clocks of both machines", ExitCode.EXPIRED)
    if any(alert in reason for alert in AUTHORITY_ALERTS):
        text = f"the {whom} does not accept the authority of {certificate} ({reason}); "
        return PermanentError(f"{text}use certificates of one authority", ExitCode.OTHER_AUTHORITY)
    if "UNSUPPORTED_CERTIFICATE" in reason:
        text = f"the certificate {facts.common_name} is not a client's; "
        return PermanentError(f"{text}request one with `fedlap keys request --name`", ExitCode.REFUSED)
    return UnreachableError(f"the {whom} does not speak TLS as one of fedlap does ({reason})")


def _describe_os_error(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error)
