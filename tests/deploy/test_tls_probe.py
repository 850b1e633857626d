"""The handshake that finds the cause of a failed connection, without a server that answers."""

import socket

import pytest

from fedlap.deploy.keys import request_certificate
from fedlap.deploy.tls_probe import probe_server
from fedlap.deploy.transport import UnreachableError


@pytest.fixture
def port():
    """A port that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_certificate_that_is_not_signed_yet_is_a_cause_that_waiting_cures(folders, port):
    """`fedlap keys request --new-key` removes the certificate until the authority has signed the new one."""
    keys = folders.sign_peer("n7")
    request_certificate(keys.folder, "n7", ["localhost"], new_key=True)
    assert not keys.certificate.exists()
    with pytest.raises(UnreachableError, match=r"cannot be used now .*certificate\.pem"):
        probe_server("127.0.0.1", port, keys)
