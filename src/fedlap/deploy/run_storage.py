"""The server's disk: the setups of a run, its checkpoint, and the replies of the round in progress.

Everything is written whole or not at all. A round is on disk in this order: replies as they come, the list of
the clients that count, the checkpoint with the merged state. A server that ends anywhere in between repeats
the rest of the round with the same clients, and gets the same numbers. A power cut can lose replies before
that list is written, and none afterwards.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedlap.algorithms import State
from fedlap.deploy.disk_errors import convert_disk_errors
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import CONSTANT_TYPES
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.errors import InputError
from fedlap.storage.files import read_file, replace_file, sync_to_disk
from fedlap.training.scores import Score
from fedlap.training.state_bytes import read_state_file, write_state_file

RUN_FORMAT: Final = 1
SETUPS_FILE, CHECKPOINT_FILE, COHORT_FILE, SCORES_FILE = (
    "setups.json", "checkpoint.state", "cohort.json", "rounds.jsonl",
)  # fmt: skip
PENDING_FILE, PLAN_FILE, CLIENTS_FILE, FINISHED_FILE = (
    "pending.json", "plan.json", "clients.json", "finished.json",
)  # fmt: skip
REPLIES_FOLDER: Final = "replies"
MOST_SYNCS: Final = 8  # files that are waited for at the same time


@dataclass
class ServerCheckpoint:
    """The run after a round: the server's state, and the last round in which each client's reply counted."""

    round: int
    server: State
    setup: int = 1  # the version in force
    merged: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)  # rounds that a sampled client has missed
    bytes_up: int = 0  # of states, as the simulation counts them
    bytes_down: int = 0
    seconds: float = 0.0
    traffic: dict[str, list[int]] = field(default_factory=dict)  # bytes of messages by client: up, down


@dataclass(frozen=True)
class RunStorage:
    """The folder of a run at the server."""

    folder: Path

    def prepare(self) -> None:
        """Create the folder, which others cannot read."""
        with convert_disk_errors(self.folder, only_full=True):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
            (self.folder / REPLIES_FOLDER).mkdir(exist_ok=True, mode=0o700)

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Store the plan as plain values, for reports."""
        self._write_json(PLAN_FILE, plan, durable=True)

    def read_plan(self) -> dict[str, Any]:
        """Return the plan as plain values; raise InputError if the run has not started."""
        path = self.folder / PLAN_FILE
        if not path.exists():
            raise InputError(
                f"{str(self.folder)!r} has no {PLAN_FILE}; pass the folder of a run of `fedlap serve` that "
                "has started"
            )
        plan: dict[str, Any] = json.loads(read_file(path))
        return plan

    # Setups: the roster and the graph of each version, and the constants of the run.

    def write_setups(self, plan: str, setups: Sequence[dict[str, Any]], constants: State) -> None:
        """Store all setups of the run with its constants."""
        pass_point("server.setup.writing")
        facts = {"checkpoint": RUN_FORMAT, "plan": plan, "setups": list(setups)}
        self._write(SETUPS_FILE, facts, constants)
        pass_point("server.setup.written")

    def read_setups(self, plan: str, types: Iterable[type[Any]]) -> tuple[list[dict[str, Any]], State] | None:
        """Return the setups and the constants, or None before the start; refuse those of another plan."""
        facts, constants = self._read(SETUPS_FILE, types)
        if facts is None:
            return None
        if facts.get("checkpoint") != RUN_FORMAT:
            raise PermanentError(
                f"{str(self.folder)!r} has checkpoint format {facts.get('checkpoint')}; expected "
                f"{RUN_FORMAT}; use the version of fedlap that wrote it",
                ExitCode.OTHER_VERSION,
            )
        if facts["plan"] != plan:
            raise PermanentError(
                f"{str(self.folder)!r} is a run of another plan; restore that plan, or set another --folder",
                ExitCode.OTHER_PLAN,
            )
        return facts["setups"], constants

    def read_roster(self) -> list[str]:
        """Return the clients of the last setup, and the newcomers that have not joined yet."""
        facts, _ = self._read(SETUPS_FILE, CONSTANT_TYPES)
        clients: list[str] = [] if facts is None else facts["setups"][-1]["clients"]
        return clients + [change["name"] for change in self.read_pending() if change["kind"] == "join"]

    def write_pending(self, changes: Sequence[dict[str, Any]]) -> None:
        """Store the changes of the roster that are not in force yet."""
        self._write_bytes(PENDING_FILE, json.dumps(list(changes)).encode(), durable=True)

    def read_pending(self) -> list[Any]:
        """Return the changes of the roster that are not in force yet, or that are since the last setup."""
        path = self.folder / PENDING_FILE
        return list(json.loads(read_file(path))) if path.exists() else []

    # The checkpoint.

    def write_checkpoint(self, checkpoint: ServerCheckpoint) -> None:
        """Store the run after a round; the replies of this round are then removed."""
        pass_point("server.checkpoint.writing")
        facts = {key: value for key, value in vars(checkpoint).items() if key != "server"}
        self._write(CHECKPOINT_FILE, facts, checkpoint.server)
        pass_point("server.checkpoint.written")
        self.remove_replies()
        pass_point("server.replies.removed")

    def read_checkpoint(self, types: Iterable[type[Any]]) -> ServerCheckpoint | None:
        """Return the last checkpoint, or None before the first one."""
        facts, server = self._read(CHECKPOINT_FILE, types)
        if facts is None:
            return None
        facts.pop("format")
        return ServerCheckpoint(server=server, **facts)

    # The round in progress.

    def write_reply(self, round: int, place: int, up: State) -> None:
        """Store the upload of the client at this place of the roster.

        A reply that a power cut loses or damages is asked for again, so that nobody waits for the disk here.
        """
        pass_point("server.reply.writing")
        self._write(f"{REPLIES_FOLDER}/{place}.state", {"round": round}, up, durable=False)
        pass_point("server.reply.written")

    def read_replies(self, round: int, types: Sequence[type[Any]]) -> tuple[dict[int, State], list[int]]:
        """Return the uploads of a round by place, and the places of files that a power cut has damaged.

        Damaged files and those of other rounds are removed.
        """
        found, damaged = {}, []
        for path in sorted((self.folder / REPLIES_FOLDER).glob("*.state")):
            if not path.stem.isdecimal():  # A killed server left its unfinished file.
                path.unlink()
                continue
            try:
                facts, up = self._read(f"{REPLIES_FOLDER}/{path.name}", types)
            except InputError:
                damaged.append(int(path.stem))
                facts, up = None, None
            if facts is not None and facts["round"] == round:
                found[int(path.stem)] = up
            else:
                path.unlink()
        return found, damaged

    def sync_replies(self, places: Iterable[int]) -> None:
        """Wait until the uploads at these places are on disk, so that a decision never outlives them.

        All files wait at the same time: 16 of 318 kB take 16 ms together, and 79 ms one after another
        (ext4 on a virtual disk).
        """
        folder = self.folder / REPLIES_FOLDER
        with convert_disk_errors(self.folder), ThreadPoolExecutor(MOST_SYNCS) as pool:
            list(pool.map(sync_to_disk, [folder, *(folder / f"{place}.state" for place in places)]))

    def remove_replies(self) -> None:
        """Remove the replies of a round that is merged."""
        with convert_disk_errors(self.folder):
            for path in [*(self.folder / REPLIES_FOLDER).glob("*.state"), self.folder / COHORT_FILE]:
                path.unlink(missing_ok=True)

    def write_cohort(self, round: int, counted: Sequence[int]) -> None:
        """Store the places of the clients that count in a round, before they are merged."""
        pass_point("server.cohort.writing")
        self._write_json(COHORT_FILE, {"round": round, "counted": list(counted)}, durable=True)
        pass_point("server.cohort.written")

    def read_cohort(self, round: int) -> list[int] | None:
        """Return the clients that count in a round, if that was decided already."""
        path = self.folder / COHORT_FILE
        if not path.exists():
            return None
        values = json.loads(read_file(path))
        return list(values["counted"]) if values["round"] == round else None

    # The end.

    def write_finished(self, names: Iterable[str], is_done: bool) -> None:
        """Store who has its final model, and whether the run has ended."""
        self._write_json(FINISHED_FILE, {"clients": sorted(names), "is_done": is_done}, durable=True)

    def read_finished(self) -> tuple[set[str], bool]:
        """Return the clients that have their final models, and whether the run has ended."""
        path = self.folder / FINISHED_FILE
        if not path.exists():
            return set(), False
        values = json.loads(read_file(path))
        return set(values["clients"]), bool(values["is_done"])

    # Scores.

    def write_scores(self, scores: Sequence[Score]) -> None:
        """Store all scores, one line each."""
        pass_point("server.score.writing")
        lines = [json.dumps(score.as_dict()).encode() + b"\n" for score in scores]
        self._write_bytes(SCORES_FILE, b"".join(lines), durable=True)
        pass_point("server.score.written")

    def read_scores(self, last: int) -> list[Score]:
        """Return the scores up to a round."""
        path = self.folder / SCORES_FILE
        if not path.exists():
            return []
        scores = [Score.from_dict(json.loads(line)) for line in read_file(path).splitlines()]
        return [score for score in scores if score.round <= last]

    def write_client_scores(self, round: int, clients: Mapping[str, Mapping[str, float | None]]) -> None:
        """Store rows and scores of each client in the last scored round."""
        self._write_json(CLIENTS_FILE, {"round": round, "clients": clients}, durable=True)

    def read_client_scores(self) -> tuple[int, dict[str, dict[str, float | None]]]:
        """Return the last scored round, and each client's rows and scores in it; 0 and none before it."""
        path = self.folder / CLIENTS_FILE
        if not path.exists():
            return 0, {}
        values = json.loads(read_file(path))
        return values["round"], values["clients"]

    def _write_json(self, name: str, values: Mapping[str, Any], durable: bool) -> None:
        self._write_bytes(name, json.dumps(values).encode(), durable)

    def _write_bytes(self, name: str, content: bytes, durable: bool) -> None:
        with convert_disk_errors(self.folder), replace_file(self.folder / name, durable) as file:
            file.write(content)

    def _write(self, name: str, facts: dict[str, Any], state: State, durable: bool = True) -> None:
        with convert_disk_errors(self.folder):
            write_state_file(self.folder / name, facts, state, durable)

    def _read(self, name: str, types: Iterable[type[Any]]) -> tuple[dict[str, Any] | None, State]:
        path = self.folder / name
        return read_state_file(path, types) if path.exists() else (None, None)


def is_server_folder(folder: Path) -> bool:
    """Return whether a folder is that of a run of `fedlap serve` that has started."""
    return (folder / SETUPS_FILE).is_file()
