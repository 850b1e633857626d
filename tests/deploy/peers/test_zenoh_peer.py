"""Messages between real peers: links, names, rules, limits, broken and reopened links."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import zenoh

from exit_scripts import run_until_exit
from fedlap.deploy.peers.peer_session import describe_peer_rules, describe_peer_session, encode_edge_key
from fedlap.deploy.peers.transport import PeerTransport
from fedlap.deploy.peers.zenoh_peer import ZenohPeer
from fedlap.deploy.transport import ExitCode, Request, UnreachableError
from fedlap.deploy.zenoh_requests import MOST_WAITING
from fedlap.deploy.zenoh_sessions import open_session
from fedlap.deploy.zenoh_settings import split_address
from fedlap.errors import InputError
from key_folders import MOST_BYTES, WAIT, EchoPeer, KeyFolders, wait_for_lasting_error, wait_until
from ports import find_ports
from process_sockets import ESTABLISHED, LISTENING, list_sockets
from relay import Relay

NAMES = ("n1", "süd / *$#? ..:1", "n3", "n4")
EDGES = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]  # a ring and a chord
PARAMETERS = 80_000

deploy = pytest.mark.deploy
pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return KeyFolders(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def keys(folders):
    return {name: folders.sign_peer(name) for name in (*NAMES, "mallory")}


@pytest.fixture
def start():
    """Start echo peers that close at the end of the test."""
    peers = []

    def start(*args, **settings):
        peers.append(EchoPeer(*args, **settings))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def start_pair(start, keys, secure=True, **settings):
    """Return two neighbours, of which the second dials the first, once they are connected."""
    names = NAMES[:2]
    first = start(names[0], keys[names[0]] if secure else None, {names[1]: None}, **settings)
    second = start(names[1], keys[names[1]] if secure else None, {names[0]: first.address}, **settings)
    wait_for_links(first, second)
    return first, second


def wait_for_links(*peers):
    """Wait until every peer has a link to all its neighbours."""
    for peer in peers:
        neighbours = sorted(peer.transport._neighbours)
        wait_until(lambda: sorted(peer.transport.list_links()) == neighbours, "links")  # noqa: B023


@pytest.mark.parametrize("name", [*NAMES, "*", "**", "a/b", "\u202eabc"])
def test_keys_of_edges_have_no_wildcard_and_a_direction(name):
    there, back = encode_edge_key(name, "n0"), encode_edge_key("n0", name)
    assert there != back
    for key in (there, back):
        assert zenoh.KeyExpr(key) == zenoh.KeyExpr.autocanonize(key)
        assert not set(key) - set("fedlap/0123456789abcdef")


def test_the_rules_bind_every_message_to_one_neighbour():
    access = describe_peer_rules("me", {"a": ["a:1", "a:2"], "b": ["b:4"], "revoked": []})
    assert (access["enabled"], access["default_permission"]) == (True, "deny")
    rules = {rule["id"]: rule for rule in access["rules"]}
    subjects = {subject["id"]: subject["cert_common_names"] for subject in access["subjects"]}
    allowed = {}
    for policy in access["policies"]:
        (subject,) = policy["subjects"]
        for rule in policy["rules"]:
            (flow,), (message,), (key,) = (rules[rule][field] for field in ("flows", "messages", "key_exprs"))
            assert rules[rule]["permission"] == "allow"
            allowed.setdefault(tuple(subjects[subject]), set()).add((flow, message, key))
    to_me, from_me = encode_edge_key("b", "me"), encode_edge_key("me", "b")
    assert set(allowed) == {("a:1", "a:2"), ("b:4",)}  # for Zenoh, a subject without names is everybody
    assert allowed["b:4",] == {
        ("ingress", "query", to_me),
        ("egress", "reply", to_me),
        ("egress", "declare_queryable", to_me),
        ("egress", "query", from_me),
        ("ingress", "reply", from_me),
        ("ingress", "declare_queryable", from_me),
    }
    assert not {key for *_, key in allowed["a:1", "a:2"]} & {to_me, from_me}


@pytest.mark.parametrize(
    ("listen", "neighbours", "words"),
    [
        ("127.0.0.1:0", {"n1": None}, "its own neighbour"),
        ("127.0.0.1:0", {"n2": "nowhere"}, "expected HOST:PORT"),
        (None, {"n2": None}, "'n2' has no address, and 'n1' does not listen"),
        ("nowhere", {"n2": None}, "expected HOST:PORT"),
    ],
)
def test_edges_that_nobody_can_dial_are_refused(listen, neighbours, words):
    with pytest.raises(InputError, match=words):
        ZenohPeer("n1", listen, None, neighbours, 1000)


def test_keys_of_another_peer_or_role_are_refused(folders, keys):
    with pytest.raises(InputError, match="are those of 'n3', expected 'n1'"):
        ZenohPeer("n1", "127.0.0.1:0", keys["n3"], {"n2": None}, 1000)
    client = folders.sign_client("dialler")
    with pytest.raises(InputError, match="is a client's, which nobody can dial"):
        ZenohPeer("dialler", "127.0.0.1:0", client, {"n2": None}, 1000)


@deploy
@pytest.mark.parametrize("secure", [True, False], ids=["tls", "insecure"])
def test_both_sides_of_one_link_ask(start, keys, secure):
    first, second = start_pair(start, keys, secure)
    assert isinstance(first.transport, PeerTransport)
    for _ in range(3):
        assert first.ask(second.name, b"to the right") == f"{first.name}: to the right".encode()
        assert second.ask(first.name, b"to the left") == f"{second.name}: to the left".encode()
    assert first.received == [(second.name, b"to the left")] * 3
    with pytest.raises(UnreachableError, match="n9 is no neighbour of n1"):
        first.ask("n9")


@deploy
def test_questions_are_of_the_protocol(start, keys):
    second = ZenohPeer("n3", "127.0.0.1:0", keys["n3"], {"n1": None}, 1000)
    first = start("n1", keys["n1"], {"n3": f"127.0.0.1:{second.port}"})
    thread, outcomes = first.ask_in_thread("n3", b"a")
    request = second.receive(30.0)
    assert isinstance(request, Request)
    assert (request.name, request.content) == ("n1", b"a")
    request.answer(b"b")
    request.answer(b"c")  # lost: the request has its answer
    thread.join()
    assert outcomes == [b"b"]
    assert second.receive(0.01) is None
    thread, outcomes = first.ask_in_thread("n3", b"a")
    request = second.receive(30.0)
    with pytest.raises(InputError, match="raise most_bytes"):
        request.answer(bytes(1001))
    del request  # the wait ends at once
    thread.join(WAIT)
    assert "request was dropped" in str(outcomes[0])
    second.close()
    with pytest.raises(UnreachableError, match="closed"):
        second.ask("n1", b"a", 30.0)


@deploy
def test_links_are_the_edges_and_nothing_else_is_contacted(start, keys):
    """Four peers that all could dial: an edge is one connection, and there is no other socket."""
    peers = []
    before = set(list_sockets())
    for place, name in enumerate(NAMES):
        ends = [sum(edge) - place for edge in EDGES if place in edge]
        addresses = {NAMES[end]: peers[end].address if end < place else None for end in ends}
        peers.append(start(name, keys[name], addresses))
    wait_for_links(*peers)
    ports = {("127.0.0.1", peer.port) for peer in peers}
    for _ in range(3):  # Zenoh would dial others within a second if it searched for them
        for first, second in EDGES:
            assert peers[first].ask(NAMES[second]) == f"{NAMES[first]}: a".encode()
            assert peers[second].ask(NAMES[first]) == f"{NAMES[second]}: a".encode()
        time.sleep(0.4)
        sockets = set(list_sockets()) - before
        assert {protocol for protocol, *_ in sockets} == {"tcp"}
        assert {local for _, local, _, state in sockets if state == LISTENING} == ports
        dialled = sorted(
            remote for _, _, remote, state in sockets if state == ESTABLISHED and remote in ports
        )
        accepted = [local for _, local, _, state in sockets if state == ESTABLISHED and local in ports]
        assert dialled == sorted(accepted) == sorted(("127.0.0.1", peers[first].port) for first, _ in EDGES)
        assert len(sockets) == len(ports) + 2 * len(EDGES)


@deploy
def test_a_peer_without_an_address_dials_with_a_client_s_certificate(start, folders, keys):
    first = start("n1", keys["n1"], {"dialler": None})
    second = start("dialler", folders.sign_client("dialler"), {"n1": first.address}, listen=None)
    assert second.port == 0
    wait_for_links(first, second)
    assert second.ask("n1") == b"dialler: a"
    assert first.ask("dialler") == b"n1: a"


@deploy
def test_messages_up_to_the_limit_pass_and_longer_ones_do_not(start, keys):
    first, second = start_pair(start, keys)
    assert first.ask(second.name, b"long", 30.0) == bytes(MOST_BYTES)
    content = bytes(MOST_BYTES - len("n1: "))
    assert first.ask(second.name, content, 30.0) == b"n1: " + content
    with pytest.raises(InputError, match="the longest message is 1,000,000 bytes"):
        first.ask(second.name, bytes(MOST_BYTES + 1))
    count = len(second.received)
    for size, timeout, words in (
        (MOST_BYTES + 1, 30.0, "too long"),
        (9 * MOST_BYTES, 1.0, "did not answer within|broke"),
    ):
        first.transport._queries.most_bytes = 10 * MOST_BYTES  # a peer that ignores the limit
        with pytest.raises(UnreachableError, match=words):
            first.ask(second.name, bytes(size), timeout)
    assert wait_until(lambda: first.try_to_ask(second.name), "the link works") == b"n1: a"
    assert set(second.received[count:]) == {("n1", b"a")}


@deploy
def test_a_neighbour_with_too_many_open_questions_is_put_off(start, keys):
    first, second = start_pair(start, keys)
    waits = [first.ask_in_thread(second.name) for _ in range(MOST_WAITING)]
    wait_until(lambda: len(second.received) == MOST_WAITING, "all questions are there")
    with pytest.raises(UnreachableError, match="too many requests"):
        first.ask(second.name)
    assert second.ask(first.name)
    second.release.set()
    for thread, outcomes in waits:
        thread.join(WAIT)
        assert outcomes == [b"released"]
    assert first.ask(second.name)


@deploy
def test_waits_end_by_an_interrupt(start, keys, monkeypatch):
    monkeypatch.setattr("fedlap.deploy.peers.zenoh_peer.LINK_TIMEOUT", WAIT)
    first, second = start_pair(start, keys)
    waits = [first.ask_in_thread(second.name)]
    wait_until(lambda: second.received, "the question is there")
    first.transport.interrupt()
    lonely = start("n3", keys["n3"], {"n4": None})
    waits.append(lonely.ask_in_thread("n4"))
    for thread, outcomes in waits:
        wait_until(lambda: lonely.transport.interrupt() or outcomes, "the wait ends")  # noqa: B023
        thread.join(WAIT)
        assert "was interrupted" in str(outcomes[0])
    assert first.ask(second.name)


@deploy
def test_a_neighbour_that_is_silent_for_longer_than_the_timeout(start, keys):
    first, second = start_pair(start, keys)
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.5 seconds"):
        first.ask(second.name, b"wait", 0.5)


# Liars.


def open_hostile_session(keys, address):
    """Return a Zenoh session with a valid certificate and without rules."""
    settings = describe_peer_session(
        "mallory", keys["mallory"], {}, MOST_BYTES, 10.0, dial=split_address(address)
    )
    del settings["access_control"]
    return open_session(settings)


def ask_as_another(session, key):
    """Return the answers to a query that a hostile session sends over its link."""
    replies = session.get(
        key, payload=b"x", timeout=1.0, allowed_destination=zenoh.Locality.REMOTE,
        target=zenoh.QueryTarget.ALL,
    )  # fmt: skip
    return [reply.ok.payload.to_bytes() for reply in replies if reply.ok]


@pytest.fixture
def victim(folders, start):
    """A peer with the neighbours n1, who is not there, and mallory, whose certificate is valid."""
    return start("me", folders.sign_peer("me"), {"n1": None, "mallory": None})


def lie(session):
    """Answer in the name of n1, in every way that Zenoh offers; return what the session hears."""
    heard = []
    key = encode_edge_key("me", "n1")
    for pattern in (key, "fedlap/*/*", "fedlap/**", "**"):
        session.declare_queryable(pattern, lambda query: query.reply(key, b"forged"))
    session.declare_subscriber("**", heard.append)
    return heard


@deploy
def test_a_neighbour_cannot_answer_or_ask_in_the_name_of_another(victim, keys):
    session = open_hostile_session(keys, victim.address)
    heard = lie(session)
    mine = encode_edge_key("mallory", "me")
    wait_until(lambda: ask_as_another(session, mine), "mallory may ask in its own name")
    with pytest.raises(UnreachableError, match="n1 has not connected"):
        victim.ask("n1")
    assert "n1" not in victim.transport.list_links()
    for key in (encode_edge_key("n1", "me"), "fedlap/*/*", "**", encode_edge_key("me", "n1")):
        session.put(key, b"x", allowed_destination=zenoh.Locality.REMOTE)
        assert ask_as_another(session, key) == []
    assert {name for name, _ in victim.received} == {"mallory"}
    assert heard == []
    session.close()


@deploy
def test_without_rules_per_neighbour_the_lies_are_believed(victim, keys, monkeypatch):
    """The same lies succeed if every neighbour may do what any neighbour may: mutual TLS is not enough."""

    def give_all_to_all(name, rules):
        access = describe_peer_rules(name, rules)
        everything = [rule["id"] for rule in access["rules"]]
        return {**access, "policies": [{**policy, "rules": everything} for policy in access["policies"]]}

    monkeypatch.setattr("fedlap.deploy.peers.peer_session.describe_peer_rules", give_all_to_all)
    victim.transport.set_neighbours({"n1": None, "mallory": None})  # opens a session with these rules
    session = open_hostile_session(keys, victim.address)
    lie(session)
    assert wait_until(lambda: victim.try_to_ask("n1"), "the lie arrives") == b"forged"
    answers = wait_until(lambda: ask_as_another(session, encode_edge_key("n1", "me")), "the lie is answered")
    assert answers == [b"n1: x"]
    assert set(victim.received) == {("n1", b"x")}
    session.close()


@deploy
def test_a_neighbour_reaches_no_neighbour_of_its_neighbour(victim, keys, start):
    """Peers forward nothing."""
    n1 = start("n1", keys["n1"], {"me": None})
    victim.transport.set_neighbours({"n1": n1.address, "mallory": None})
    assert wait_until(lambda: victim.try_to_ask("n1"), "a link") == b"me: a"
    session = open_hostile_session(keys, victim.address)
    wait_until(lambda: ask_as_another(session, encode_edge_key("mallory", "me")), "a link")
    for key in (encode_edge_key("me", "n1"), encode_edge_key("mallory", "n1"), "fedlap/**"):
        assert ask_as_another(session, key) == []
    assert set(n1.received) == {("me", b"a")}
    session.close()


# Broken and reopened links.

CHILD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[5:]
from fedlap.deploy.keys import Keys
from exit_scripts import run_until_exit
from key_folders import EchoPeer
name, folder, listen, neighbour = sys.argv[1:5]
neighbour, _, address = neighbour.partition("=")
peer = EchoPeer(name, Keys.load_peer(Path(folder)), {neighbour: address or None}, listen=listen, lease=2.0)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start_process(keys):
    """Start peers in processes of their own, which end with the test."""
    children = []

    def start_process(name, listen, neighbour):
        words = [name, str(keys[name].folder), listen, neighbour, *sys.path]
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield start_process
    for child in children:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def ask_and_wait_until_sent(peer, neighbour):
    """Ask in a thread; return it and its outcomes once the question is sent or just being sent."""
    asked = peer.ask_in_thread(neighbour)
    wait_until(lambda: peer.transport._queries._waiting, "the question is sent")
    return asked


@deploy
@pytest.mark.parametrize("dialler", ["we", "they"])
def test_a_neighbour_that_dies_or_falls_silent_comes_back(start, start_process, keys, dialler):
    if dialler == "we":
        address = f"127.0.0.1:{find_ports(1)[0]}"
        words = ("n1", address, "n3")
        child = start_process(*words)
        peer = start("n3", keys["n3"], {"n1": address}, lease=2.0)
    else:
        peer = start("n3", keys["n3"], {"n1": None}, lease=2.0)
        words = ("n1", "127.0.0.1:0", f"n3={peer.address}")
        child = start_process(*words)
    assert wait_until(lambda: peer.try_to_ask("n1"), "the link works") == b"n3: a"
    thread, outcomes = ask_and_wait_until_sent(peer, "n1")
    child.kill()
    thread.join(WAIT / 2)  # long before the timeout
    assert "the link broke" in str(outcomes[0])
    wait_until(lambda: peer.transport.list_links() == [], "the link is gone")
    with pytest.raises(UnreachableError, match=r"Connection refused|n1 has not connected"):
        peer.ask("n1")
    child = start_process(*words)
    assert wait_until(lambda: peer.try_to_ask("n1"), "the neighbour is back") == b"n3: a"
    if dialler == "they":
        return
    thread, outcomes = ask_and_wait_until_sent(peer, "n1")
    os.kill(child.pid, signal.SIGSTOP)
    thread.join(WAIT / 2)  # the lease is two seconds
    assert "the link broke" in str(outcomes[0])
    wait_until(lambda: peer.transport.list_links() == [], "the link is gone")
    os.kill(child.pid, signal.SIGCONT)
    assert wait_until(lambda: peer.try_to_ask("n1"), "the neighbour continues") == b"n3: a"


@deploy
def test_a_question_that_is_lost_with_its_link_ends_although_there_is_another_link(start, keys, monkeypatch):
    """Zenoh forgets a question that is sent as its link breaks, and dials again within 0.1 seconds."""
    first = start("n1", keys["n1"], {"n3": None}, lease=2.0)
    with Relay(first.port) as relay:
        second = start("n3", keys["n3"], {"n1": f"127.0.0.1:{relay.port}"}, lease=2.0)
        wait_for_links(first, second)

        class ForgetfulSession:
            def get(self, key, handler, **settings):
                relay.cut_after("up", 0)
                wait_until(lambda: relay.accepted > 1, "the link breaks")
                wait_for_links(first, second)

        opened = second.transport._sessions["n1"]
        with monkeypatch.context() as patch:
            patch.setattr(opened, "session", ForgetfulSession())
            thread, outcomes = second.ask_in_thread("n1", timeout=4 * WAIT)
            thread.join(3 * WAIT)
        assert outcomes, "the question waits although its link is gone"
        assert "the link broke before the answer" in str(outcomes[0])
        assert wait_until(lambda: second.try_to_ask("n1"), "the next link works") == b"n3: a"


@deploy
def test_other_neighbours_while_questions_wait(start, keys):
    """The session is opened again on the same port; the neighbour that is removed gets no further."""
    first, second = start_pair(start, keys)
    third = start("n3", keys["n3"], {"n1": first.address})
    port = first.port
    error = wait_for_lasting_error(lambda: third.ask("n1"))
    assert "n1 refuses the certificate n3:1: it is revoked, n3 is no neighbour" in str(error)
    assert error.code == ExitCode.REFUSED
    waits = [first.ask_in_thread(second.name), second.ask_in_thread("n1")]
    wait_until(lambda: first.received and second.received, "the questions are there")
    first.transport.set_neighbours({"n3": None})
    assert first.port == port
    for thread, outcomes in waits:
        thread.join(WAIT)
        assert isinstance(outcomes[0], UnreachableError)
    assert wait_until(lambda: third.try_to_ask("n1"), "the newcomer is admitted") == b"n3: a"
    assert wait_until(lambda: first.try_to_ask("n3"), "both ways") == b"n1: a"
    assert first.transport.list_links() == ["n3"]
    assert "n1 refuses the certificate" in str(wait_for_lasting_error(lambda: second.ask("n1")))
    first.transport.set_neighbours({second.name: None, "n3": None})
    assert wait_until(lambda: second.try_to_ask("n1"), "admitted again")
    assert wait_until(lambda: third.try_to_ask("n1"), "still admitted")
    sessions = dict(first.transport._sessions)
    first.transport.set_neighbours({second.name: None, "n3": None})  # nothing changes
    assert first.transport._sessions == sessions


@deploy
def test_an_edge_that_both_sides_dial_is_named(start, keys):
    first, second = start("n1", keys["n1"], {}), start("n3", keys["n3"], {})
    first.transport.set_neighbours({"n3": second.address})
    second.transport.set_neighbours({"n1": first.address})
    for peer, neighbour in ((first, "n3"), (second, "n1")):
        error = wait_for_lasting_error(lambda: peer.ask(neighbour))  # noqa: B023
        assert "or both sides dial" in str(error)
    second.transport.set_neighbours({"n1": None})
    assert wait_until(lambda: second.try_to_ask("n1"), "one side dials") == b"n3: a"
    assert wait_until(lambda: first.try_to_ask("n3"), "both ways") == b"n1: a"


@deploy
def test_a_neighbour_that_is_frozen_delays_no_change(start, keys, monkeypatch):
    """It accepts connections and says nothing, so that every attempt to dial it takes its whole time."""
    monkeypatch.setattr("fedlap.deploy.peers.peer_session.OPEN_TIMEOUT", 2 * WAIT)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        first = start("n1", keys["n1"], {"n4": address})
        third = start("n3", keys["n3"], {"n1": first.address})
        time.sleep(0.3)  # the attempt has begun
        first.transport.set_neighbours({"n3": None})
        assert wait_until(lambda: third.try_to_ask("n1"), "the newcomer is admitted") == b"n3: a"
        first.transport.set_neighbours({"n3": None, "n4": address})
        assert wait_until(lambda: third.try_to_ask("n1"), "still admitted") == b"n3: a"


SCRIPT = """
from pathlib import Path
from fedlap.deploy.keys import Keys
from fedlap.deploy.peers.zenoh_peer import ZenohPeer

first = ZenohPeer("n1", "127.0.0.1:0", Keys.load_peer(Path(sys.argv[1])), {"n3": None}, 1000)
second = ZenohPeer("n3", None, Keys.load_peer(Path(sys.argv[2])), {"n1": f"127.0.0.1:{first.port}"}, 1000)
ask_and_exit(lambda: second.ask("n1", b"a", 600.0), first)
"""


@deploy
def test_a_process_ends_with_open_sessions_and_prints_nothing(keys):
    run_until_exit(SCRIPT, [keys["n1"].folder, keys["n3"].folder], "n3")


@deploy
def test_round_trips_of_a_model(start, keys, capsys):
    first, second = start_pair(start, keys)
    model = np.arange(PARAMETERS, dtype=np.float32).tobytes()
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        assert first.ask(second.name, model) == b"n1: " + model
        seconds.append(time.perf_counter() - begin)
    with capsys.disabled():
        median, longest = 1000 * float(np.median(seconds)), 1000 * max(seconds)
        print(f"\n{PARAMETERS} parameters both ways: median {median:.2f} ms, longest {longest:.1f} ms")
