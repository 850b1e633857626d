"""A peer's disk: the setup of the run, a checkpoint after every round, and sums for scores.

A checkpoint is written whole or not at all, before the peer publishes a model of the next round. It holds the
peer's state, the messages of the round, which a slower neighbour may still want, and the neighbours' last
models.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedlap.algorithms import State
from fedlap.deploy.change_files import CHANGES_FOLDER
from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import CONSTANT_TYPES, ScalingConstants
from fedlap.deploy.peers.neighbours import Neighbour, Sent, Turn
from fedlap.deploy.peers.peer import Peer
from fedlap.deploy.status import STATUS_FILE
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.errors import InputError
from fedlap.storage.files import parse_json, read_file, write_file
from fedlap.training.state_bytes import (
    list_state_types,
    read_state_facts,
    read_state_file,
    write_state_file,
)
from fedlap.training.worker import ClientTally

PEER_FORMAT: Final = 1
IDENTITY_FILE, SETUP_FILE, CHECKPOINT_FILE, TALLIES_FOLDER = (
    "identity.json", "setup.state", "peer.state", "tallies",
)  # fmt: skip
# Patterns of the files and folders that a peer has in addition to those of a client.
PEER_FILES: Final = (
    IDENTITY_FILE, SETUP_FILE, CHECKPOINT_FILE, STATUS_FILE,
    *(f"{folder}/{name}" for folder in (TALLIES_FOLDER, CHANGES_FOLDER) for name in ("[0-9]*", ".fedlap-*")),
    TALLIES_FOLDER, CHANGES_FOLDER,
)  # fmt: skip
# The fields of a neighbour that a checkpoint stores as they are.
NEIGHBOUR_FIELDS: Final = (
    "name", "weight", "first_round", "is_removed", "is_late", "has_finished", "rounds_late", "bytes_up",
    "bytes_down",
)  # fmt: skip


class ScoredRound(NamedTuple):
    """The sums over a peer's rows after a round, and the bytes of models that it had received by then."""

    tally: ClientTally
    received: int


@dataclass(frozen=True)
class PeerCheckpoint:
    """A peer between two rounds, as its file describes it.

    worker_facts, worker: those of `Worker.export_state`. sent: its messages of the last rounds.
    public_turn: the turn of its public model. changes: those of its edges.
    """

    round: int
    worker_facts: Mapping[str, Any]
    worker: State
    sent: Mapping[Turn, Sent]
    public_turn: Turn | None
    neighbours: Mapping[str, Neighbour]
    changes: Sequence[Mapping[str, Any]]
    former_bytes: list[int]


@dataclass(frozen=True)
class PeerStorage:
    """The folder of a peer; others cannot read it."""

    folder: Path

    @property
    def site(self) -> ClientStorage:
        """The files that every site has: the plan and the model."""
        return ClientStorage(self.folder)

    def prepare(self) -> None:
        """Create the folder."""
        self.site.prepare()
        (self.folder / TALLIES_FOLDER).mkdir(exist_ok=True, mode=0o700)

    def write_identity(self, name: str, keys: Path | None) -> None:
        """Store whose folder this is, for commands of its operator; refuse the folder of another peer."""
        known = self.read_identity()
        if known is not None and known[0] != name:
            raise InputError(
                f"{str(self.folder)!r} is the folder of peer {known[0]!r}, not of {name!r}; set another "
                "--folder"
            )
        values = {"name": name, "keys": None if keys is None else str(keys.absolute())}
        write_file(self.folder / IDENTITY_FILE, json.dumps(values).encode())

    def read_identity(self) -> tuple[str, Path | None] | None:
        """Return the name and the folder of keys of the peer, or None if it has not started here."""
        path = self.folder / IDENTITY_FILE
        if not path.exists():
            return None
        values = parse_json(read_file(path))
        return values["name"], None if values["keys"] is None else Path(values["keys"])

    # The setup.

    def write_setup(self, plan: str, description: Mapping[str, Any], constants: ScalingConstants) -> None:
        """Store the setup of the run and the constants of its scaling."""
        pass_point("peer.setup.writing")
        write_state_file(self.folder / SETUP_FILE, {"plan": plan, "setup": description}, constants)
        pass_point("peer.setup.written")

    def read_setup(self, plan: str) -> tuple[dict[str, Any], ScalingConstants] | None:
        """Return the setup and the constants, or None before the start; refuse those of another plan."""
        path = self.folder / SETUP_FILE
        if not path.exists():
            return None
        facts, constants = read_state_file(path, CONSTANT_TYPES)
        if facts["plan"] != plan:
            raise PermanentError(
                f"{str(self.folder)!r} is the folder of a peer with another plan; restore that plan, or set "
                "another --folder",
                ExitCode.OTHER_PLAN,
            )
        return facts["setup"], constants

    # The checkpoint.

    def write_checkpoint(self, peer: Peer, changes: Sequence[Mapping[str, Any]]) -> None:
        """Store a peer between two rounds; changes: those of its edges so far."""
        pass_point("peer.checkpoint.writing")
        neighbours = list(peer.neighbours.values())
        worker_facts, worker_states = peer.worker.export_state()
        facts = {
            "peer": PEER_FORMAT,
            "round": peer.round,
            "former_bytes": peer.former_bytes,
            "worker_facts": worker_facts,
            "sent": [[*turn, *sent.base] for turn, sent in peer.sent.items()],
            "public_turn": peer.public_turn,
            "neighbours": [describe_neighbour(neighbour) for neighbour in neighbours],
            "changes": list(changes),
        }
        newest = tuple(neighbour.models.get(neighbour.newest) for neighbour in neighbours)
        sent = tuple((sent.public, sent.message) for sent in peer.sent.values())
        states = worker_states, sent, newest
        write_state_file(self.folder / CHECKPOINT_FILE, facts, states)
        pass_point("peer.checkpoint.written")

    def read_facts(self) -> dict[str, Any]:
        """Return the facts of the checkpoint, without models."""
        return read_state_facts(self.folder / CHECKPOINT_FILE)

    def list_neighbours(self) -> list[str] | None:
        """Return the neighbours of the checkpoint, or None before the first one."""
        if not (self.folder / CHECKPOINT_FILE).exists():
            return None
        return [values["name"] for values in self.read_facts()["neighbours"]]

    def load_checkpoint(self, peer: Peer) -> list[dict[str, Any]] | None:
        """Restore a peer; return the changes of its edges, or None if there is no checkpoint."""
        stored = self.read_checkpoint(list_state_types(peer.worker.method))
        if stored is None:
            return None
        peer.worker.import_state(stored.worker_facts, stored.worker, str(self.folder / CHECKPOINT_FILE))
        peer.round, peer.former_bytes = stored.round, stored.former_bytes
        peer.sent, peer.neighbours = dict(stored.sent), dict(stored.neighbours)
        peer.public_turn = stored.public_turn
        return [dict(change) for change in stored.changes]

    def read_checkpoint(self, types: Iterable[type[Any]]) -> PeerCheckpoint | None:
        """Return the last checkpoint, or None before the first one."""
        path = self.folder / CHECKPOINT_FILE
        if not path.exists():
            return None
        facts, (worker, sent, newest) = read_state_file(path, types)
        if facts["peer"] != PEER_FORMAT:
            raise PermanentError(
                f"{str(path)!r} has format {facts['peer']}; expected {PEER_FORMAT}; use the version of "
                "fedlap that wrote it",
                ExitCode.OTHER_VERSION,
            )
        return PeerCheckpoint(
            round=facts["round"],
            worker_facts=facts["worker_facts"],
            worker=worker,
            sent={
                Turn(*turns[:2]): Sent(public, message, Turn(*turns[2:]))
                for turns, (public, message) in zip(facts["sent"], sent, strict=True)
            },
            public_turn=None if facts["public_turn"] is None else Turn(*facts["public_turn"]),
            neighbours={
                values["name"]: restore_neighbour(values, model)
                for values, model in zip(facts["neighbours"], newest, strict=True)
            },
            changes=facts["changes"],
            former_bytes=facts["former_bytes"],
        )

    # Scores.

    def write_tally(self, round: int, scored: ScoredRound) -> None:
        """Store the sums over this peer's rows that its score in a round follows from."""
        pass_point("peer.tally.writing")
        facts = {"round": round, "received": scored.received}
        write_state_file(self._find_tally(round), facts, scored.tally, durable=False)
        pass_point("peer.tally.written")

    def has_tally(self, round: int) -> bool:
        """Return whether the sums of a round are stored."""
        return self._find_tally(round).exists()

    def read_tallies(self) -> dict[int, ScoredRound]:
        """Return the sums of all scored rounds."""
        files = sorted((self.folder / TALLIES_FOLDER).glob("[0-9]*.state"))
        read = (read_state_file(path, (ClientTally,)) for path in files)
        return {facts["round"]: ScoredRound(tally, facts["received"]) for facts, tally in read}

    def _find_tally(self, round: int) -> Path:
        return self.folder / TALLIES_FOLDER / f"{round:08}.state"


def is_peer_folder(folder: Path) -> bool:
    """Return whether a folder is that of a peer whose run has started."""
    return (folder / SETUP_FILE).is_file()


def describe_neighbour(neighbour: Neighbour) -> dict[str, Any]:
    """Return plain values of a neighbour, without its models."""
    values = {name: getattr(neighbour, name) for name in NEIGHBOUR_FIELDS}
    turns = {"newest": list(neighbour.newest), "turn_sent": list(neighbour.turn_sent)}
    return {**values, **turns, "size": neighbour.sizes.get(neighbour.newest, 0)}


def restore_neighbour(values: Mapping[str, Any], model: Any) -> Neighbour:
    """Return the neighbour that `describe_neighbour` described, with its newest model, if it has one."""
    known = {name: values[name] for name in NEIGHBOUR_FIELDS}
    turn = Turn(*values["newest"])
    models, sizes = ({}, {}) if model is None else ({turn: model}, {turn: values["size"]})
    return Neighbour(models=models, sizes=sizes, turn_sent=Turn(*values["turn_sent"]), **known)
