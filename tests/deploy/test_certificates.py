"""Certificates over real connections: every wrong one is refused with its cause, and renewals work."""

import re
import shutil
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from fedlap.deploy.certificates import CertificateFacts
from fedlap.deploy.keys import Keys, revoke_certificates
from fedlap.deploy.register import Register
from fedlap.deploy.tls_probe import probe_server
from fedlap.deploy.transport import ExitCode, PermanentError, UnreachableError
from key_folders import (
    DAY,
    EchoServer,
    Renewal,
    connect,
    copy_authority,
    sign_by_itself,
    try_to_ask,
    wait_for_lasting_error,
    wait_until,
)

pytestmark = pytest.mark.deploy

SHORT = timedelta(seconds=8)


def assert_refused(server, keys, code, words, name="north"):
    """Assert that both a client and the probe name the cause, and that no request arrives."""
    with pytest.raises(PermanentError, match=words) as caught:
        connect(server, name, keys).ask(b"a", 30.0)
    assert caught.value.code == code
    with pytest.raises(PermanentError, match=words) as caught:
        probe_server("127.0.0.1", server.port, keys)
    assert caught.value.code == code
    assert server.received == []


def test_valid_certificates_work(folders):
    keys = folders.sign_client("north")
    with EchoServer(folders.sign_server(), ["north"]) as server:
        assert probe_server("127.0.0.1", server.port, keys).common_name == "server:1"
        assert connect(server, "north", keys).ask(b"a", 30.0) == b"north: a"


def test_no_certificate(folders):
    """A client without a certificate knows the authority, and gets no further than the handshake."""
    keys = folders.sign_client("north")
    with EchoServer(folders.sign_server(), ["north"]) as server:
        context = ssl.create_default_context(cafile=keys.authority)
        with (
            socket.create_connection(("127.0.0.1", server.port), 30.0) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
            pytest.raises(ssl.SSLError, match="certificate required"),
        ):
            secure.recv(1)
        with pytest.raises(PermanentError, match="speaks TLS"):
            connect(server, "north", None).ask(b"a", 1.0)
        assert server.received == []


def test_self_signed(folders):
    """The client is its own authority for its certificate, and trusts the server's authority."""
    keys = folders.sign_client("north")
    sign_by_itself(keys)
    with EchoServer(folders.sign_server(), ["north"]) as server:
        assert_refused(server, keys, ExitCode.OTHER_AUTHORITY, "does not accept the authority")


def test_another_authority_signed_the_client_s(folders, others):
    server_keys, keys = folders.sign_server(), others.sign_client("north")
    copy_authority(keys, server_keys)
    with EchoServer(server_keys, ["north"]) as server:
        assert_refused(server, keys, ExitCode.OTHER_AUTHORITY, "does not accept the authority")


def test_another_authority_signed_the_server_s(folders, others):
    keys, server_keys = folders.sign_client("north"), others.sign_server()
    with EchoServer(server_keys, ["north"]) as server:
        assert_refused(server, keys, ExitCode.OTHER_AUTHORITY, "of the server .* from another authority")


@pytest.mark.parametrize("checked_by", ["client", "server"])
@pytest.mark.parametrize(
    ("start", "words"), [(-2 * DAY, "expired at"), (DAY, "not valid before")], ids=["expired", "not-yet"]
)
def test_the_client_s_is_not_valid_now(folders, start, words, checked_by, monkeypatch):
    keys = folders.sign_client("north", lifetime=DAY, start=datetime.now(UTC) + start)
    if checked_by == "server":  # a client whose clock is wrong
        monkeypatch.setattr(CertificateFacts, "describe_invalidity", lambda facts: None)
        words = "says that the certificate north:1 of this client is not valid now"
    with EchoServer(folders.sign_server(), ["north"]) as server:
        assert_refused(server, keys, ExitCode.EXPIRED, words)


@pytest.mark.parametrize("start", [-2 * DAY, DAY], ids=["expired", "not-yet"])
def test_the_server_s_is_not_valid_now(folders, start):
    keys = folders.sign_client("north")
    server_keys = folders.sign_server(lifetime=DAY, start=datetime.now(UTC) + start)
    with EchoServer(server_keys, ["north"]) as server:
        assert_refused(server, keys, ExitCode.EXPIRED, "certificate of the server .* is not valid now")


def test_another_host_name(folders):
    keys = folders.sign_client("north")
    with EchoServer(folders.sign_server(hosts=["server.example.org", "10.0.0.1"]), ["north"]) as server:
        assert_refused(server, keys, ExitCode.WRONG_NAME, "is not for the host '127.0.0.1'")


def test_a_server_s_certificate_does_not_admit_a_client(folders):
    server_keys = folders.sign_server()
    keys = Keys(server_keys.folder, server_keys.facts)
    with EchoServer(server_keys, ["server"]) as server:
        assert_refused(server, keys, ExitCode.REFUSED, "is not a client's", name="server")


def test_a_client_s_certificate_does_not_serve(folders):
    """A client cannot pose as the server towards others, even on the server's host."""
    keys, hostile = folders.sign_client("north"), folders.sign_client("east")
    server_keys = folders.sign_server()
    for name in ("key", "certificate"):
        shutil.copy(getattr(hostile, name), getattr(server_keys, name))
    with EchoServer(server_keys, ["north"]) as server:
        client = connect(server, "north", keys)
        with pytest.raises(PermanentError):
            client.ask(b"a", 30.0)
        assert server.received == []


def test_a_peer_s_certificate_does_not_serve(folders):
    """A peer's is for hosts, too, but clients ask nobody but the server."""
    keys, server_keys = folders.sign_client("north"), folders.sign_server()
    hostile = folders.sign_peer("east")
    for name in ("key", "certificate"):
        shutil.copy(getattr(hostile, name), getattr(server_keys, name))
    with EchoServer(server_keys, ["north"]) as server:
        with pytest.raises(PermanentError, match=r"east:1 of .* is a peer's, expected a server's") as caught:
            connect(server, "north", keys).ask(b"a", 30.0)
        assert caught.value.code == ExitCode.WRONG_NAME
        assert server.received == []


def test_nothing_listens(folders):
    keys = folders.sign_client("north")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UnreachableError, match=r"broke the TLS handshake off .no answer in time"):
            probe_server("127.0.0.1", port, keys, timeout=0.2)
    with pytest.raises(UnreachableError, match=r"not reachable .Connection refused"):
        probe_server("127.0.0.1", port, keys)
    with pytest.raises(UnreachableError, match="not reachable"):
        probe_server("host.invalid", port, keys)


def test_a_revoked_certificate_is_refused_at_once_and_a_new_issue_admitted(folders):
    north, east = folders.sign_client("north"), folders.sign_client("east")
    with EchoServer(folders.sign_server(), ["north", "east"]) as server:
        client, other = connect(server, "north", north), connect(server, "east", east)
        assert client.ask(b"a", 30.0)
        revoke_certificates(folders.authority, "north")
        wait_until(lambda: server.remarks, "the register is read")
        assert server.remarks == ["revoked: north:1"]
        error = wait_for_lasting_error(lambda: client.ask(b"a", 10.0))
        assert re.search(r"refuses the certificate north:1: .*revoked", str(error))
        assert error.code == ExitCode.REFUSED
        assert wait_until(lambda: try_to_ask(other), "the other client is back") == b"east: a"
        folders.sign_client("north")
        wait_until(lambda: len(server.remarks) == 2, "the register is read again")
        client = connect(server, "north", north)
        assert wait_until(lambda: try_to_ask(client), "issue 2 is admitted") == b"north: a"
        revoke_certificates(folders.authority, "north", 1)
        revoke_certificates(folders.authority, "east", 1)
        wait_until(lambda: server.remarks[2:], "the register is read again")
        assert wait_until(lambda: try_to_ask(client), "issue 2 stays") == b"north: a"


def test_an_open_connection_with_a_revoked_certificate_is_cut(folders):
    keys = folders.sign_client("north")
    with EchoServer(folders.sign_server(), ["north"]) as server:
        client, causes = connect(server, "north", keys), []

        def wait():
            try:
                client.ask(b"wait", 60.0)
            except (UnreachableError, PermanentError) as error:
                causes.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: server.received, "the request is there")
        revoke_certificates(folders.authority, "north")
        thread.join(30.0)
        assert causes
        assert "revoked" in str(wait_for_lasting_error(lambda: client.ask(b"a", 10.0)))


def test_a_renewal_breaks_no_connection(folders):
    """An issue that the register lists after the server started is allowed in advance."""
    keys = folders.sign_client("north")
    with EchoServer(folders.sign_server(), ["north"]) as server:
        client = connect(server, "north", keys)
        assert client.ask(b"a", 30.0)
        session = client._session
        folders.sign_client("north")
        assert Keys.load_client(keys.folder).facts.issue == 2
        time.sleep(0.3)  # the server refreshes every tenth of a second
        assert client.ask(b"a", 30.0)
        assert client._session is session
        assert server.remarks == []
        assert connect(server, "north", keys).ask(b"a", 30.0) == b"north: a"  # with issue 2


def test_a_server_reloads_its_certificate_without_a_new_process(folders):
    keys = folders.sign_client("north")
    with EchoServer(folders.sign_server(), ["north"]) as server:
        client = connect(server, "north", keys)
        assert client.ask(b"a", 30.0)
        renewed = folders.sign_server()
        wait_until(lambda: server.remarks, "the certificate is read")
        assert server.remarks == ["certificate server:2 is in use"]
        assert read_serial(server.port, keys) == int(renewed.facts.serial, 16)
        assert wait_until(lambda: try_to_ask(client), "the client is back") == b"north: a"


def read_serial(port, keys):
    """Return the serial number of the certificate that a port presents."""
    context = ssl.create_default_context(cafile=keys.authority)
    context.load_cert_chain(keys.certificate, keys.key)
    with (
        socket.create_connection(("127.0.0.1", port), 30.0) as connection,
        context.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
    ):
        return int(secure.getpeercert()["serialNumber"], 16)


def test_a_damaged_register_changes_nothing(folders):
    keys = folders.sign_client("north")
    server_keys = folders.sign_server()
    with EchoServer(server_keys, ["north"]) as server:
        server_keys.register.resolve().write_text("{")
        wait_until(lambda: server.remarks, "the register is read")
        assert "changed keys are ignored" in server.remarks[0]
        assert connect(server, "north", keys).ask(b"a", 30.0) == b"north: a"
        Register().save(server_keys.register.resolve())
        time.sleep(0.3)
        client = connect(server, "north", keys)
        assert wait_until(lambda: try_to_ask(client), "the register is valid again") == b"north: a"


def test_an_expired_connection_closes(folders):
    with EchoServer(folders.sign_server(), ["north"]) as server:
        client = connect(server, "north", folders.sign_client("north", lifetime=timedelta(seconds=5)))
        assert client.ask(b"a", 30.0)

        def find_code():
            try:
                client.ask(b"a", 30.0)
            except PermanentError as error:
                return error.code
            except UnreachableError:
                return None

        assert wait_until(find_code, "the connection is closed") == ExitCode.EXPIRED


def test_certificates_of_eight_seconds_are_renewed_while_a_client_asks(folders):
    """Both sides renew all the time; it ends after the certificates of the first renewal have expired."""

    def renew():
        return folders.sign_client("north", lifetime=SHORT), folders.sign_server(lifetime=SHORT)

    keys, server_keys = renew()
    with EchoServer(server_keys, ["north"], lease=2.0) as server, Renewal(renew, SHORT) as renewal:
        client = connect(server, "north", keys, lease=2.0)
        wait_until(lambda: try_to_ask(client) and renewal.has_expired(2), "the first certificates expire")
        assert wait_until(lambda: try_to_ask(client), "a connection") == b"north: a"
        assert renewal.signed[-1][0].facts.issue >= 4
        assert [remark for remark in server.remarks if "certificate server:" in remark]
        assert not [remark for remark in server.remarks if "ignored" in remark], server.remarks
