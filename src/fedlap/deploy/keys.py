"""Folders of keys: an authority's, a server's, a client's, a peer's. A private key never leaves its folder.

    authority/     key.pem  certificate.pem  register.json  issued/client-north-1.pem …
    server/        key.pem  certificate.pem  authority.pem  register.json
    client-north/  key.pem  certificate.pem  authority.pem  request.pem
    peer-n7/       key.pem  certificate.pem  authority.pem  request.pem  register.json (if it has a copy)

A client creates its key and a request, the authority signs the request, and the client installs the signed
file, which holds its certificate and that of the authority. A renewed certificate is one more issue for the
same key. Folders have mode 0700 and files 0600; a private key that other users can read is refused.
"""

import os
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from filelock import FileLock, Timeout

from fedlap.deploy.certificates import (
    SERVER_NAME,
    CertificateFacts,
    PrivateKey,
    check_client_name,
    check_hosts,
    create_authority_certificate,
    create_private_key,
    create_request,
    decode_certificates,
    decode_private_key,
    decode_request,
    encode_certificate,
    encode_private_key,
    find_role,
    fingerprint_public_key,
    has_public_key,
    is_issued_by,
    read_facts,
    sign_request,
)
from fedlap.deploy.private_files import check_private, create_private_folder, write_private_file
from fedlap.deploy.register import REGISTER_NAME, Register
from fedlap.errors import InputError
from fedlap.storage.files import describe_error, read_file

KEY_NAME, CERTIFICATE_NAME, AUTHORITY_NAME, REQUEST_NAME = (
    "key.pem",
    "certificate.pem",
    "authority.pem",
    "request.pem",
)
ISSUED_NAME = "issued"
PLAIN_CHARACTERS = f"{string.ascii_letters}{string.digits}-_"
LOCK_TIMEOUT = 10.0  # seconds; signing takes milliseconds


@dataclass(frozen=True)
class Keys:
    """The private key and the certificates of a folder, checked: paths for the transport, and facts."""

    folder: Path
    facts: CertificateFacts

    @staticmethod
    def load_client(folder: Path) -> "Keys":
        """Check the files of a client's folder; raise InputError if one is missing or does not fit."""
        return Keys(folder, _load_facts(folder, "client"))

    @staticmethod
    def load_server(folder: Path) -> "Keys":
        """Check the files of the server's folder; raise InputError if one is missing or does not fit."""
        keys = Keys(folder, _load_facts(folder, "server"))
        Register.load(keys.register)
        return keys

    @staticmethod
    def load_peer(folder: Path) -> "Keys":
        """Check the files of a peer's folder; raise InputError if one is missing or does not fit.

        A peer that only dials may use a client's certificate. The register may be missing.
        """
        keys = Keys(folder, _load_facts(folder, "peer", "client"))
        keys.load_register()
        return keys

    @property
    def key(self) -> Path:
        """Path of the private key."""
        return self.folder / KEY_NAME

    @property
    def certificate(self) -> Path:
        """Path of the certificate."""
        return self.folder / CERTIFICATE_NAME

    @property
    def authority(self) -> Path:
        """Path of the authority's certificate."""
        return self.folder / AUTHORITY_NAME

    @property
    def register(self) -> Path:
        """Path of the register: the authority's own, by a link, or a copy."""
        return self.folder / REGISTER_NAME

    @property
    def name(self) -> str:
        """The name that the certificate belongs to."""
        return self.facts.name

    def load_register(self) -> Register | None:
        """Return the register, or None if the folder has none; raise InputError if it is not valid."""
        return Register.load(self.register) if self.register.is_symlink() or self.register.exists() else None


def create_authority(folder: Path, name: str, lifetime: timedelta) -> CertificateFacts:
    """Create an authority in a new folder: its key, its certificate and an empty register."""
    if (folder / KEY_NAME).exists():
        raise InputError(f"{str(folder)!r} has an authority already; use it, or choose another folder")
    check_client_name(name)
    create_private_folder(folder)
    key = create_private_key()
    certificate = create_authority_certificate(key, name, lifetime)
    create_private_folder(folder / ISSUED_NAME)
    Register().save(folder / REGISTER_NAME)
    write_private_file(folder / CERTIFICATE_NAME, encode_certificate(certificate))
    write_private_file(folder / KEY_NAME, encode_private_key(key))
    return read_facts(certificate)


def request_certificate(
    folder: Path, name: str | None = None, hosts: Sequence[str] = (), new_key: bool = False
) -> Path:
    """Write a request for a certificate and return its path.

    It is a client's with a name, the server's with hosts, and a peer's with both. The private key of the
    folder is used again unless `new_key`. A new key invalidates the certificate of the folder, which is
    therefore removed.
    """
    if name is None and not hosts:
        raise InputError("pass the name of a client, the hosts of a server, or both for a peer", field="name")
    if name == SERVER_NAME and hosts:
        raise InputError(
            f"name = {name!r} is a server's; choose another name for a peer, or pass hosts alone",
            field="name",
        )
    name = SERVER_NAME if name is None else check_client_name(name)
    check_hosts(hosts)
    create_private_folder(folder)
    if new_key or not (folder / KEY_NAME).exists():
        (folder / CERTIFICATE_NAME).unlink(missing_ok=True)
        write_private_file(folder / KEY_NAME, encode_private_key(create_private_key()))
    request = create_request(load_private_key(folder), name, hosts)
    write_private_file(folder / REQUEST_NAME, request)
    return folder / REQUEST_NAME


def sign_certificate(
    authority: Path,
    request: Path,
    lifetime: timedelta,
    to: Path | None = None,
    name: str | None = None,
    start: datetime | None = None,
) -> tuple[Path, CertificateFacts]:
    """Sign a request, add the certificate to the register, and return its file and facts.

    The file holds the certificate and that of the authority; both are public.
    to: file to write; by default client-NAME-ISSUE.pem in the folder `issued` of the authority.
    name: expected name; a request for another name is refused.
    start: first moment of validity; by default a few minutes ago, since clocks differ.
    """
    decoded, requested, hosts = _load_request(request)
    check_client_name(requested)
    if name is not None and requested != name:
        raise InputError(f"{str(request)!r} is a request of {requested!r}, not of {name!r}; do not sign it")
    role = find_role(requested, hosts)
    with _lock_authority(authority):
        key, certificate = load_private_key(authority), _load_certificates(authority / CERTIFICATE_NAME)[0]
        register = Register.load(authority / REGISTER_NAME)
        issue = register.next_issue(role, requested)
        signed = sign_request(decoded, issue, certificate, key, lifetime, start)
        facts = read_facts(signed)
        if facts.not_after > certificate.not_valid_after_utc:
            raise InputError(
                f"the certificate would be valid until {facts.not_after:%Y-%m-%d}, longer than its authority "
                f"({certificate.not_valid_after_utc:%Y-%m-%d}); use fewer days"
            )
        # The register comes first: no certificate exists that it does not list.
        register.add(facts).save(authority / REGISTER_NAME)
        if to is None:
            create_private_folder(authority / ISSUED_NAME)
            to = authority / ISSUED_NAME / f"{name_folder(facts)}-{issue}.pem"
        write_private_file(to, encode_certificate(signed) + encode_certificate(certificate))
    return to, facts


def fingerprint_request(request: Path) -> str:
    """Return the first 16 digits of the SHA-256 of a request's public key, for people to compare."""
    decoded, _, _ = _load_request(request)
    return fingerprint_public_key(decoded)[:16]


def install_certificate(folder: Path, signed: Path) -> CertificateFacts:
    """Check a signed file against the key of a folder and install it; a running client or server uses it."""
    certificates = _load_certificates(signed)
    if len(certificates) != 2:
        raise InputError(
            f"{str(signed)!r} has {len(certificates)} certificates, expected 2; "
            "use the file that `fedlap keys sign` wrote"
        )
    certificate, authority = certificates
    facts = _check_certificate(signed, certificate, authority, load_private_key(folder))
    pinned = folder / AUTHORITY_NAME
    if pinned.exists() and _load_certificates(pinned)[0] != authority:
        raise InputError(
            f"{str(signed)!r} is from another authority than {str(pinned)!r}; "
            "remove that file if the authority has changed"
        )
    write_private_file(pinned, encode_certificate(authority))
    write_private_file(folder / CERTIFICATE_NAME, encode_certificate(certificate))
    return facts


def create_server_keys(
    folder: Path, authority: Path, hosts: Sequence[str], lifetime: timedelta, start: datetime | None = None
) -> CertificateFacts:
    """Create or renew the server's certificate on the machine of the authority.

    The server's folder gets a link to the register, so that the server notices every change.
    """
    load_private_key(authority)  # before anything is written
    request = request_certificate(folder, hosts=hosts)
    signed, _ = sign_certificate(authority, request, lifetime, start=start)
    link_register(folder, authority)
    return install_certificate(folder, signed)


def link_register(folder: Path, authority: Path) -> None:
    """Put a link to the register of an authority on this machine into a folder, unless it has a register."""
    link = folder / REGISTER_NAME
    if not link.exists():
        link.unlink(missing_ok=True)  # a link that leads nowhere
        link.symlink_to(os.path.relpath(authority.resolve() / REGISTER_NAME, folder.resolve()))


def revoke_certificates(authority: Path, name: str, issue: int | None = None) -> Register:
    """Revoke an issue of a client or peer, or all its issues, and return the register."""
    with _lock_authority(authority):
        register = Register.load(authority / REGISTER_NAME).revoke(name, issue)
        register.save(authority / REGISTER_NAME)
    return register


def load_certificate_facts(path: Path) -> CertificateFacts:
    """Return the facts of the first certificate in a file; raise InputError if there is none."""
    certificate = _load_certificates(path)[0]
    try:
        return read_facts(certificate)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise _certificate_error(path, error) from error


def load_private_key(folder: Path) -> PrivateKey:
    """Return the private key of a folder; raise InputError if it is missing or others can read it."""
    path = folder / KEY_NAME
    try:
        check_private(path)
        return decode_private_key(read_file(path))
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"private key {str(path)!r} cannot be used ({describe_error(error)}); "
            "create one with `fedlap keys request` or `fedlap keys authority`"
        ) from error


def name_folder(facts: CertificateFacts) -> str:
    """Return the name of the folder, or the stem of the file, for a certificate."""
    return SERVER_NAME if facts.role == "server" else name_client_folder(facts.name, facts.role)


def name_client_folder(name: str, role: str = "client") -> str:
    """Return the name of a client's or peer's folder; unusual characters make it hexadecimal digits."""
    is_plain = name.isascii() and not set(name) - set(PLAIN_CHARACTERS)
    return f"{role}-{name if is_plain else name.encode().hex()}"


@contextmanager
def _lock_authority(folder: Path) -> Iterator[None]:
    """Exclude other processes from changes of the register."""
    load_private_key(folder)  # so that no lock file is written into a folder that is not an authority's
    try:
        with FileLock(folder / ".lock", timeout=LOCK_TIMEOUT):
            yield
    except Timeout:
        raise InputError(f"authority {str(folder)!r} is in use by another process; try again") from None


def _load_facts(folder: Path, role: str, *others: str) -> CertificateFacts:
    """Check key, certificate and authority of a folder against one another and return the facts.

    role: expected role. others: roles that are accepted, too.
    """
    path = folder / CERTIFICATE_NAME
    key = load_private_key(folder)
    certificate = _load_certificates(path)[0]
    authority = _load_certificates(folder / AUTHORITY_NAME)[0]
    facts = _check_certificate(path, certificate, authority, key)
    if facts.role not in (role, *others):
        raise InputError(f"{str(path)!r} is the certificate of a {facts.role}, expected a {role}'s")
    return facts


def _check_certificate(
    path: Path, certificate: x509.Certificate, authority: x509.Certificate, key: PrivateKey
) -> CertificateFacts:
    try:
        facts = read_facts(certificate)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise _certificate_error(path, error) from error
    if not has_public_key(certificate, key):
        raise InputError(
            f"{str(path)!r} belongs to another private key; install the certificate of this folder's request"
        )
    if not is_issued_by(certificate, authority):
        raise InputError(f"{str(path)!r} is not signed by its authority; install the file that was signed")
    return facts


def _load_request(path: Path) -> tuple[x509.CertificateSigningRequest, str, tuple[str, ...]]:
    """Return a request with its name and its hosts."""
    try:
        return decode_request(read_file(path))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(path)!r} is not a request for a certificate ({describe_error(error)}); "
            "use the file that `fedlap keys request` wrote"
        ) from error


def _load_certificates(path: Path) -> list[x509.Certificate]:
    try:
        return decode_certificates(read_file(path))
    except (OSError, ValueError) as error:
        raise _certificate_error(path, error) from error


def _certificate_error(path: Path, error: Exception) -> InputError:
    return InputError(
        f"certificate {str(path)!r} cannot be used ({describe_error(error)}); "
        "install the file that `fedlap keys sign` wrote with `fedlap keys install`"
    )
