"""A run between peers without faults is the simulation, bit for bit, also in its scores and its bytes."""

import os
import shutil

import pytest
import torch

from deployments import simulate
from fedlap.deploy.peers.storage import PeerStorage
from fedlap.errors import InputError
from fedlap.training.scores import Tally, compute_score
from method_kinds import PEER_METHODS
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows

IMPLICIT = {"name": "dfedu", "mixing": "implicit", "exchanges": 3, "strength": 5.0}
ANY = {"staleness": "any"}


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def plan_scale(scale, real, **changes):
    labels = {"task": "regression"} if real else {"task": "classification", "labels": ["x", "y", "z"]}
    data = {"label": "y", "features": ["u", "v", "w", "t"], "scale": scale, **labels}
    return build_peer_plan(real, data=data, **changes)


def join_sums(tallies, rows):
    """Return the sums of all clients over their training rows or test rows."""
    columns = zip(*(getattr(tally, rows) for tally in tallies), strict=True)
    return Tally(*(None if column[0] is None else torch.cat(column) for column in columns))


@pytest.mark.parametrize(
    ("real", "scale", "changes"),
    [
        (False, "none", {}),
        (False, "none", {"peers": ANY}),
        (False, "none", {"algorithm": {"name": "dfedu", "compression": "int8"}}),
        (False, "none", {"algorithm": {"name": "dfedu", "compression": "float16"}, "peers": ANY}),
        (
            False,
            "none",
            {"algorithm": {"name": "dfedu", "compression": "top-k:0.3"}, "graph": {"name": "star"}},
        ),
        (False, "client", {"algorithm": IMPLICIT}),
        (False, "pooled", {"peers": ANY, "graph": {"name": "complete"}}),
        (True, "none", {"algorithm": IMPLICIT}),
        (True, "client", {"peers": ANY}),
        (True, "pooled", {"graph": {"name": "star"}}),
    ],
)
def test_a_run_without_faults_is_the_simulation(real, scale, changes, tmp_path):
    plan, federation = plan_scale(scale, real, **changes), build_peer_rows(real)
    network, result = PeerNetwork(tmp_path, plan, federation).run(), simulate(plan, federation)
    assert torch.equal(network.models, result.models)

    edges = {frozenset((name, other)) for name, run in network.runs.items() for other in run.links}
    graph = plan.build_graph(plan.clients)
    assert len(edges) == graph.edges
    ends = [end for run in network.runs.values() for end in run.peer.neighbours.values()]
    assert sum(end.bytes_up for end in ends) == result.scores[-1].bytes_up
    assert sum(end.bytes_down for end in ends) == result.scores[-1].bytes_down
    assert len({(end.bytes_up, end.bytes_down) for end in ends}) == 1
    assert {event for _, event, _ in network.events} == {
        "run-started", "round-finished", "model-written", "neighbour-finished", "run-finished",
    }  # fmt: skip
    informed = [name for name, text in network.texts if text.startswith("note: it is not proved that")]
    assert informed == [name for name, _ in network.texts]
    assert sorted(informed) == (list("abcd") if "peers" in changes else [])

    tallies = [PeerStorage(tmp_path / name).read_tallies() for name in plan.clients]
    assert all(list(known) == [2, 4, 6] for known in tallies)
    for score in result.scores:
        parts = [known[score.round].tally for known in tallies]
        train, test = join_sums(parts, "train"), join_sums(parts, "test")
        ridge = torch.cat([part.ridge for part in parts])
        sums = compute_score(score.round, train, test, ridge, 0.0, None, (0, 0), 0.0)
        assert sums.train_loss == pytest.approx(score.train_loss, rel=1e-12)
        for name in ("accuracy", "loss", "rmse", "mae", "r2"):
            found, expected = getattr(sums, name), getattr(score, name)
            assert found == expected or found == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize("order", ["dcba", "bdac", "cabd"])
def test_the_order_in_which_peers_work_and_ask_changes_nothing(order, tmp_path):
    plan, federation = build_peer_plan(algorithm=IMPLICIT, rounds=3), build_peer_rows()
    network = PeerNetwork(tmp_path, plan, federation, names=order).run()
    assert torch.equal(network.models, simulate(plan, federation).models)


def test_a_peer_far_ahead_of_the_others_waits_for_each_round(tmp_path):
    """With staleness 0 neighbours are at most one round apart, however slow one of them is."""
    plan, federation = build_peer_plan(), build_peer_rows()
    network = PeerNetwork(tmp_path, plan, federation)
    spreads, step = set(), network._step

    def step_rarely(name):
        if name != "c" or network.sweeps % 5 == 0:
            step(name)
        rounds = {name: run.round for name, run in network.runs.items()}
        spreads.update(abs(rounds[one] - rounds[other]) for one, other in ("ab", "bc", "cd", "da"))

    network._step = step_rarely
    assert torch.equal(network.run().models, simulate(plan, federation).models)
    assert spreads == {0, 1}
    assert network.list_events("refused") == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedu", "needs a server"),
        ("global", "needs all rows in one place"),
        *(
            (name, "has no checks of late models and new edges")
            for name in sorted({*PEER_METHODS} - {"dfedu"})
        ),
    ],
)
def test_a_plan_of_another_method_is_refused(name, words):
    with pytest.raises(InputError, match=words) as caught:
        build_peer_plan(algorithm={"name": name})
    assert caught.value.field == "algorithm.name"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"staleness": -1}, "staleness = -1; expected an integer of at least 0"),
        ({"staleness": "all"}, "staleness = 'all'; expected 'any' or a number of rounds"),
        ({"staleness": 1.5}, "staleness = 1.5; expected an integer"),
        ({"forget": -1}, "forget = -1; expected an integer of at least 0"),
        ({"staleness": 3, "forget": 4}, "a peer waits for a neighbour whose model is 3 rounds old"),
        ({"deadline": 0}, "deadline = 0"),
        ({"clip": -1.0}, "clip = -1.0"),
        ({"addresses": {"z": "127.0.0.1:1"}}, "'z'"),
    ],
)
def test_settings_of_peers_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(InputError, match=words) as caught:
        build_peer_plan(peers=settings)
    assert caught.value.field.removeprefix("peers.") == [*settings][-1]


@pytest.mark.parametrize("staleness", ["any", 3])
@pytest.mark.parametrize("exchanges", [1, 3])
def test_implicit_mixing_needs_every_model_of_a_round(exchanges, staleness):
    algorithm = IMPLICIT | {"exchanges": exchanges}
    with pytest.raises(InputError, match="implicit mixing needs every model of a round") as caught:
        build_peer_plan(algorithm=algorithm, peers={"staleness": staleness})
    assert caught.value.field == "peers.staleness"
    assert build_peer_plan(algorithm=algorithm).peers.most_age == 0


def test_nobody_proceeds_before_its_neighbours_listen(tmp_path):
    plan, federation = build_peer_plan(peers=ANY), build_peer_rows()
    network = PeerNetwork(tmp_path, plan, federation, names="abc")
    for _ in range(20):
        network.sweep()
    assert {run.peer for run in network.runs.values()} == {None}
    assert "d" in network.runs["b"].list_awaited(network.now)
    network.start("d")
    assert torch.equal(network.run().models, simulate(plan, federation).models)


def test_all_peers_agree_on_one_setup(tmp_path):
    plan, federation = plan_scale("pooled", True), build_peer_rows(True)
    network = PeerNetwork(tmp_path, plan, federation).reach(1)
    assert len({run.agreed.digest for run in network.runs.values()}) == 1
    factors = torch.stack([run.constants.features[1] for run in network.runs.values()])
    assert torch.equal(factors, factors[:1].expand_as(factors))


def test_a_peer_that_is_restarted_with_other_rows_names_the_number_of_the_start(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows()).reach(1)
    network.kill("a")
    network.federation = build_peer_rows(counts=(12, 14, 6, 11))
    words = "'a' has 9 training rows, and had 7 when the run began; use the rows of that time"
    with pytest.raises(InputError, match=words):
        network.start("a")


@pytest.mark.parametrize("compression", ["int8", "top-k:0.3"])
def test_compressed_peers_that_miss_messages_are_sent_whole_models(compression, tmp_path):
    """A peer without a model that a difference refers to gets the public model: the bits are the same."""
    algorithm = {"name": "dfedu", "compression": compression}
    plan, federation = plan_scale("none", False, algorithm=algorithm, rounds=12), build_peer_rows(False)
    network = PeerNetwork(tmp_path, plan, federation, cut=lambda one, other, sweep: sweep % 4 == 1)
    for name in "bca":
        network.reach(network.runs["a"].round + 1)
        network.kill(name)
        network.sweep()
        network.start(name)
    assert torch.equal(network.run().models, simulate(plan, federation).models)


@pytest.mark.parametrize("staleness", [0, "any"])
def test_a_peer_without_its_disk_starts_at_the_weighted_mean_of_its_neighbours_models(staleness, tmp_path):
    edges = tmp_path / "edges.csv"
    edges.write_text("from,to,weight\na,b,2\na,d,0.5\nb,c,1\nc,d,1\n")
    graph, peers = {"name": "file", "path": str(edges)}, {"staleness": staleness, "deadline": 15.0}
    plan = plan_scale("none", False, graph=graph, peers=peers, rounds=12)
    network = PeerNetwork(tmp_path, plan, build_peer_rows(False)).reach(3)
    network.kill("a", disk=False)
    network.sweep()
    network.start("a")
    network.run_until(lambda: network.list_events("rejoined", "a"))
    peer = network.runs["a"].peer
    models = {}
    for name in "bd":
        turn = peer.neighbours[name].newest
        assert turn.round >= 3
        models[name] = network.runs[name].peer.sent[turn].public  # as the neighbour itself has it
    assert not torch.equal(models["b"], models["d"])
    torch.testing.assert_close(
        peer.worker.personal_model(None), (2 * models["b"] + 0.5 * models["d"]) / 2.5, rtol=1e-6, atol=1e-7
    )
    network.run()


@pytest.mark.parametrize("compression", ["int8", "top-k:0.3"])
def test_compressed_peers_without_their_disk_continue(compression, tmp_path):
    algorithm = {"name": "dfedu", "compression": compression}
    plan = plan_scale("none", False, algorithm=algorithm, rounds=12, peers=ANY)
    network = PeerNetwork(tmp_path, plan, build_peer_rows(False)).reach(3)
    network.kill("b")
    shutil.rmtree(tmp_path / "b")
    network.start("b")
    network.run()
    assert network.models.isfinite().all()
    assert network.list_events("rejoined", "b")
    assert not network.list_events("refused")
