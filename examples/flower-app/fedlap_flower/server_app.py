"""The ServerApp: the server of fedlap, whose clients are nodes that it asks through Flower's Grid."""

import logging
import math
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import platformdirs
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

import fedlap as fl
from fedlap.deploy import wire
from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.event_log import EventLog
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.plan import Plan
from fedlap.deploy.requests import describe_setup
from fedlap.deploy.run_state import Phase, Site
from fedlap.deploy.run_storage import RunStorage
from fedlap.deploy.tasks import choose_task, send_plan
from fedlap.storage.files import read_text, write_file
from fedlap.storage.locks import lock_folders

LOG = logging.getLogger("flwr")  # `flwr log` shows its lines
APP = Path(__file__).resolve().parents[1]
TYPES = {"plan": MessageType.QUERY, "train": MessageType.TRAIN}  # and EVALUATE
POLL = 0.2  # seconds; `send_and_receive` sleeps 3
PAUSE, LONGEST_PAUSE = 3.0, 60.0  # seconds before a node that has failed is asked again; it doubles
LOOK = 1.0  # seconds between looks at the list of nodes
TRAINING_FILE = "training"

app = ServerApp()


class Sent(NamedTuple):
    """A message without a reply."""

    node: int
    client: str  # "" if the node was asked what it is called
    end: float  # when the reply is late


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the plan; a later run with the same folder resumes."""
    run(context.run_config, grid)


def run(config: Mapping[str, Any], grid: Grid) -> Coordinator:
    """Train until the last round is done, and return the coordinator."""
    plan = Plan.load(APP / str(config["plan"]))
    default = platformdirs.user_state_path("fedlap") / "flower" / plan.name
    storage = RunStorage(Path(str(config["folder"] or default)))
    storage.prepare()
    with ExitStack() as until_end:
        until_end.enter_context(lock_folders([storage.folder]))
        log = until_end.enter_context(EventLog.open(storage.folder, plan.name, plan.clients, show=LOG.info))
        coordinator = Coordinator(plan, storage, log.write, time.monotonic())
        GridServer(coordinator, grid, config["names"]).run()
    return coordinator


class GridServer:
    """The loop of the server: tasks go out as messages to nodes, and their replies come back.

    names: "registered" takes the names under which the keys of SuperNodes are registered. "claimed" asks the
    nodes, so that any node can be any client; in a simulation, there are no other names.
    """

    def __init__(self, coordinator: Coordinator, grid: Grid, names: Literal["registered", "claimed"]) -> None:
        if names not in ("registered", "claimed"):
            raise fl.InputError(f"names = {names!r}; use 'registered' or 'claimed'")
        self.coordinator, self.grid, self.names = coordinator, grid, names
        self.training = read_training(coordinator.storage.folder)
        self.nodes: dict[str, int] = {}  # that are online, by client
        self.sent: dict[str, Sent] = {}  # messages without a reply, by their ids
        self.paused: dict[str, tuple[float, float]] = {}  # clients that failed: until when, and for how long
        self._claims: dict[int, str] = {}  # by node; "" until the node has answered
        self._looked = -math.inf

    def run(self) -> None:
        """Ask and merge until the run has ended."""
        while self.coordinator.phase is not Phase.DONE:
            now = time.monotonic()
            self.receive(now)
            self.send(now)
            self.coordinator.advance(now)
            time.sleep(POLL)

    def send(self, now: float) -> None:
        """Push the task of every client that has one, unless it was pushed or the client has just failed."""
        if now - self._looked >= LOOK:
            self._looked, self.nodes = now, self.find_nodes(now)
        busy = {sent.client for sent in self.sent.values()}
        for name, site in self.coordinator.sites.items():
            if name in self.nodes:
                site.last_seen = now  # by the SuperLink, which hears from all nodes
            if name in busy or now < self.paused.get(name, (now, 0.0))[0]:
                continue
            task = choose_task(self.coordinator, site)
            if task.kind in ("wait", "stop"):
                continue
            if name in self.nodes:
                record = self.pack(site, task)
                kind = TYPES.get(task.kind, MessageType.EVALUATE)
                self.push(self.nodes[name], RecordDict({"task": record}), kind, now, name)
            else:
                self.lose(name, "it is offline", now)

    def push(self, node: int, content: RecordDict, kind: str, now: float, client: str = "") -> None:
        """Push a message to a node."""
        seconds = self.coordinator.plan.limits.deadline
        (number,) = self.grid.push_messages([Message(content, node, kind, ttl=seconds)])
        self.sent[number] = Sent(node, client, now + seconds)

    def pack(self, site: Site, task: wire.Message) -> ConfigRecord:
        """Return a task with everything that a client needs, whose process remembers nothing."""
        setup = describe_setup(self.coordinator, site, task)
        messages = {"plan": send_plan(self.coordinator), "setup": setup, "task": task}
        contents = {key: wire.encode_message(message) for key, message in messages.items()}
        site.bytes_down += sum(map(len, contents.values()))
        facts = {"client": site.name, "version": wire.FEDLAP_VERSION, "training": self.training}
        return ConfigRecord({**facts, **contents})

    def receive(self, now: float) -> None:
        """Pull the replies, which the SuperLink gives for lost nodes, and look for late ones."""
        for reply in self.grid.pull_messages(list(self.sent)) if self.sent else ():
            sent = self.sent.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                self.drop(sent, f"error {reply.error.code}: {reply.error.reason}", now)
            elif sent.client:
                self.take(sent.client, reply.content, now)
            else:
                self._claims[sent.node] = self.read_claim(reply.content)
        for number, sent in list(self.sent.items()):
            if now > sent.end:
                del self.sent[number]
                self.drop(sent, "it is late", now)

    def take(self, name: str, content: RecordDict, now: float) -> None:
        """Hand a client's answer to the coordinator."""
        record = content.get("reply")
        sent = record.get("content") if isinstance(record, ConfigRecord) else None
        answer = self.coordinator.handle(name, sent if isinstance(sent, bytes) else b"", now)
        if answer.kind == "refused":
            self.pause(name, answer.facts["reason"], now)
        else:
            self.paused.pop(name, None)

    def drop(self, sent: Sent, reason: str, now: float) -> None:
        """Give a message up."""
        if sent.client:
            self.lose(sent.client, reason, now)
        else:
            self._claims.pop(sent.node, None)  # It is asked again at the next look.

    def lose(self, name: str, reason: str, now: float) -> None:
        """Count a client as missing, until it answers again."""
        self.pause(name, reason, now)
        self.coordinator.leave_out(name, EventReason.UNREACHABLE)
        self.coordinator.sites[name].is_away = True

    def pause(self, name: str, reason: str, now: float) -> None:
        """Ask a client again after a pause, which becomes longer and longer."""
        LOG.warning("client %s: %s", name, reason)
        pause = min(2 * self.paused.get(name, (now, PAUSE / 2))[1], LONGEST_PAUSE)
        self.paused[name] = now + pause, pause

    def find_nodes(self, now: float) -> dict[str, int]:
        """Return the nodes that are online, by client; raise InputError if two nodes have one name."""
        online = list(self.grid.get_nodes())
        if self.names == "registered":
            names = {node.node_id: node.name for node in online if node.public_key and node.name}
        else:
            for node in online:
                if node.node_id not in self._claims:
                    self._claims[node.node_id] = ""
                    self.push(node.node_id, RecordDict(), MessageType.QUERY, now)
            names = {node.node_id: name for node in online if (name := self._claims[node.node_id])}
        nodes = {name: node for node, name in names.items()}
        if len(nodes) < len(names):
            twice = sorted(name for name in nodes if list(names.values()).count(name) > 1)
            raise fl.InputError(f"several nodes are called {', '.join(twice)}; give every node another name")
        return nodes

    def read_claim(self, content: RecordDict) -> str:
        """Return what a node is called; in a simulation it has its place in the plan instead."""
        names = content.get("names")
        if not isinstance(names, ConfigRecord):
            return ""
        clients, place = self.coordinator.plan.clients, str(names.get("partition-id"))
        in_plan = place.isdecimal() and int(place) < len(clients)
        return str(names.get("name")) or (clients[int(place)] if in_plan else "")


def read_training(folder: Path) -> str:
    """Return the name of this training, random at its first start, by which clients tell trainings apart."""
    path = folder / TRAINING_FILE
    if not path.exists():
        write_file(path, secrets.token_hex(8).encode())
    return read_text(path)
