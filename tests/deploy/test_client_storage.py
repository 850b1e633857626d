"""The folder of a client: room for a round, the plan that it belongs to, and what is deleted in the end."""

import shutil
from collections import namedtuple

import pytest

from fedlap.deploy.check import check_disk
from fedlap.deploy.client_storage import MODELS_PER_ROUND, SPARE_BYTES, ClientStorage
from fedlap.deploy.peers.storage import PEER_FILES
from fedlap.deploy.transport import ExitCode
from fedlap.errors import InputError
from peer_plans import build_peer_plan

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("models", [MODELS_PER_ROUND, 20])
def test_a_check_of_the_disk_agrees_with_a_round(models, tmp_path, monkeypatch):
    plan, storage = build_peer_plan(), ClientStorage(tmp_path)
    size = 8 * plan.count_parameters()
    needed = models * size + SPARE_BYTES
    for free in (needed - 1, needed):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: Usage(10**12, 0, free))
        problem, finding = storage.explain_no_room(size, models), check_disk(plan, tmp_path, models)
        assert finding.problem == problem
        assert bool(problem) == (free < needed)
        assert finding.code == (ExitCode.STORAGE if problem else 0)
    assert storage.explain_no_room(size, MODELS_PER_ROUND) == ""


@pytest.mark.parametrize("content", ['{"name": "test"}', '{"digest": 1}', "[]", "{", ""])
def test_a_plan_of_a_server_is_no_client_s(content, tmp_path):
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(InputError, match=r"is no folder of fedlap client or fedlap peer.*another --folder"):
        ClientStorage(tmp_path).read_plan_digest()


def test_files_of_others_are_not_deleted(tmp_path):
    """They may be rows, keys or other runs: --folder can be any folder."""
    written = [
        "plan.json", "worker.state", "reply.message", "model.safetensors", "model.json", "log.jsonl",
        "log.12.jsonl", ".lock", ".fedlap-01234567-1-0123456789abcdef-worker.state", "identity.json",
        "setup.state", "peer.state", "status.json", "tallies/00000002.state", "changes/00000001-eject.json",
        "tallies/.fedlap-01234567-1-0123456789abcdef-00000004.state",
    ]  # fmt: skip
    others = ["rows.csv", "keys/key.pem", "log.txt", "runs/plan.json", "runs/peer.state", "models.json"]
    for name in (*written, *others):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    ClientStorage(tmp_path).forget(PEER_FILES)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(others)
    assert not (tmp_path / "tallies").exists()
    assert not (tmp_path / "changes").exists()


def test_a_folder_with_a_file_of_others_stays(tmp_path):
    (tmp_path / "tallies").mkdir()
    (tmp_path / "tallies" / "notes.txt").write_text("text")
    ClientStorage(tmp_path).forget(PEER_FILES)
    assert (tmp_path / "tallies" / "notes.txt").exists()
