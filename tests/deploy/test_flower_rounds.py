"""The Flower app without Flower: its rounds repeat the simulation, and faults lose nothing."""

import logging
import shutil
import stat
from pathlib import Path

import pytest
import torch

import fedlap as fl
from fedlap.training.state import map_state
from fedlap.training.state_bytes import decode_state, encode_state
from fedlap_flower import rounds
from fedlap_flower.client import answer
from fedlap_flower.rounds import Server, train
from fedlap_flower.task import build_graph
from flower_runs import NAMES, DirectExchange, load_models, read_config, simulate, write_sites

pytestmark = pytest.mark.deploy

METHODS = [
    name if name in ("fedu", "scaffold", "mocha", "perfedavg") else pytest.param(name, marks=pytest.mark.slow)
    for name, method in fl.ALGORITHMS.items()
    if hasattr(method, "merge") and not hasattr(method, "view")
]
SETTINGS = {"fedper": {"model__name": "mlp"}, "mocha": {"graph__name": "ring"}}


@pytest.fixture
def sites(tmp_path):
    return write_sites(tmp_path)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(rounds, "PAUSE", 0.0)


def configure(tmp_path, name="fedu", **changes):
    changes = {"folder": str(tmp_path / "server"), "rounds": 3, "least_replies": 1, **changes}
    config = read_config(algorithm__name=name, **SETTINGS.get(name, {}), **changes)
    if name == "mocha":  # its steps have no length
        del config["algorithm.lr"]
    return config


def assert_equal(sites, result):
    models = load_models(sites)
    for name, expected in zip(result.federation.clients, result.models, strict=True):
        assert torch.equal(models[name], expected), name


@pytest.mark.parametrize("name", METHODS)
def test_rounds_repeat_the_simulation(name, sites, tmp_path):
    config = configure(tmp_path, name, sample=0.6)
    train(config, DirectExchange(sites))
    assert_equal(sites, simulate(config, sites))


def test_edges_make_a_graph(tmp_path):
    edges = "north:east:2.0, east:south, west:island:0.5"
    graph = build_graph(configure(tmp_path, graph__edges=edges))
    expected = [("north", "east", 2.0), ("east", "south", 1.0), ("west", "island", 0.5)]
    matrix = fl.Graph.from_edges(expected, NAMES).weights.matrix()
    assert graph.clients == NAMES
    assert (graph.weights.matrix() - matrix).count_nonzero() == 0


def test_real_targets(tmp_path):
    sites = write_sites(tmp_path, real=True)
    config = configure(tmp_path, labels=0, scale="none")
    score = train(config, DirectExchange(sites)).evaluate()
    result = simulate(config, sites)
    assert_equal(sites, result)
    assert score.rmse == pytest.approx(result.scores[-1].rmse, abs=1e-12)


class KilledError(Exception):
    """The end of the server's process."""


@pytest.mark.parametrize("name", ["fedu", "scaffold"])
@pytest.mark.parametrize("before_merge", [True, False])
def test_a_server_that_ends_resumes_in_a_new_run(name, before_merge, sites, tmp_path, monkeypatch):
    """End it in round 2, when clients have replied: before it merges, or before it writes the checkpoint."""
    config = configure(tmp_path, name)
    server = Server(config, tmp_path / "server" / "digits.checkpoint", DirectExchange(sites))
    server.play()

    def end(*_):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "concatenate_states" if before_merge else "write_state_file", end)
        with pytest.raises(KilledError):
            server.play()
    exchange = DirectExchange(sites)
    train(config, exchange)
    assert_equal(sites, simulate(config, sites))
    assert {verb for verb, _, _ in exchange.asked} == {"train", "evaluate"}
    assert min(round for verb, _, round in exchange.asked if verb == "train") == 2


def test_lost_replies_are_asked_for_again(sites, tmp_path):
    lost = {("train", "north"), ("train", "east"), ("describe", "west"), ("evaluate", "island")}

    def lose(verb, name, reply):
        if (verb, name) in lost:
            lost.remove((verb, name))
            return None
        return reply

    config = configure(tmp_path, "scaffold", least_replies=5)
    exchange = DirectExchange(sites, lose)
    train(config, exchange)
    repeated = [name for verb, name, round in exchange.asked if (verb, round) == ("train", 1)]
    assert repeated == [*NAMES, *NAMES]
    assert [name for verb, name, _ in exchange.asked if verb == "describe"] == [*NAMES, "west"]
    assert_equal(sites, simulate(config, sites))


def spoil(change):
    """Return a fault of one client: its first upload is changed."""
    faults = []

    def lose(verb, name, reply):
        if verb == "train" and name == "south" and not faults:
            faults.append(name)
            return reply[0], change(reply[1])
        return reply

    return lose


FAULTS = {
    "NaN": lambda content: encode_state(map_state(lambda row: row * torch.nan, decode_state(content))),
    "infinity": lambda content: encode_state(map_state(lambda row: row / 0, decode_state(content))),
    "short": lambda content: encode_state(map_state(lambda row: row[:, 1:], decode_state(content))),
    "two rows": lambda content: encode_state(map_state(lambda row: row.repeat(2, 1), decode_state(content))),
    "other type": lambda content: encode_state(map_state(lambda row: row.float(), decode_state(content))),
    "truncated": lambda content: content[:-1],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_invalid_replies_are_missing_replies(fault, sites, tmp_path, caplog):
    """The round is merged without the client; that is FedU with a smaller cohort."""
    config = configure(tmp_path, rounds=1)
    path = tmp_path / "server" / "digits.checkpoint"
    servers = []
    for lose in (spoil(FAULTS[fault]), lambda verb, name, reply: None if name == "south" else reply):
        server = Server(config, path, DirectExchange(sites))
        server.exchange.lose = lose
        with caplog.at_level(logging.WARNING, "flwr"):
            server.play()
        servers.append(server)
        path.unlink()
    assert "the reply of client south is refused" in caplog.text
    assert all(server.merged == dict.fromkeys(set(NAMES) - {"south"}, 1) for server in servers)
    assert torch.equal(*(server.state.models.values for server in servers))


def test_too_few_replies_stop_the_run_and_not_the_training(sites, tmp_path):
    config = configure(tmp_path, least_replies=3)
    exchange = DirectExchange(sites)
    server = Server(config, tmp_path / "server" / "digits.checkpoint", exchange)
    server.play()
    exchange.lose = lambda verb, name, reply: reply if name in ("north", "east") else None
    with pytest.raises(
        fl.InputError, match=r"train has 2 replies; expected at least 3; .* start a run again"
    ):
        server.play()
    train(config, DirectExchange(sites))
    assert_equal(sites, simulate(config, sites))


def test_a_new_training_does_not_use_old_private_state(sites, tmp_path):
    """Without its checkpoint a run of an old name starts from the first round, and so do the clients."""
    config = configure(tmp_path, "scaffold", rounds=1)
    train(config, DirectExchange(sites))
    shutil.rmtree(tmp_path / "server")
    server = train(config, DirectExchange(sites))
    for name, site in sites.items():
        assert len(list(Path(site["state"]).iterdir())) == 2
        found = load_models({name: site}, server.plan["id"])[name]
        result = simulate(config, sites)
        assert torch.equal(found, result.models[result.federation.clients.index(name)])


def test_files_of_a_client_are_its_own(sites, tmp_path):
    """Its folder is closed to others; a marked value of its rows is in no message and no server's file."""
    config, marked = configure(tmp_path, "scaffold", rounds=1, scale="none"), "0.123456789"
    lines = Path(sites["north"]["data"]).read_text().splitlines()
    lines[1:] = [",".join([marked, *line.split(",")[1:]]) for line in lines[1:]]
    Path(sites["north"]["data"]).write_text("\n".join(lines))
    sent = []
    exchange = DirectExchange(sites, lambda verb, name, reply: sent.append(reply) or reply)
    server = train(config, exchange)
    (folder,) = Path(sites["north"]["state"]).iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {"north.state", "north.safetensors", "north.json"}
    pattern = torch.tensor(float(marked), dtype=torch.float64).numpy().tobytes()
    contents = [server.checkpoint.read_bytes(), *(repr(facts).encode() + state for facts, state in sent)]
    assert not any(pattern in content or marked.encode() in content for content in contents)


REFUSED = {
    "labels = 0": ({"labels": 0}, "use scale = 'none'"),
    "pooled": ({"scale": "pooled"}, "use scale = 'none', or 'client'"),
    "peers": ({"name": "dfedu"}, "DFedU has no server"),
    "rows": ({"graph__name": "similar"}, "graph 'similar' needs a file or the rows of all clients"),
    "auto": ({"algorithm__strength": "auto"}, "strength = 'auto' needs the rows of all clients"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_need_all_rows_are_refused(case, tmp_path):
    changes, message = REFUSED[case]
    with pytest.raises(fl.InputError, match=message):
        train(configure(tmp_path, **changes), DirectExchange({}))


def test_a_resumed_run_has_the_same_plan(sites, tmp_path):
    train(configure(tmp_path, rounds=1), DirectExchange(sites))
    with pytest.raises(fl.InputError, match=r"algorithm\.lr, seed: other than before; use another `run`"):
        train(configure(tmp_path, seed=1, algorithm__lr=0.5), DirectExchange(sites))
    assert train(configure(tmp_path, rounds=2, deadline=9.0), DirectExchange(sites)).round == 2


def test_clients_differ_in_columns(sites, tmp_path):
    path = Path(sites["east"]["data"])
    path.write_text("\n".join(line.partition(",")[2] for line in path.read_text().splitlines()))
    with pytest.raises(fl.InputError, match="clients differ in inputs; use the same columns"):
        train(configure(tmp_path), DirectExchange(sites))


@pytest.mark.parametrize(
    "facts",
    [{}, [], {"rows": 0}, {"rows": "7"}, {"rows": True}, {"inputs": [4.0]}, {"outputs": 10**12}, {"x": 1}],
    ids=str,
)
def test_invalid_descriptions_are_missing_replies(facts, sites, tmp_path):
    def lose(verb, name, reply):
        changed = {**reply[0], **facts} if isinstance(facts, dict) and facts else facts
        return (changed, reply[1]) if name == "west" else reply

    with pytest.raises(fl.InputError, match="4 of 5 clients reply; start the others"):
        train(configure(tmp_path), DirectExchange(sites, lose))


def test_a_client_refuses_what_is_not_for_it(sites, tmp_path):
    server = Server(configure(tmp_path), tmp_path / "checkpoint", DirectExchange(sites))
    for changes, message in (
        ({"client": "east"}, "the server calls 'north' 'east'; register this node's name"),
        ({"plan": {**server.plan, "fedlap": "0.0"}}, "the server has fedlap 0.0; install it here"),
        ({"plan": {**server.plan, "id": "../../other"}}, "name '../../other' cannot name a file"),
        ({"plan": {**server.plan, "rows": [1] * 5}}, "client 'north' has 7 training rows; expected 1"),
    ):
        facts = {"plan": server.plan, "client": "north", "merged": 0, "round": 1, **changes}
        with pytest.raises(fl.InputError, match=message):
            answer("train", facts, encode_state(torch.zeros(1, 15).double()), sites["north"])
    assert not list(tmp_path.glob("**/*.state"))
