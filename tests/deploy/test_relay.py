"""Cut, stalled, truncated, delayed and refused connections between real sessions."""

import threading
import time

import pytest

from fedlap.deploy.transport import UnreachableError
from key_folders import EchoServer, KeyFolders, connect, try_to_ask, wait_until
from relay import Relay

pytestmark = pytest.mark.deploy

NAMES = ("north", "south")
LEASE = 4.0  # seconds; a link sends something four times as often


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return KeyFolders(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def keys(folders):
    return {name: folders.sign_client(name) for name in NAMES}


@pytest.fixture
def server(folders, tmp_path_factory):
    with EchoServer(folders.sign_server(), NAMES, lease=LEASE) as server:
        yield server


@pytest.fixture
def relay(server):
    with Relay(server.port) as relay:
        yield relay


@pytest.fixture
def client(server, relay, keys):
    client = connect(server, "north", keys["north"], port=relay.port, lease=LEASE)
    assert client.ask(b"a", 30.0) == b"north: a"
    assert relay.accepted == 1
    yield client
    client.close()


@pytest.mark.parametrize("how", ["cut_after", "truncate_after"])
@pytest.mark.parametrize(("direction", "count"), [("up", 100_000), ("down", 100_000), ("down", 0)])
def test_a_connection_that_ends_in_a_message_is_unreachable_at_once_and_comes_back(
    server, relay, client, how, direction, count
):
    content = bytes(500_000)
    getattr(relay, how)(direction, count)
    start = time.monotonic()
    with pytest.raises(UnreachableError, match=r"broke before the answer|not reachable"):
        client.ask(content, 60.0)
    assert time.monotonic() - start < 30.0  # long before the timeout
    assert relay.ended == 1
    assert wait_until(lambda: try_to_ask(client), "the client is back") == b"north: a"
    assert relay.accepted >= 2
    assert client.ask(content, 30.0) == b"north: " + content


def test_a_stalled_connection_is_unreachable_and_recovers(server, relay, client, keys):
    relay.stall()
    start = time.monotonic()
    with pytest.raises(UnreachableError):
        client.ask(b"a", 60.0)
    assert time.monotonic() - start < 30.0  # by the lease, long before the timeout
    assert connect(server, "south", keys["south"]).ask(b"a", 30.0) == b"south: a"
    relay.release()
    assert wait_until(lambda: try_to_ask(client), "the client is back") == b"north: a"


def test_a_short_stall_breaks_nothing(server, relay, client):
    relay.stall()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.ask(b"b", 30.0)))
    thread.start()
    time.sleep(LEASE / 4)
    assert answers == []
    relay.release()
    thread.join(30.0)
    assert answers == [b"north: b"]
    assert relay.accepted == 1


def test_a_client_that_reads_nothing_does_not_delay_others(folders, keys):
    """Answers of 80 MB to a stalled client fill its connection; those to another are sent meanwhile."""
    most_bytes = 20_000_000
    with (
        EchoServer(folders.sign_server(), NAMES, most_bytes=most_bytes) as server,
        Relay(server.port) as relay,
    ):
        north = connect(server, "north", keys["north"], port=relay.port, most_bytes=most_bytes)
        south = connect(server, "south", keys["south"])
        assert north.ask(b"a", 30.0)
        assert south.ask(b"a", 30.0)
        relay.stall("down")
        threads = [threading.Thread(target=try_to_ask, args=(north, b"long")) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.received.count(("north", b"long")) == 4, "the requests are there")
        before = relay.forwarded["down"]
        for count in range(50):
            assert (
                south.ask(b"%d" % count, 5.0) == b"south: %d" % count
            )  # the stall ends after the lease, 10 s
        assert relay.forwarded["down"] == before
        relay.release()
        for thread in threads:
            thread.join()


def test_delayed_chunks_arrive_in_order(server, relay, client):
    relay.hold("down", 1)
    content = bytes(range(256)) * 1000
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.ask(content, 30.0)))
    thread.start()
    wait_until(lambda: len(server.received) == 2, "the request is there")
    relay.release()
    thread.join(30.0)
    assert answers == [b"north: " + content]
    assert relay.accepted == 1


def test_a_path_that_refuses_connections(server, relay, client):
    relay.refuse()
    relay.cut_after("up", 0)
    with pytest.raises(UnreachableError):
        client.ask(b"a", 30.0)
    with pytest.raises(UnreachableError):
        client.ask(b"a", 2.0)
    assert relay.refused >= 1
    relay.release()
    assert wait_until(lambda: try_to_ask(client), "the client is back") == b"north: a"
