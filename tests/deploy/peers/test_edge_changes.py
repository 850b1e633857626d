"""Newcomers, departures and records of rows: they need the signature of the peer that they are about."""

import json
import os
from dataclasses import replace

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedlap.deploy.certificates import is_issued_by
from fedlap.deploy.peers.answering import answer_question
from fedlap.deploy.peers.asking import choose_question
from fedlap.deploy.peers.changes import EdgeChange, JoinRequest, check_removal, describe_removal
from fedlap.deploy.peers.neighbours import START
from fedlap.deploy.peers.records import RecordBook
from fedlap.deploy.peers.signatures import CertificateSigner, NoSigner
from fedlap.deploy.peers.starting import check_setup
from fedlap.deploy.transport import ExitCode
from fedlap.deploy.wire import Message, encode_message
from fedlap.errors import InputError
from key_folders import KeyFolders
from peer_networks import TICK, PeerNetwork
from peer_plans import COUNTS, build_peer_plan, build_peer_rows

ANY = {"staleness": "any", "deadline": 15.0}
MORE_ROWS = build_peer_rows(counts=(*COUNTS, 8))  # with those of the newcomer e


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def signers(tmp_path_factory):
    """Signers of one authority; `f` has a certificate for the name e of another one."""
    folders = [KeyFolders(tmp_path_factory.mktemp("keys")) for _ in range(2)]
    found = {name: CertificateSigner(folders[0].sign_client(name).folder) for name in "abcde"}
    return found | {"f": CertificateSigner(folders[1].sign_client("e").folder)}


@pytest.fixture
def network(tmp_path, signers):
    """Four peers on a ring that sign, before their first round."""

    def start(peers=ANY, **changes):
        return PeerNetwork(
            tmp_path, build_peer_plan(peers=peers, **changes), MORE_ROWS, signers=signers, newcomers="e"
        )

    return start


def request_join(plan, neighbours):
    return JoinRequest("e", neighbours, None, plan.digest)


def admit(network, request, path):
    """Admit a newcomer at the neighbours that its request names, as their operators do with the file."""
    request.save(path, network.signers["e"])
    for name in request.neighbours:
        known = JoinRequest.load(path, network.plan, network.signers[name])
        assert known == request
        network.runs[name].request_change(known.admit(name))


# Newcomers.


@pytest.mark.parametrize("staleness", [0, "any"])
def test_a_newcomer_starts_at_the_weighted_mean_and_both_ends_count_the_edge_from_one_round(
    staleness, network, tmp_path
):
    network = network({"staleness": staleness, "deadline": 15.0}, rounds=14, evaluate_every=0).reach(3)
    request = request_join(network.plan, {"a": 2.0, "b": 1.0})
    admit(network, request, tmp_path / "e.json")
    network.start("e", join=request, federation=MORE_ROWS)
    network.run_until(lambda: network.list_events("rejoined", "e"))
    newcomer = network.runs["e"].peer
    models = {name: newcomer.neighbours[name].models for name in "ab"}
    newest = {name: known[max(known)] for name, known in models.items()}
    torch.testing.assert_close(newcomer.worker.personal_model(None), (2 * newest["a"] + newest["b"]) / 3)
    network.run_until(lambda: newcomer.round > max(network.runs[name].round for name in "ab") - 1 > 8)
    for name in "ab":
        first = network.runs[name].peer.neighbours["e"].first_round
        assert first == newcomer.neighbours[name].first_round > 3
        (joined,) = network.list_events("joined", name)
        assert (joined["name"], joined["round"]) == ("e", first)
        assert network.runs[name].peer.neighbours["e"].weight == request.neighbours[name]
    assert network.list_events("joined", "c") == []
    network.kill("e")
    network.kill("a")
    for name in "ea":  # With their disks: the edge is in the checkpoint.
        network.start(name)
    network.run()
    assert network.runs["a"].peer.neighbours["e"].weight == 2.0
    assert {run.round for run in network.runs.values()} == {14}
    assert not network.list_events("refused")


def test_a_request_is_refused_unless_the_newcomer_has_signed_it_for_this_plan(network, signers, tmp_path):
    plan, path = network().plan, tmp_path / "e.json"
    request = request_join(plan, {"a": 1.0})
    for signer, changed, words in (
        (signers["b"], request, "is not signed by it .the certificate is of another peer or authority"),
        (signers["f"], request, "is not signed by it .the certificate is of another peer or authority"),
        (NoSigner(), request, "is not signed by it"),
        (signers["e"], replace(request, plan="0" * 64), "a request for another plan"),
    ):
        changed.save(path, signer)
        with pytest.raises(InputError, match=words):
            JoinRequest.load(path, plan, signers["a"])
    request.save(path, signers["e"])
    path.write_text(path.read_text().replace("1.0", "9.0"))
    with pytest.raises(InputError, match=r"is not signed by it .the signature is wrong"):
        JoinRequest.load(path, plan, signers["a"])
    with pytest.raises(InputError, match="does not ask to be a neighbour of 'c', but of 'a'"):
        request.admit("c")


@pytest.mark.parametrize("name", ["", " e", "x" * 65, "e\n", 5])
def test_a_name_that_the_log_cannot_hold_is_refused_in_a_command_and_in_a_file(name, network, tmp_path):
    plan, path = network().plan, tmp_path / "e.json"
    request_join(plan, {"a": 1.0}).save(path, NoSigner())
    path.write_text(json.dumps({**json.loads(path.read_text()), "name": name}))
    for use in (
        lambda: replace(request_join(plan, {"a": 1.0}), name=name),
        lambda: JoinRequest.load(path, plan, NoSigner()),
        lambda: EdgeChange.parse({"kind": "join", "name": name, "weight": 1.0}),
    ):
        with pytest.raises(InputError, match="expected 1 to 64 printable characters"):
            use()


def test_an_edge_with_which_mixing_could_diverge_is_refused(network):
    network = network().reach(1)
    run = network.runs["a"]
    coupling = run.setup.algorithm.coupling
    with pytest.raises(InputError, match=r"which is too large: .* > 2, so mixing would diverge"):
        run.request_change(EdgeChange("join", "e", 3 / coupling.step))
    assert "e" not in run.peer.neighbours
    run.request_change(EdgeChange("join", "e", 0.6 / coupling.step))
    assert "e" in run.peer.neighbours
    assert [name for name, text in network.texts if "models that are late may lead to other models" in text]


def test_a_run_with_implicit_mixing_admits_nobody(network):
    implicit = {"name": "dfedu", "mixing": "implicit", "exchanges": 2, "strength": 5.0}
    run = network({"staleness": 0}, algorithm=implicit).reach(1).runs["a"]
    with pytest.raises(InputError, match="implicit mixing depends on the whole graph"):
        run.request_change(EdgeChange("join", "e", 1.0))


# Departures.


def ask_to_remove(network, asker, statement, signer):
    """Send the statement of a removal to a; return the answer."""
    question = Message("change", {"statement": statement, "proof": signer.sign(statement)})
    return answer_question(network.runs["a"], asker, encode_message(question), network.now)[1]


def test_a_neighbour_removes_its_own_edge_alone_and_with_its_signature(network, signers):
    network = network().reach(2)
    plan, run = network.plan, network.runs["a"]
    departure, others = (describe_removal("leave", name, plan) for name in "bd")
    for statement, signer in (
        (others, signers["d"]),  # of another neighbour, which has signed it
        (departure, signers["d"]),
        (departure, signers["f"]),
        (departure, NoSigner()),
        ({**departure, "plan": "0" * 64}, signers["b"]),
        ({**departure, "kind": "join"}, signers["b"]),
    ):
        answer = ask_to_remove(network, "b", statement, signer)
        assert (answer.kind, answer.facts["code"]) == ("refused", ExitCode.REFUSED)
        assert set(run.peer.neighbours) == {"b", "d"}
    with pytest.raises(InputError, match="is no removal of its own edges"):
        check_removal("b", others, signers["d"].sign(others), plan, signers["a"])
    assert {facts["name"] for facts in network.list_events("not-changed", "a")} == {"b"}
    assert ask_to_remove(network, "b", departure, signers["b"]).kind == "ack"
    assert set(run.peer.neighbours) == {"d"}
    (left,) = network.list_events("left", "a")
    assert left["name"] == "b"


def test_a_removal_waits_for_a_certificate_that_is_not_signed_yet(network, signers):
    network = network().reach(2)
    run, path = network.runs["a"], signers["a"].folder / "certificate.pem"
    content = path.read_bytes()
    path.unlink()
    try:
        run.request_change(EdgeChange("eject", "b"))
        assert choose_question(run, "b", network.now) is None
        assert "certificate.pem' cannot be read" in run.links["b"].problem
    finally:
        path.write_bytes(content)
    assert choose_question(run, "b", network.now) is None
    assert choose_question(run, "b", network.now + TICK).kind == "change"


# Records of rows.


def find_record(network, name="b"):
    """Return the record that a peer has written about its rows."""
    network.sweep()
    (record,) = (known for known in network.runs[name].records.list_all() if known["name"] == name)
    return record


def test_parts_that_are_not_signed_are_dropped_from_a_record(network, signers):
    network = network()
    record, book = find_record(network), RecordBook(network.plan, signers["a"])
    assert book.add({**record, "more": "x" * 1000, "proof": {**record["proof"], "more": "x"}})
    assert book.list_all() == [record]


def test_a_record_that_would_make_messages_too_long_is_refused(network, signers):
    """A neighbour can lengthen the certificate of another peer: text around it is allowed."""
    network = network(limits={"most_bytes": 100_000})
    record, book = find_record(network), RecordBook(network.plan, signers["a"])
    assert RecordBook(network.plan, signers["a"]).add(lengthen_certificate(record, 10_000))
    with pytest.raises(InputError, match=r"has 2\d,\d{3} bytes; expected at most 24,750.*raise most_bytes"):
        book.add(lengthen_certificate(record, 25_000))
    assert book.list_all() == []


def lengthen_certificate(record, size):
    proof = record["proof"]
    return {**record, "proof": {**proof, "certificate": proof["certificate"] + "\n" * (size // 2)}}


def test_a_proof_that_json_cannot_hold_is_refused(network):
    """Without certificates nobody checks a proof, but it is passed on."""
    network = network()
    record, book = find_record(network), RecordBook(network.plan, NoSigner())
    with pytest.raises(InputError, match="a record is damaged"):
        book.add({**record, "proof": {"signature": float("nan")}})


SIGNED_BY_ECDSA, KEY_OF_ECDSA = (bytes.fromhex(text) for text in ("2a8648ce3d040302", "2a8648ce3d0201"))


@pytest.mark.parametrize("known", [SIGNED_BY_ECDSA, KEY_OF_ECDSA], ids=["signature", "key"])
def test_a_certificate_with_an_unknown_algorithm_proves_nothing(known, network, signers):
    network = network()
    record = find_record(network)
    certificate = x509.load_pem_x509_certificate(record["proof"]["certificate"].encode())
    content = certificate.public_bytes(serialization.Encoding.DER)
    changed = x509.load_der_x509_certificate(content.replace(known, known[:-1] + b"\x7f"))
    (authority,) = x509.load_pem_x509_certificates((signers["a"].folder / "authority.pem").read_bytes())
    assert is_issued_by(certificate, authority)
    assert not is_issued_by(changed, authority)
    text = changed.public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(InputError, match="'b' is not signed by it"):
        RecordBook(network.plan, signers["a"]).add(
            {**record, "proof": {**record["proof"], "certificate": text}}
        )


def test_a_record_needs_the_signature_of_its_peer(network, signers):
    network = network()
    record = find_record(network)
    plan, book = network.plan, RecordBook(network.plan, signers["a"])
    statement = {part: record[part] for part in ("name", "shapes", "moments", "plan")}
    more_rows = {**record["shapes"], "train_rows": record["shapes"]["train_rows"] + 1}
    for changed, words in (
        ({**record, "shapes": more_rows}, "is not signed by it .the signature is wrong"),
        ({**record, "name": "c"}, "'c' is not signed by it .the certificate is of another peer"),
        ({**record, "proof": signers["c"].sign(statement)}, "is of another peer or authority"),
        ({**record, "proof": {}}, "is not signed by it"),
        ({**record, "plan": "0" * 64}, "the record of 'b' is of another plan"),
        ({"name": "b"}, "a record is damaged"),
    ):
        with pytest.raises(InputError, match=words):
            book.add(changed)
    assert not book.add({**record, "name": "e"})  # It is no client of the plan.
    assert book.list_missing() == list(plan.clients)
    assert book.add(record)
    assert not book.add(record)
    assert book.list_missing() == ["a", "c", "d"]


# The start.


def test_a_setup_with_floats_in_place_of_integers_is_read_as_the_own_one(network):
    run = network().reach(1).runs["a"]
    description = json.loads(json.dumps(run.agreed.describe()))
    graph = description["graph"]
    graph["edges"] = [[float(number) for number in edge] for edge in graph["edges"]]
    assert check_setup(run, description).digest == run.agreed.digest


@pytest.mark.parametrize(("peers", "is_said"), [(ANY, True), ({"staleness": 0}, False)])
def test_a_peer_says_at_the_start_that_late_models_may_lead_to_divergence(peers, is_said, network):
    """In a complete graph of four with weights 1, the product is 3·lr·R·strength."""
    algorithm = {"name": "dfedu", "lr": 0.1, "local_steps": 5, "strength": 0.7}
    network = network(peers, algorithm=algorithm, graph={"name": "complete"}).reach(1)
    informed = [name for name, text in network.texts if "lr·R·strength·degree = " in text]
    assert sorted(informed) == (list("abcd") if is_said else [])
    assert all(one.newest >= START for one in network.runs["a"].peer.neighbours.values())
