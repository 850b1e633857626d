"""Signatures of peers: what a peer says about itself reaches others through neighbours, unchanged.

A proof is a certificate of the run's authority and a signature by its key. Without certificates
(`--insecure`) nothing is signed, and a statement is believed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedlap.deploy.certificates import decode_certificates, is_issued_by, read_facts
from fedlap.deploy.keys import AUTHORITY_NAME, CERTIFICATE_NAME, load_private_key
from fedlap.errors import InputError
from fedlap.storage.files import describe_error, read_file

Proof = dict[str, str]  # the parts below, or empty if nothing is signed
PROOF_PARTS: Final = ("certificate", "signature")  # in PEM, in hexadecimal digits
ALGORITHM = ec.ECDSA(hashes.SHA256())


class Signer(Protocol):
    """Signs this peer's statements, and checks those of others. A statement is a table of plain values."""

    def sign(self, statement: Mapping[str, Any]) -> Proof:
        """Return the proof of a statement of this peer."""
        ...

    def check(self, name: str, statement: Mapping[str, Any], proof: Mapping[str, str]) -> None:
        """Raise InputError unless the peer `name` has signed the statement."""
        ...


class NoSigner:
    """Signs nothing and believes everything, as connections without certificates do."""

    def sign(self, statement: Mapping[str, Any]) -> Proof:
        """Return no proof."""
        return {}

    def check(self, name: str, statement: Mapping[str, Any], proof: Mapping[str, str]) -> None:
        """Accept the statement."""


@dataclass(frozen=True)
class CertificateSigner:
    """Signs with the private key of a folder of keys; renewed files are read again for every statement."""

    folder: Path

    def sign(self, statement: Mapping[str, Any]) -> Proof:
        """Return the certificate and the signature by its key; raise InputError if a file is missing."""
        signature = load_private_key(self.folder).sign(encode_statement(statement), ALGORITHM)
        path = self.folder / CERTIFICATE_NAME
        try:
            certificate = read_file(path).decode()
        except OSError as error:
            raise InputError(
                f"certificate {str(path)!r} cannot be read ({describe_error(error)}); install it with "
                "`fedlap keys install`"
            ) from error
        return {"certificate": certificate, "signature": signature.hex()}

    def check(self, name: str, statement: Mapping[str, Any], proof: Mapping[str, str]) -> None:
        """Raise InputError unless the key of a certificate for `name`, of our authority, has signed it.

        A certificate that has expired since it signed is accepted.
        """
        try:
            (certificate,) = decode_certificates(proof["certificate"].encode())
            (authority,) = decode_certificates(read_file(self.folder / AUTHORITY_NAME))
            public_key = certificate.public_key()
            is_valid = is_issued_by(certificate, authority) and read_facts(certificate).name == name
            if not is_valid or not isinstance(public_key, ec.EllipticCurvePublicKey):
                raise ValueError("the certificate is of another peer or authority")
            public_key.verify(bytes.fromhex(proof["signature"]), encode_statement(statement), ALGORITHM)
        except (
            AttributeError, KeyError, TypeError, ValueError, InvalidSignature, UnsupportedAlgorithm,
        ) as error:  # fmt: skip
            reason = str(error) or "the signature is wrong"
            raise InputError(
                f"a statement of {name!r} is not signed by it ({reason}); let {name!r} make it again"
            ) from error


def encode_statement(statement: Mapping[str, Any]) -> bytes:
    """Return the bytes of a statement that are signed."""
    return json.dumps(statement, sort_keys=True).encode()
