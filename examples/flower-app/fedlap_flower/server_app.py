"""The ServerApp: it pushes one Message per sampled node through the Grid and pulls the replies."""

import json
import time
from collections.abc import Mapping
from typing import Any, Literal

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

import fedlap as fl
from fedlap_flower.client import Content
from fedlap_flower.rounds import LOG, train

TYPES = {"describe": MessageType.QUERY, "train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}
POLL = 0.2  # seconds; `send_and_receive` sleeps 3

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the run configuration says."""
    train(context.run_config, GridExchange(grid, context.run_config["names"]))


class GridExchange:
    """An `Exchange` over a Grid.

    names: "registered" takes the names under which the keys of SuperNodes are registered. "claimed" asks the
    nodes, so that any node can be any client; in a simulation, there are no other names.
    """

    def __init__(self, grid: Grid, names: Literal["registered", "claimed"]) -> None:
        if names not in ("registered", "claimed"):
            raise fl.InputError(f"names = {names!r}; use 'registered' or 'claimed'")
        self.grid, self.names = grid, names
        self._claims: dict[int, str] = {}

    def ask(self, verb: str, requests: Mapping[str, Content], seconds: float) -> dict[str, Content]:
        """Return the replies that arrive in time; the log names the other clients."""
        nodes = self._find_nodes()
        messages = {}
        for name, (facts, state) in requests.items():
            if name in nodes:
                record = ConfigRecord({"facts": json.dumps(facts), "state": state})
                content = RecordDict({"request": record})
                messages[name] = Message(content, nodes[name], TYPES[verb], ttl=seconds)
        replies = self._exchange(messages, seconds)
        for name in requests.keys() - replies.keys():
            LOG.warning("client %s does not reply (%s)", name, "late" if name in messages else "offline")
        return replies

    def _exchange(self, messages: Mapping[Any, Message], seconds: float) -> dict[Any, Content]:
        """Push messages and return the replies; that of a lost node comes from the SuperLink, as an error."""
        pushed = {number: key for key in messages for number in self.grid.push_messages([messages[key]])}
        replies, end = {}, time.monotonic() + seconds
        while pushed and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(pushed)):
                key = pushed.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    LOG.warning("%s: error %d: %s", key, reply.error.code, reply.error.reason)
                    continue
                try:
                    record = reply.content["reply"]
                    replies[key] = json.loads(record["facts"]), record["state"]
                except (KeyError, TypeError, ValueError) as error:
                    LOG.warning("%s: the reply is refused: %r", key, error)
            time.sleep(POLL)
        return replies

    def _find_nodes(self) -> dict[str, int]:
        """Return the nodes that are online, by name; raise InputError if two nodes have one name."""
        online = list(self.grid.get_nodes())
        if self.names == "registered":
            names = {node.node_id: node.name for node in online if node.public_key and node.name}
        else:
            new = [node.node_id for node in online if node.node_id not in self._claims]
            asked = {node: Message(RecordDict(), node, MessageType.QUERY) for node in new}
            for node, (facts, _) in self._exchange(asked, 60.0).items():
                self._claims[node] = facts["name"]
            names = {
                node.node_id: self._claims[node.node_id] for node in online if node.node_id in self._claims
            }
        nodes = {name: node for node, name in names.items()}
        if len(nodes) < len(names):
            twice = sorted(name for name in nodes if list(names.values()).count(name) > 1)
            raise fl.InputError(f"several nodes are called {', '.join(twice)}; give every node another name")
        return nodes
