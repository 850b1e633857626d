"""X.509 certificates of an authority, a server, clients and peers: keys, requests, signatures and facts.

A client's certificate has the common name "<name>:<issue>", where the issue counts its certificates, and
serves clients alone. The server's certificate names its hosts, and serves alone. A peer's certificate has a
name and hosts, and does both: peers dial one another. Keys are elliptic (P-256).
"""

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlap.errors import InputError

MOST_NAME_BYTES = 54  # X.509 allows 64 bytes in a common name, and the issue takes up to ten
WARNING_TIME = timedelta(days=30)  # warnings begin this long before a certificate expires
ALLOWED_SKEW = timedelta(minutes=5)  # a certificate is valid this long before its issue: clocks differ
SERVER_NAME = "server"
HOST_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")

PURPOSES = {  # roles, and the uses of a key that their certificates allow
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "server": [ExtendedKeyUsageOID.SERVER_AUTH],
    "peer": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
}

PrivateKey = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class CertificateFacts:
    """Facts of a certificate: name and issue of a client or peer, hosts of a server or peer, and validity.

    role: "authority", "server", "client" or "peer".
    issue: number of the certificate among those of its name, from 1; 0 for an authority.
    """

    role: str
    name: str
    issue: int
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    serial: str
    fingerprint: str

    @property
    def common_name(self) -> str:
        """The common name, which access rules refer to."""
        return format_common_name(self.name, self.issue)

    def describe_invalidity(self, now: datetime | None = None) -> str | None:
        """Return why the certificate is not valid now, or None if it is."""
        return describe_invalidity(self.not_before, self.not_after, now or datetime.now(UTC))

    def describe_expiry(self, now: datetime | None = None) -> str | None:
        """Return when the certificate expires, or has expired, if that is less than 30 days ahead."""
        return describe_expiry(self.not_before, self.not_after, now or datetime.now(UTC))


def describe_invalidity(start: datetime, end: datetime, now: datetime) -> str | None:
    """Return why a certificate with this validity is not valid now, or None if it is."""
    if now > end:
        return f"expired at {format_time(end)}"
    if now < start:
        return f"is not valid before {format_time(start)}"
    return None


def describe_expiry(start: datetime, end: datetime, now: datetime) -> str | None:
    """Return when a certificate expires, or has expired, if that is less than 30 days ahead."""
    if end - now >= WARNING_TIME:
        return None
    return describe_invalidity(start, end, now) or f"expires in {describe_time_left(end - now)}"


def describe_time_left(left: timedelta) -> str:
    """Return a positive duration in days, hours or seconds."""
    for unit, seconds in (("day", 86400), ("hour", 3600), ("second", 1)):
        if (count := int(left.total_seconds()) // seconds) >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "a second"


def format_time(time: datetime) -> str:
    """Return a time in UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_common_name(name: str, issue: int) -> str:
    """Return the common name of a certificate."""
    return f"{name}:{issue}"


def find_role(name: str, hosts: Sequence[str]) -> str:
    """Return the role of a certificate for this name and these hosts."""
    if not hosts:
        return "client"
    return "server" if name == SERVER_NAME else "peer"


def check_client_name(name: str) -> str:
    """Return the name; raise InputError if a certificate cannot carry it."""
    if (
        not name
        or not name.isprintable()  # a lone surrogate, which has no bytes, is not printable
        or name != name.strip()
        or len(name.encode()) > MOST_NAME_BYTES
    ):
        raise InputError(
            f"name = {name!r}; expected 1 to {MOST_NAME_BYTES} bytes of printable characters "
            "without spaces at the ends; choose another name",
            field="name",
        )
    return name


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise InputError if a host is neither a DNS name nor an IP address."""
    for host in hosts:
        _parse_host(host)


def create_private_key() -> PrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def encode_private_key(key: PrivateKey) -> bytes:
    """Return a private key in PEM, unencrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def decode_private_key(content: bytes) -> PrivateKey:
    """Return the private key in PEM content; raise ValueError for any other content."""
    key = serialization.load_pem_private_key(content, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is not a P-256 key")
    return key


def encode_certificate(certificate: x509.Certificate) -> bytes:
    """Return a certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def decode_certificates(content: bytes) -> list[x509.Certificate]:
    """Return the certificates in PEM content; raise ValueError if there is none."""
    return x509.load_pem_x509_certificates(content)


def fingerprint_public_key(request: x509.CertificateSigningRequest) -> str:
    """Return the SHA-256 of the public key in a request, in hexadecimal digits."""
    content = request.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(content).hexdigest()


def has_public_key(certificate: x509.Certificate | x509.CertificateSigningRequest, key: PrivateKey) -> bool:
    """Return whether a certificate or a request belongs to a private key."""
    return certificate.public_key() == key.public_key()


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def create_authority_certificate(
    key: PrivateKey, name: str, lifetime: timedelta, start: datetime | None = None
) -> x509.Certificate:
    """Return the certificate of a new authority; random digits in its name tell two authorities apart."""
    subject = _name_subject(f"{name} {secrets.token_hex(4)}")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _begin_certificate(subject, subject, key.public_key(), lifetime, start)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return builder.sign(key, hashes.SHA256())


def create_request(key: PrivateKey, name: str, hosts: Sequence[str] = ()) -> bytes:
    """Return a request for a certificate in PEM; `find_role` tells of which role."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name_subject(name))
    if hosts:
        builder = builder.add_extension(_name_hosts(hosts), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def decode_request(content: bytes) -> tuple[x509.CertificateSigningRequest, str, tuple[str, ...]]:
    """Return a request with its name and its hosts; raise ValueError unless its key has signed it."""
    request = x509.load_pem_x509_csr(content)
    if not request.is_signature_valid:
        raise ValueError("its signature is wrong")
    if not isinstance(request.public_key(), ec.EllipticCurvePublicKey):
        raise ValueError("its key is not a P-256 key")
    return request, _read_common_name(request.subject), _read_hosts(request.extensions)


def sign_request(
    request: x509.CertificateSigningRequest,
    issue: int,
    authority: x509.Certificate,
    authority_key: PrivateKey,
    lifetime: timedelta,
    start: datetime | None = None,
) -> x509.Certificate:
    """Return a certificate for a request. Only its name, hosts and public key are taken from it."""
    name, hosts = _read_common_name(request.subject), _read_hosts(request.extensions)
    public_key = request.public_key()
    assert isinstance(public_key, ec.EllipticCurvePublicKey)
    purposes = PURPOSES[find_role(name, hosts)]
    subject = _name_subject(format_common_name(name, issue))
    builder = (
        _begin_certificate(subject, authority.subject, public_key, lifetime, start)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )
    if hosts:
        builder = builder.add_extension(_name_hosts(hosts), critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def read_facts(certificate: x509.Certificate) -> CertificateFacts:
    """Return the facts of a certificate; raise ValueError if it is none of fedlap's."""
    name, role, issue = _read_common_name(certificate.subject), "authority", 0
    hosts = _read_hosts(certificate.extensions)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    if not constraints.ca:
        name, _, number = name.rpartition(":")
        if not name or not number.isdigit():
            raise ValueError("its common name is not NAME:ISSUE")
        role, issue = _read_role(certificate.extensions), int(number)
    return CertificateFacts(
        role=role,
        name=name,
        issue=issue,
        hosts=hosts,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        serial=f"{certificate.serial_number:x}",
        fingerprint=hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest(),
    )


def _begin_certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    lifetime: timedelta,
    start: datetime | None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start or now - ALLOWED_SKEW)
        .not_valid_after((start or now) + lifetime)
    )


def _name_subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name_hosts(hosts: Collection[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_parse_host(host) for host in hosts])


def _parse_host(host: str) -> x509.GeneralName:
    """Return a host as an IP address or as a DNS name; raise InputError for anything else."""
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    with suppress(ValueError):
        encoded = host.encode("idna").decode()
        if HOST_NAME.fullmatch(encoded):
            return x509.DNSName(encoded)
    raise InputError(
        f"host = {host!r}; expected a DNS name or an IP address; use e.g. server.example.org", field="host"
    )


def _read_common_name(subject: x509.Name) -> str:
    found = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1 or len(list(subject)) != 1:
        raise ValueError("its subject is not one common name")
    return str(found[0].value)


def _read_role(extensions: x509.Extensions) -> str:
    """Return the role that the uses of a key allow; raise ValueError for uses of no role."""
    usage = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    for role, purposes in PURPOSES.items():
        if usage == set(purposes):
            return role
    raise ValueError("its key is neither a client's nor a server's nor a peer's")


def _read_hosts(extensions: x509.Extensions) -> tuple[str, ...]:
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)
