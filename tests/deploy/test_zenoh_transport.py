"""Requests over real connections: names, access rules, limits, restarts."""

import threading
import time

import pytest
import zenoh

from exit_scripts import run_until_exit
from fedlap.deploy.transport import (
    ClientTransport,
    ExitCode,
    PermanentError,
    Request,
    ServerTransport,
    UnreachableError,
)
from fedlap.deploy.zenoh_requests import MOST_WAITING
from fedlap.deploy.zenoh_server import ZenohServer
from fedlap.deploy.zenoh_settings import decode_key, encode_key, split_address, split_dialled_address
from fedlap.errors import InputError
from key_folders import (
    MOST_BYTES,
    EchoServer,
    KeyFolders,
    connect,
    try_to_ask,
    wait_for_lasting_error,
    wait_until,
)

NAMES = ("north", "süd / *$#? ..:1")

deploy = pytest.mark.deploy


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return KeyFolders(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def server_keys(folders):
    return folders.sign_server()


@pytest.fixture(scope="module")
def client_keys(folders):
    return {name: folders.sign_client(name) for name in (*NAMES, "east")}


@pytest.fixture(params=["tls", "insecure"])
def server(request, server_keys):
    with EchoServer(server_keys if request.param == "tls" else None, NAMES) as server:
        server.keys = request.param == "tls"
        yield server


@pytest.fixture
def secure_server(server_keys):
    with EchoServer(server_keys, NAMES) as server:
        yield server


def ask_in_vain(client, content, timeout, causes):
    """Ask and note why there was no answer."""
    try:
        client.ask(content, timeout)
    except UnreachableError as error:
        causes.append(str(error))


@pytest.mark.parametrize("name", [*NAMES, "a", "x" * 200, "名前", "..", "*", "**", "a/b", "\u202eabc"])
def test_a_key_is_one_to_one_and_has_no_wildcard(name):
    key = encode_key(name)
    assert decode_key(key) == name
    assert zenoh.KeyExpr(key) == zenoh.KeyExpr.autocanonize(key)
    assert not set(key) - set("fedlap/0123456789abcdef")


@pytest.mark.parametrize(
    "key",
    ["fedlap/*", "fedlap/**", "fedlap", "fedlap/6E", "fedlap/6", "fedlap/ff", "x/6e", "fedlap/6e/6e"],
)
def test_any_other_key_has_no_name(key):
    assert decode_key(key) is None


@pytest.mark.parametrize(
    ("address", "parts"),
    [("a.b:1", ("a.b", 1)), ("[::1]:65535", ("::1", 65535)), ("10.0.0.1:7447", ("10.0.0.1", 7447))],
)
def test_addresses(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    ["a", "a:", ":1", "a:0", "a:65536", "a:x", "::1:5", "a b:1", "a/b:1", "a:²", "a:-1", "", "a#b:1"],
)
def test_wrong_addresses_are_refused(address):
    with pytest.raises(InputError, match="expected HOST:PORT"):
        split_address(address)


def test_ipv6_addresses_are_dialled_by_name_over_tls():
    assert split_dialled_address("[::1]:7447", secure=False) == ("::1", 7447)
    assert split_dialled_address("localhost:7447", secure=True) == ("localhost", 7447)
    with pytest.raises(InputError, match="expected a host name or an IPv4 address"):
        split_dialled_address("[::1]:7447", secure=True)


@deploy
def test_an_answer_goes_to_the_client_that_asked(server, client_keys):
    assert isinstance(server.transport, ServerTransport)
    clients = {name: connect(server, name, client_keys[name] if server.keys else None) for name in NAMES}
    for name, client in clients.items():
        assert isinstance(client, ClientTransport)
        assert client.ask(b"hello", 30.0) == f"{name}: hello".encode()
        client.close()
        with pytest.raises(UnreachableError, match="closed"):
            client.ask(b"hello", 30.0)
    assert server.received == [(name, b"hello") for name in NAMES]


@deploy
def test_requests_are_of_the_protocol(secure_server, server_keys, client_keys):
    transport = ZenohServer("127.0.0.1:0", server_keys, NAMES, MOST_BYTES)
    client = connect(transport, "north", client_keys["north"])
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.ask(b"a", 30.0)))
    thread.start()
    request = transport.receive(30.0)
    assert isinstance(request, Request)
    assert (request.name, request.content) == ("north", b"a")
    request.answer(b"b")
    request.answer(b"c")  # lost: the request has its answer
    thread.join()
    assert answers == [b"b"]
    assert transport.receive(0.01) is None
    transport.close()


@deploy
def test_messages_up_to_the_limit_pass_and_longer_ones_do_not(server, client_keys):
    keys = client_keys["north"] if server.keys else None
    client = connect(server, "north", keys)
    assert len(client.ask(b"long", 30.0)) == MOST_BYTES
    content = bytes(MOST_BYTES - len("north: "))
    assert client.ask(content, 30.0) == b"north: " + content
    with pytest.raises(InputError, match="the longest message is 1,000,000 bytes"):
        client.ask(bytes(MOST_BYTES + 1), 30.0)
    reckless = connect(server, "north", keys, most_bytes=10 * MOST_BYTES)
    count = len(server.received)
    assert reckless.ask(bytes(MOST_BYTES + 1), 30.0) == b"too long"  # The server hears who sent it.
    assert server.refused == ["north"]
    with pytest.raises(UnreachableError, match="did not answer within"):
        reckless.ask(bytes(9 * MOST_BYTES), 1.0)  # refused by Zenoh before memory is taken
    assert client.ask(b"a", 30.0) == b"north: a"
    assert server.received[count:] == [("north", b"a")]


@deploy
def test_a_client_takes_the_limit_of_the_plan_over(server, client_keys):
    """It dials again, so that Zenoh's own limit is the new one as well."""
    client = connect(
        server, "north", client_keys["north"] if server.keys else None, most_bytes=10 * MOST_BYTES
    )
    assert client.ask(b"a", 30.0)
    before = client._session
    client.limit_messages(10 * MOST_BYTES)
    assert client._session is before
    client.limit_messages(1000)
    assert client.ask(b"a", 30.0) == b"north: a"
    assert client._session is not before
    with pytest.raises((UnreachableError, PermanentError)):  # Zenoh drops the answer.
        client.ask(b"long", 2.0)
    with pytest.raises(InputError, match="the longest message is 1,000 bytes"):
        client.ask(bytes(1001), 2.0)
    client.limit_messages(MOST_BYTES)
    assert len(client.ask(b"long", 30.0)) == MOST_BYTES


@deploy
def test_too_long_an_answer_is_an_error_at_the_server(server_keys, client_keys):
    transport = ZenohServer("127.0.0.1:0", server_keys, NAMES, 1000)
    client = connect(transport, "north", client_keys["north"])
    causes = []
    thread = threading.Thread(target=ask_in_vain, args=(client, b"a", 30.0, causes))
    thread.start()
    request = transport.receive(30.0)
    with pytest.raises(InputError, match="raise most_bytes"):
        request.answer(bytes(1001))
    del request  # the client's wait ends at once
    thread.join(30.0)
    assert "request was dropped" in causes[0]
    transport.close()


@deploy
def test_a_late_answer_arrives_and_others_do_not_wait_for_it(secure_server, client_keys):
    server = secure_server
    north, south = (connect(server, name, client_keys[name]) for name in NAMES)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(north.ask(b"wait", 60.0)))
    thread.start()
    wait_until(lambda: ("north", b"wait") in server.received, "received")
    assert south.ask(b"a", 30.0)
    assert north.ask(b"heartbeat", 30.0) == b"north: heartbeat"
    time.sleep(11.0)  # longer than Zenoh's own default for queries, and than the lease
    server.release.set()
    thread.join(30.0)
    assert answers == [b"released"]


@deploy
def test_a_silent_server_is_unreachable_after_the_timeout(secure_server, client_keys):
    client = connect(secure_server, "north", client_keys["north"])
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.5 seconds"):
        client.ask(b"wait", 0.5)


@deploy
def test_a_client_with_too_many_open_requests_is_put_off(secure_server, client_keys):
    client = connect(secure_server, "north", client_keys["north"])
    causes = []
    threads = [
        threading.Thread(target=ask_in_vain, args=(client, b"wait", 3.0, causes)) for _ in range(MOST_WAITING)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(secure_server.received) == MOST_WAITING, "all requests are there")
    with pytest.raises(UnreachableError, match="too many requests"):
        client.ask(b"a", 30.0)
    assert connect(secure_server, NAMES[1], client_keys[NAMES[1]]).ask(b"a", 30.0)
    for thread in threads:
        thread.join()
    assert len(causes) == MOST_WAITING
    secure_server.release.set()
    assert wait_until(lambda: try_to_ask(client), "the client is served again")


@deploy
@pytest.mark.parametrize("name", [NAMES[1], "east", "*", ""])
def test_a_name_of_another_certificate_is_refused(secure_server, client_keys, name):
    impostor = connect(secure_server, name, client_keys["north"])
    with pytest.raises(PermanentError, match="refuses the certificate north:1 for the name") as caught:
        impostor.ask(b"I am another", 30.0)
    assert caught.value.code == ExitCode.REFUSED
    assert secure_server.received == []


@deploy
def test_a_name_outside_the_roster_is_refused(server, client_keys):
    client = connect(server, "east", client_keys["east"] if server.keys else None)
    with pytest.raises(PermanentError, match="unknown, ejected or revoked") as caught:
        client.ask(b"hello", 30.0)
    assert caught.value.code == ExitCode.REFUSED
    assert server.received == []


@deploy
def test_a_client_can_do_nothing_but_ask_with_its_key(secure_server, client_keys):
    """A hostile client with a valid certificate neither reaches nor answers other clients."""
    hostile = connect(secure_server, "north", client_keys["north"])
    assert hostile.ask(b"a", 30.0)
    session = hostile._session
    seen = []
    session.declare_queryable("**", lambda query: query.reply(str(query.key_expr), b"forged"))
    session.declare_subscriber("**", seen.append)
    victim = connect(secure_server, NAMES[1], client_keys[NAMES[1]])
    before = len(secure_server.received)
    for key in ("fedlap/*", "**", encode_key(NAMES[1])):
        session.put(key, b"x", allowed_destination=zenoh.Locality.REMOTE)
        replies = session.get(
            key, payload=b"x", timeout=1.0, allowed_destination=zenoh.Locality.REMOTE,
            target=zenoh.QueryTarget.ALL,
        )  # fmt: skip
        assert [reply for reply in replies if reply.ok] == []
    for count in range(20):
        assert victim.ask(b"%d" % count, 30.0) == f"{NAMES[1]}: {count}".encode()
    assert [name for name, _ in secure_server.received[before:]] == [NAMES[1]] * 20
    assert seen == []


@deploy
def test_allow_changes_the_roster_on_the_same_port(server, client_keys):
    keys = client_keys if server.keys else dict.fromkeys(client_keys)
    north, east = (connect(server, name, keys[name]) for name in ("north", "east"))
    port = server.port
    assert north.ask(b"a", 30.0)
    with pytest.raises(PermanentError):
        east.ask(b"a", 30.0)
    server.allow(["east"])
    assert server.port == port
    assert wait_until(lambda: try_to_ask(east), "the newcomer is accepted") == b"east: a"
    # A client may ask over its former connection, which ends at that moment.
    assert "ejected" in str(wait_for_lasting_error(lambda: north.ask(b"a", 10.0)))
    server.allow([])
    wait_for_lasting_error(lambda: east.ask(b"a", 10.0))
    server.allow(NAMES)
    assert wait_until(lambda: try_to_ask(north), "the client is accepted again") == b"north: a"


@deploy
def test_a_client_returns_by_itself_after_the_server_was_away(server_keys, client_keys):
    server = EchoServer(server_keys, NAMES)
    client = connect(server, "north", client_keys["north"])
    causes = []
    thread = threading.Thread(target=ask_in_vain, args=(client, b"wait", 60.0, causes))
    thread.start()
    wait_until(lambda: server.received, "received")
    server.close()
    thread.join(30.0)  # long before the timeout
    assert "broke before the answer" in causes[0]
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        with pytest.raises(UnreachableError, match="not reachable"):
            client.ask(b"a", 30.0)
    with EchoServer(server_keys, NAMES, listen=f"127.0.0.1:{server.port}"):
        assert wait_until(lambda: try_to_ask(client), "the client is back") == b"north: a"


@deploy
def test_a_port_in_use_is_an_error_of_one_line(secure_server, server_keys, monkeypatch):
    monkeypatch.setattr("fedlap.deploy.zenoh_sessions.REOPEN_TIMEOUT", 0.2)
    with pytest.raises(InputError, match="the port is in use"):
        ZenohServer(f"127.0.0.1:{secure_server.port}", server_keys, NAMES, MOST_BYTES)
    with pytest.raises(InputError, match="use an address of this machine"):
        ZenohServer("192.0.2.1:0", server_keys, NAMES, MOST_BYTES)


@deploy
def test_a_server_that_is_not_fedlap_s_is_named(tmp_path, client_keys, secure_server):
    """A connection without TLS to a TLS port, and the other way round."""
    with pytest.raises(PermanentError, match="speaks TLS, and --insecure is set; pass --keys") as caught:
        connect(secure_server, "north", None).ask(b"a", 2.0)
    assert caught.value.code == ExitCode.OTHER_AUTHORITY
    with (
        EchoServer(None, NAMES) as insecure,
        pytest.raises(UnreachableError, match=r"does not speak TLS|broke the TLS handshake off"),
    ):
        connect(insecure, "north", client_keys["north"]).ask(b"a", 2.0)


SCRIPT = """
from pathlib import Path
from fedlap.deploy.keys import Keys
from fedlap.deploy.zenoh_client import ZenohClient
from fedlap.deploy.zenoh_server import ZenohServer

server = ZenohServer("127.0.0.1:0", Keys.load_server(Path(sys.argv[1])), ["north"], 1000)
client = ZenohClient(f"127.0.0.1:{server.port}", "north", Keys.load_client(Path(sys.argv[2])), 1000)

ask_and_exit(lambda: client.ask(b"a", 600.0), server)
"""


@deploy
def test_a_process_ends_with_open_sessions_and_prints_nothing(server_keys, client_keys):
    run_until_exit(SCRIPT, [server_keys.folder, client_keys["north"].folder], "north")


@deploy
def test_a_thousand_round_trips(server, client_keys, capsys):
    client = connect(server, "north", client_keys["north"] if server.keys else None)
    start = time.perf_counter()
    for count in range(1000):
        assert client.ask(b"%d" % count, 30.0) == b"north: %d" % count
    with capsys.disabled():
        print(f"\n{'TLS' if server.keys else 'TCP'}: {time.perf_counter() - start:.3f} ms per round trip")
    assert len(server.received) == 1000
