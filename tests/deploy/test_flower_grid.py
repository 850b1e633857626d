"""The Flower app over a Grid in this process: names of clients, matching of replies, faults of nodes."""

from types import SimpleNamespace

import pytest
import torch

import fedlap as fl
from flower_runs import NAMES, load_models, read_config, simulate, write_sites

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedlap_flower import rounds, server_app
from fedlap_flower.client_app import app as client_app
from fedlap_flower.server_app import GridExchange, main

SUPERLINK = 1  # its node id, which errors of lost nodes have as their source


class ProcessGrid(Grid):
    """A Grid whose nodes run the ClientApp in this process.

    nodes: NodeInfo-like values by id. sites: node configurations by id. fault: takes a message and its reply
    and returns the replies that the server pulls.
    """

    def __init__(self, nodes, sites, fault=lambda message, reply: [reply]):
        self.nodes, self.sites, self.fault = nodes, sites, fault
        self.waiting, self.pushed = {}, []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError

    def send_and_receive(self, *_, **__):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return list(self.nodes.values())

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = str(len(self.pushed))
            message.metadata.__dict__["_message_id"] = number
            node = message.metadata.dst_node_id
            self.pushed.append((node, message.metadata.message_type))
            context = Context(7, node, self.sites[node], RecordDict(), {})
            try:
                reply = client_app(message, context)
            except Exception as error:
                reply = Message(Error(2, repr(error)), reply_to=message)
            self.waiting[number] = self.fault(message, reply)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids):
        return [reply for number in message_ids for reply in self.waiting.pop(number, [])]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    monkeypatch.setattr(server_app, "POLL", 0.0)
    for name, number in {"task": 3, "run": 7, "node": SUPERLINK}.items():  # as in the process of a ServerApp
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", number)


def describe_node(number, name="", key=b""):
    return SimpleNamespace(node_id=number, name=name, public_key=key)


def build_grid(tmp_path, *, registered=True, **settings):
    """Return a grid with a node per client, and the node configurations by name."""
    sites = write_sites(tmp_path)
    nodes = {
        number: describe_node(number, name, name.encode()) if registered else describe_node(number)
        for number, name in enumerate(NAMES, 100)
    }
    return ProcessGrid(nodes, dict(zip(nodes, sites.values(), strict=True)), **settings), sites


def configure(tmp_path, **changes):
    return read_config(folder=str(tmp_path / "server"), rounds=2, least_replies=1, deadline=5.0, **changes)


def run(grid, config):
    main(grid, Context(7, SUPERLINK, {}, RecordDict(), config))


@pytest.mark.parametrize("names", ["registered", "claimed"])
def test_a_run_over_a_grid_repeats_the_simulation(names, tmp_path):
    grid, sites = build_grid(tmp_path, registered=names == "registered")
    config = configure(tmp_path, names=names, sample=0.6, algorithm__name="scaffold")
    run(grid, config)
    result, models = simulate(config, sites), load_models(sites)
    assert all(
        torch.equal(models[name], w) for name, w in zip(result.federation.clients, result.models, strict=True)
    )
    assert grid.pushed.count((100, "evaluate")) == 1
    assert sum(kind == "train" for _, kind in grid.pushed) == 2 * 3  # three sampled clients in two rounds


def test_only_registered_names_count(tmp_path):
    """A node that claims another's name in its configuration is still the client of its key, or none."""
    grid, _ = build_grid(tmp_path)
    exchange = GridExchange(grid, "registered")
    grid.nodes[200] = describe_node(200, "north")  # a name without a key
    grid.nodes[201] = describe_node(201, "", b"key")
    assert exchange._find_nodes() == dict(zip(NAMES, range(100, 105), strict=True))
    assert grid.pushed == []  # no node is asked for its name
    grid.nodes[202] = describe_node(202, "north", b"another")
    with pytest.raises(fl.InputError, match="several nodes are called north; give every node another name"):
        exchange._find_nodes()


def test_claimed_names_are_asked_for_once(tmp_path):
    grid, _ = build_grid(tmp_path, registered=False)
    exchange = GridExchange(grid, "claimed")
    assert exchange._find_nodes() == exchange._find_nodes() == dict(zip(NAMES, range(100, 105), strict=True))
    assert len(grid.pushed) == 5
    grid.sites[300], grid.nodes[300] = {"partition-id": 3}, describe_node(300)
    assert exchange._find_nodes()["3"] == 300
    with pytest.raises(fl.InputError, match="names = 'trusted'; use 'registered' or 'claimed'"):
        GridExchange(grid, "trusted")


def test_an_error_belongs_to_the_message_it_replies_to(tmp_path, caplog):
    """The SuperLink replies for a node that it lost, with its own id as the source."""

    def fault(message, reply):
        if message.metadata.dst_node_id != 102 or message.metadata.message_type != "train":
            return [reply]
        lost = Message(Error(5, "node unavailable"), reply_to=message)
        lost.metadata.__dict__["_src_node_id"] = SUPERLINK
        return [lost]

    grid, _ = build_grid(tmp_path, fault=fault)
    config = configure(tmp_path, names="registered")
    server = rounds.train(config, GridExchange(grid, "registered"))
    assert server.merged == {name: 2 for name in NAMES if name != "south"}
    assert "south: error 5: node unavailable" in caplog.text


def test_nodes_that_are_late_or_offline_are_missing(tmp_path, caplog):
    """One node never answers, and one is offline in the first round and back in the second."""

    def fault(message, reply):
        kind = message.metadata.message_type
        return [] if (message.metadata.dst_node_id, kind) == (100, "train") else [reply]

    grid, _ = build_grid(tmp_path, fault=fault)
    config = {**configure(tmp_path, names="registered"), "deadline": 0.3}
    server = rounds.Server(config, tmp_path / "checkpoint", GridExchange(grid, "registered"))
    gone = grid.nodes.pop(104)
    server.play()
    assert server.merged == {"east": 1, "south": 1, "west": 1}
    assert "client north does not reply (late)" in caplog.text
    assert "client island does not reply (offline)" in caplog.text
    grid.nodes[104] = gone
    server.play()
    assert server.merged == {"east": 2, "south": 2, "west": 2, "island": 2}


@pytest.mark.parametrize(
    "records",
    [{}, {"reply": ConfigRecord({})}, {"reply": ConfigRecord({"facts": "{", "state": b""})}],
    ids=["empty", "no facts", "no JSON"],
)
def test_replies_of_another_form_are_refused(records, tmp_path, caplog):
    def fault(message, reply):
        spoilt = (message.metadata.dst_node_id, message.metadata.message_type) == (102, "train")
        return [Message(RecordDict(records), reply_to=message) if spoilt else reply]

    grid, _ = build_grid(tmp_path, fault=fault)
    server = rounds.train(configure(tmp_path, names="registered"), GridExchange(grid, "registered"))
    assert server.merged == {name: 2 for name in NAMES if name != "south"}
    assert "south: the reply is refused" in caplog.text


def test_a_client_that_fails_says_why(tmp_path, caplog):
    grid, _ = build_grid(tmp_path)
    grid.sites[101] = {**grid.sites[101], "name": "north"}  # it claims another's name
    with pytest.raises(fl.InputError, match="4 of 5 clients reply; start the others"):
        rounds.train(configure(tmp_path, names="registered"), GridExchange(grid, "registered"))
    assert "east: error 2:" in caplog.text
    assert "the server calls 'north' 'east'; register this node's name" in caplog.text
