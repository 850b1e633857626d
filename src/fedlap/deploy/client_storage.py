"""A client's disk: the plan it takes part in, its private state, its last reply and its model."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedlap.deploy.disk_errors import convert_disk_errors
from fedlap.deploy.failpoints import pass_point
from fedlap.storage.files import check_writable, read_file, replace_file
from fedlap.training.worker import Worker

PLAN_FILE, STATE_FILE, REPLY_FILE, MODEL_FILE = (
    "plan.json",
    "worker.state",
    "reply.message",
    "model.safetensors",
)
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
        """Return the digest and the description of the plan that this folder belongs to, if there is one."""
        path = self.folder / PLAN_FILE
        return json.loads(read_file(path)) if path.exists() else None

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

    def find_problem(self, model_bytes: int) -> str:
        """Return why a round cannot be stored; an empty text if it can."""
        try:
            check_writable(self.folder)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            return f"{str(self.folder)!r} cannot be written ({error.strerror})"
        needed = MODELS_PER_ROUND * model_bytes + SPARE_BYTES
        return f"the disk has {free:,} free bytes, and a round needs {needed:,}" if free < needed else ""

    def forget(self) -> None:
        """Delete the private state, the reply, the model and the plan."""
        shutil.rmtree(self.folder)

    def _write(self, name: str, content: bytes, durable: bool = True) -> None:
        with convert_disk_errors(self.folder), replace_file(self.folder / name, durable) as file:
            file.write(content)


def _sign(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content
