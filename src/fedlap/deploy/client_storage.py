"""A client's disk: the plan it takes part in, its private state, its last reply and its model."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedlap.deploy.disk_errors import convert_disk_errors
from fedlap.deploy.event_log import EVENT_LOG_FILE
from fedlap.deploy.failpoints import pass_point
from fedlap.errors import InputError
from fedlap.storage.files import check_writable, parse_json, read_file, replace_file
from fedlap.storage.locks import LOCK_FILE
from fedlap.training.worker import Worker

PLAN_FILE, STATE_FILE, REPLY_FILE, MODEL_FILE = (
    "plan.json",
    "worker.state",
    "reply.message",
    "model.safetensors",
)
# Patterns of everything that a client writes, with the files that a killed process has not renamed.
CLIENT_FILES: Final = (
    ".fedlap-*", STATE_FILE, REPLY_FILE, MODEL_FILE, Path(MODEL_FILE).with_suffix(".json").name,
    EVENT_LOG_FILE, "log.[0-9]*.jsonl",
)  # fmt: skip
MODELS_PER_ROUND: Final = (
    6  # models that a client writes in a round: state before and after, reply, spare room
)
SPARE_BYTES: Final = 4_000_000


@dataclass(frozen=True)
class ClientStorage:
    """The folder of a client; others cannot read it."""

    folder: Path

    def prepare(self) -> None:
        """Create the folder."""
        with convert_disk_errors(self.folder, only_full=True):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)

    @property
    def model_path(self) -> Path:
        """The client's model, ready for `fedlap predict`."""
        return self.folder / MODEL_FILE

    def read_plan(self) -> dict[str, Any] | None:
        """Return the digest and the description of the plan that this folder belongs to, if there is one.

        Raise InputError for a plan without a digest, as a server has it.
        """
        path = self.folder / PLAN_FILE
        if not path.exists():
            return None
        try:
            known: dict[str, Any] = parse_json(read_file(path))
            if not isinstance(known["digest"], str):
                raise TypeError("the digest is no text")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{str(self.folder)!r} is no folder of fedlap client or fedlap peer: its {PLAN_FILE} is not "
                "one of theirs; set another --folder"
            ) from error
        return known

    def read_plan_digest(self) -> str:
        """Return the digest of the plan that this folder belongs to; an empty text if there is none."""
        known = self.read_plan()
        return str(known["digest"]) if known else ""

    def write_plan(self, digest: str, plan: dict[str, Any]) -> None:
        """Store the plan, so that another one is refused later."""
        self._write(PLAN_FILE, json.dumps({"digest": digest, "plan": plan}, indent=1).encode())

    def load_worker(self, worker: Worker) -> None:
        """Restore the private state of a worker, if there is any."""
        if (self.folder / STATE_FILE).exists():
            worker.load(self.folder / STATE_FILE)

    def save_worker(self, worker: Worker) -> None:
        """Store the private state of a worker before and after its round, if it has any."""
        pass_point("client.state.writing")
        if worker.private is not None:
            with convert_disk_errors(self.folder):
                worker.save(self.folder / STATE_FILE)
        pass_point("client.state.written")

    def write_reply(self, task: bytes, reply: bytes) -> None:
        """Store the reply to a task, which gets it again if it is repeated.

        A reply that a power cut loses is computed again, so that nobody waits for the disk here.
        """
        pass_point("client.reply.writing")
        content = hashlib.sha256(task).hexdigest().encode() + b"\n" + _sign(reply)
        self._write(REPLY_FILE, content, durable=False)
        pass_point("client.reply.written")

    def read_reply(self, task: bytes) -> bytes | None:
        """Return the reply to this task, if it was computed before."""
        path = self.folder / REPLY_FILE
        if not path.exists():
            return None
        digest, _, rest = read_file(path).partition(b"\n")
        checksum, _, reply = rest.partition(b"\n")
        is_whole = _sign(reply) == checksum + b"\n" + reply
        return reply if is_whole and digest == hashlib.sha256(task).hexdigest().encode() else None

    def explain_no_room(self, model_bytes: int, models: int = MODELS_PER_ROUND) -> str:
        """Return why a round that writes `models` models cannot be stored; an empty text if it can."""
        try:
            check_writable(self.folder)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            return f"{str(self.folder)!r} cannot be written ({error.strerror})"
        needed = models * model_bytes + SPARE_BYTES
        return f"the disk has {free:,} free bytes, and a round needs {needed:,}" if free < needed else ""

    def forget(self, others: Sequence[str] = ()) -> None:
        """Delete the plan, the private state, the reply, the model and the log, and no other file.

        others: patterns of further files to delete, and of folders that are deleted if they are empty then.
        """
        # The plan comes after all others, so that the command can be repeated if it is killed.
        for pattern in (*others, *CLIENT_FILES, PLAN_FILE, LOCK_FILE):
            for path in list(self.folder.glob(pattern)):
                if not path.is_dir():
                    path.unlink()
                elif not any(path.iterdir()):
                    path.rmdir()

    def _write(self, name: str, content: bytes, durable: bool = True) -> None:
        with convert_disk_errors(self.folder), replace_file(self.folder / name, durable) as file:
            file.write(content)


def _sign(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content
