"""The Flower app over a Grid in this process: names of clients, matching of replies, faults of nodes."""

import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fedlap as fl
from deployments import simulate as simulate_plan
from flower_runs import NAMES, load_models, simulate, write_plan, write_sites

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedlap.deploy import run_state, wire
from fedlap.deploy.event_log import read_events
from fedlap_flower import server_app
from fedlap_flower.client_app import answer
from fedlap_flower.client_app import app as client_app

SUPERLINK = 1  # its node id, which errors of lost nodes have as their source
MOST_POLLS = 300  # of a run; one that needs more is stuck
TICK = 0.05  # seconds of the clock between polls


class StuckError(Exception):
    """The run does not end."""


class KilledError(Exception):
    """The end of the server's process."""


class Clock:
    """A clock that only the pauses of the server move, so that deadlines do not depend on the machine."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += TICK


class ProcessGrid(Grid):
    """A Grid whose nodes run the ClientApp in this process.

    nodes: NodeInfo-like values by id. sites: node configurations by id. fault: takes a message and its reply
    and returns the replies that the server pulls.
    """

    def __init__(self, nodes, sites, fault=lambda message, reply: [reply]):
        self.nodes, self.sites, self.fault = nodes, sites, fault
        self.waiting, self.pushed, self.polls = {}, [], 0

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
        self.polls += 1
        if self.polls > MOST_POLLS:
            raise StuckError
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

    def count(self, node, kind):
        return self.pushed.count((node, kind))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    for name in ("PAUSE", "POLL", "LOOK"):
        monkeypatch.setattr(server_app, name, 0.0)
    monkeypatch.setattr(server_app, "time", Clock())
    monkeypatch.setattr(run_state, "ASK_AGAIN_SECONDS", 0.0)
    for name, number in {"task": 3, "run": 7, "node": SUPERLINK}.items():  # as in the process of a ServerApp
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", number)


def describe_node(number, name="", key=b""):
    return SimpleNamespace(node_id=number, name=name, public_key=key)


def build_grid(tmp_path, *, registered=True, real=False, **settings):
    """Return a grid with a node per client, and the node configurations by name."""
    sites = write_sites(tmp_path, real=real)
    nodes = {
        number: describe_node(number, name, name.encode()) if registered else describe_node(number)
        for number, name in enumerate(NAMES, 100)
    }
    return ProcessGrid(nodes, dict(zip(nodes, sites.values(), strict=True)), **settings), sites


def configure(tmp_path, algorithm="fedu", names="registered", **changes):
    return write_plan(tmp_path, algorithm, **changes) | {"names": names}


def assert_equal(sites, config):
    models, expected = load_models(sites), simulate(config)
    for name in sites:
        assert torch.equal(models[name], expected[name]), name


@pytest.mark.parametrize("algorithm", ["fedu", "scaffold", "perfedavg"])
@pytest.mark.parametrize("names", ["registered", "claimed"])
def test_a_run_repeats_the_simulation(names, algorithm, tmp_path):
    grid, sites = build_grid(tmp_path, registered=names == "registered")
    config = configure(tmp_path, algorithm, names, sample=0.6, evaluate_every=2)
    server_app.run(config, grid)
    assert_equal(sites, config)
    assert sum(kind == "train" for _, kind in grid.pushed) == 3 * 3  # three sampled clients in each round


def test_real_targets_and_pooled_constants(tmp_path):
    grid, sites = build_grid(tmp_path, real=True)
    data = {"label": "y", "features": ["p", "q", "r", "s"], "task": "regression", "scale": "pooled"}
    config = configure(tmp_path, real=True, data=data)
    server_app.run(config, grid)
    assert_equal(sites, config)


def test_nodes_of_a_simulation_are_counties(tmp_path):
    """The plan of the app itself, and nodes that know their number alone."""
    nodes = {number: describe_node(number) for number in range(100, 104)}
    states = {"state": str(tmp_path / "states")}
    sites = {number: {"partition-id": number - 100, "num-partitions": 4, **states} for number in nodes}
    config = write_plan(tmp_path) | {"plan": "plan.toml"}
    run = server_app.run(config, ProcessGrid(nodes, sites))
    plan, radon = run.plan, fl.data.load("radon", test_share=0, scale="none")
    rows = {name: radon.train.client(radon.clients.index(name)) for name in plan.clients}
    federation = fl.Federation.from_arrays(rows, plan.data.test_share, plan.seed, scale="none")
    expected = dict(zip(plan.clients, simulate_plan(plan, federation).models, strict=True))
    for name, model in load_models(dict.fromkeys(plan.clients, states)).items():
        assert torch.equal(model, expected[name]), name


# Names.


def build_server(tmp_path, grid, names):
    """Return a server whose run has not started."""
    servers = []

    class Noted(server_app.GridServer):
        def run(self):
            servers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_app, "GridServer", Noted)
        server_app.run(configure(tmp_path, names=names), grid)
    return servers[0]


def test_only_registered_names_count(tmp_path):
    """A node that claims another's name in its configuration is still the client of its key, or none."""
    grid, _ = build_grid(tmp_path)
    server = build_server(tmp_path, grid, "registered")
    grid.nodes[200] = describe_node(200, "north")  # a name without a key
    grid.nodes[201] = describe_node(201, "", b"key")
    assert server.find_nodes(0.0) == dict(zip(NAMES, range(100, 105), strict=True))
    assert grid.pushed == []  # no node is asked for its name
    grid.nodes[202] = describe_node(202, "north", b"another")
    with pytest.raises(fl.InputError, match="several nodes are called north; give every node another name"):
        server.find_nodes(0.0)


def test_claimed_names_are_asked_for_once(tmp_path):
    grid, _ = build_grid(tmp_path, registered=False)
    server = build_server(tmp_path, grid, "claimed")
    expected = dict(zip(NAMES, range(100, 105), strict=True))
    for nodes in ({}, expected, expected):
        assert server.find_nodes(0.0) == nodes
        server.receive(0.0)
    assert len(grid.pushed) == 5
    grid.sites[300], grid.nodes[300] = {"partition-id": 1}, describe_node(300)
    server.find_nodes(0.0)
    server.receive(0.0)
    with pytest.raises(fl.InputError, match="several nodes are called east"):
        server.find_nodes(0.0)
    with pytest.raises(fl.InputError, match="names = 'trusted'; use 'registered' or 'claimed'"):
        build_server(tmp_path, grid, "trusted")


# Faults.


def is_training_of(message, node):
    return (message.metadata.dst_node_id, message.metadata.message_type) == (node, "train")


def test_an_error_belongs_to_the_message_it_replies_to(tmp_path, caplog):
    """The SuperLink replies for a node that it lost, with its own id as the source."""

    def fault(message, reply):
        if not is_training_of(message, 102):
            return [reply]
        lost = Message(Error(5, "node unavailable"), reply_to=message)
        lost.metadata.__dict__["_src_node_id"] = SUPERLINK
        return [lost]

    grid, _ = build_grid(tmp_path, fault=fault)
    run = server_app.run(configure(tmp_path), grid)
    assert run.checkpoint.merged == {name: 3 for name in NAMES if name != "south"}
    assert run.checkpoint.left_out == {"south": 3}
    assert "client south: error 5: node unavailable" in caplog.text


def test_nodes_that_are_late_or_offline_are_missing(tmp_path, caplog):
    """One node never answers, and one is offline until the others have trained twice."""
    gone = []

    def fault(message, reply):
        if gone and grid.count(101, "train") > 2:
            grid.nodes[104] = gone.pop()
        if message.metadata.dst_node_id == 103 and grid.count(103, "train") == 0:
            gone.append(grid.nodes.pop(104, None) or gone.pop())
        return [] if is_training_of(message, 100) else [reply]

    grid, _ = build_grid(tmp_path, fault=fault)
    run = server_app.run(configure(tmp_path, rounds=8, limits={"deadline": 0.5, "minimum": 3}), grid)
    left_out = run.checkpoint.left_out
    assert left_out["north"] == 8
    assert set(left_out) <= {"north", "island"}
    assert run.checkpoint.merged["island"] == 8
    assert "client north: it is late" in caplog.text
    assert "client island: it is offline" in caplog.text


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"reply": ConfigRecord({})},
        {"reply": ConfigRecord({"content": "text"})},
        {"reply": ConfigRecord({"content": b"fedlap-wire 1\n{"})},
    ],
    ids=["empty", "no content", "no bytes", "truncated"],
)
def test_replies_of_another_form_are_missing_replies(records, tmp_path, caplog):
    """The round is merged without the client; that is FedU with a smaller cohort."""

    def fault(message, reply):
        return [Message(RecordDict(records), reply_to=message) if is_training_of(message, 102) else reply]

    grid, _ = build_grid(tmp_path, fault=fault)
    run = server_app.run(configure(tmp_path), grid)
    assert run.checkpoint.merged == {name: 3 for name in NAMES if name != "south"}
    assert "client south: " in caplog.text


def test_a_reply_with_nan_is_a_missing_reply(tmp_path):
    def fault(message, reply):
        if not is_training_of(message, 102):
            return [reply]
        sent = wire.decode_message(reply.content["reply"]["content"], wire.REQUESTS)
        content = wire.encode_message(sent._replace(state=sent.state * torch.nan))
        return [Message(RecordDict({"reply": ConfigRecord({"content": content})}), reply_to=message)]

    grid, _ = build_grid(tmp_path, fault=fault)
    run = server_app.run(configure(tmp_path), grid)
    assert run.checkpoint.left_out == {"south": 3}
    events = read_events(tmp_path / "server")
    assert {event.name for event in events if event.reason == "NaN or infinity"} == {"south"}


def test_a_round_waits_for_its_least_replies(tmp_path):
    """All five are needed, and one of them fails twice in each round; the end is that of the simulation."""

    def fault(message, reply):
        fails = is_training_of(message, 102) and grid.count(102, "train") % 3
        return [Message(Error(2, "out of memory"), reply_to=message) if fails else reply]

    grid, sites = build_grid(tmp_path, fault=fault)
    config = configure(tmp_path, "scaffold", limits={"minimum": 5})
    run = server_app.run(config, grid)
    assert grid.count(102, "train") == 9
    assert run.checkpoint.left_out == {}
    assert_equal(sites, config)


@pytest.mark.parametrize("algorithm", ["fedu", "scaffold"])
@pytest.mark.parametrize("place", ["write_cohort", "write_checkpoint"])
def test_a_server_that_ends_resumes_in_a_new_run(place, algorithm, tmp_path, monkeypatch):
    """It ends in round 2, when clients have replied: before it merges, or before it writes the checkpoint."""
    grid, sites = build_grid(tmp_path)
    config = configure(tmp_path, algorithm)
    store = getattr(server_app.RunStorage, place)

    def end(self, *values):
        if values[0] == 2 or getattr(values[0], "round", 0) == 2:
            raise KilledError
        store(self, *values)

    with monkeypatch.context() as patch:
        patch.setattr(server_app.RunStorage, place, end)
        with pytest.raises(KilledError):
            server_app.run(config, grid)
    trained = len([kind for _, kind in grid.pushed if kind == "train"])
    assert trained == 10
    server_app.run(config, grid)
    assert (
        len([kind for _, kind in grid.pushed if kind == "train"]) == 15
    )  # The replies of round 2 were stored.
    assert_equal(sites, config)


def test_a_new_training_does_not_use_old_private_state(tmp_path):
    """Without its folder a run of an old plan starts from the first round, and so do the clients."""
    grid, sites = build_grid(tmp_path)
    config = configure(tmp_path, "scaffold")
    server_app.run(config, grid)
    shutil.rmtree(tmp_path / "server")
    server_app.run(config, grid)
    training = (tmp_path / "server" / "training").read_text()
    expected = simulate(config)
    for name, model in load_models(sites, training).items():
        assert len(list(Path(sites[name]["state"]).iterdir())) == 2
        assert torch.equal(model, expected[name])


# What a client accepts, and what it writes.


def test_a_client_refuses_what_is_not_for_it(tmp_path):
    grid, sites = build_grid(tmp_path)
    server = build_server(tmp_path, grid, "registered")
    site = server.coordinator.sites["north"]
    facts = dict(server.pack(site, server_app.choose_task(server.coordinator, site)))
    other = wire.encode_message(wire.Message("plan", {"plan": {}, "digest": "0" * 64}))
    for changes, message in (
        ({"client": "east"}, "the server calls 'north' 'east'; register this node's name"),
        ({"version": "0.0"}, "the server has fedlap 0.0; install it here"),
        ({"training": "../../other"}, "name '../../other' cannot name a folder"),
        ({"task": facts["task"][:-9]}, "is damaged"),
        ({"plan": other}, "clients"),
    ):
        with pytest.raises((fl.InputError, KeyError), match=message):
            answer(facts | changes, sites["north"])
    assert not list(tmp_path.glob("**/*.state"))


def test_a_client_that_fails_says_why_and_the_run_waits(tmp_path, caplog):
    grid, _ = build_grid(tmp_path)
    grid.sites[101] = {**grid.sites[101], "name": "north"}  # it claims another's name
    with pytest.raises(StuckError):
        server_app.run(configure(tmp_path), grid)
    assert "client east: error 2:" in caplog.text
    assert "the server calls 'north' 'east'; register this node's name" in caplog.text


def test_files_of_a_client_are_its_own(tmp_path):
    """Its folder is closed to others; a marked value of its rows is in no message and no server's file."""
    sent, marked = [], "0.123456789"

    def fault(message, reply):
        sent.append(reply.content["reply"]["content"])
        return [reply]

    grid, sites = build_grid(tmp_path, fault=fault)
    data = {
        "label": "y",
        "features": ["p", "q", "r", "s"],
        "task": "classification",
        "labels": ["0", "1", "2"],
    }
    config = configure(tmp_path, "scaffold", rounds=1, data=data | {"scale": "none"})
    lines = Path(sites["north"]["data"]).read_text().splitlines()
    lines[1:] = [",".join([marked, *line.split(",")[1:]]) for line in lines[1:]]
    Path(sites["north"]["data"]).write_text("\n".join(lines))
    server_app.run(config, grid)
    (folder,) = Path(sites["north"]["state"]).glob("*/north")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {path.name for path in folder.iterdir()}
    assert names == {"plan.json", "worker.state", "reply.message", "model.safetensors", "model.json"}
    pattern = torch.tensor(float(marked), dtype=torch.float64).numpy().tobytes()
    contents = [*sent, *(path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())]
    assert len(contents) > 15
    assert not any(pattern in content or marked.encode() in content for content in contents)
