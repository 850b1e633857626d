"""Models of sharded runs are gathered piece by piece into files, so that one process need not hold them."""

import errno
import os
from pathlib import Path

import pytest
import torch

from fedlap.experiments import checkpoints
from fedlap.experiments.checkpoints import Owner, read_checkpoint, write_checkpoint
from fedlap.storage import mapped_tensors
from fedlap.training.shards import engine, gathering, shard
from fedlap.training.state import list_tensors
from laws import WORK
from shard_clusters import MemoryCluster
from sharded_runs import list_scores, train

# Models at the shards, of a server and of peers; a padded private state; one model, and personal ones.
NAMES = ["fedu", "dfedu-int8", "mocha", "ditto", "global", "fedu-passing"]
TINY = 100  # bytes, of a piece and of the smallest mapped tensor; a model here has 120


def is_mapped(tensor):
    """Return whether a tensor is in the mapping of a file that has no name any more."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return line.endswith("(deleted)")
    raise AssertionError("the tensor is nowhere")


@pytest.mark.parametrize("name", NAMES)
def test_small_pieces_and_mapped_tables_change_no_bit(name, federation, graph, shards, monkeypatch):
    shards(3)
    arguments = name, WORK["steps"], 0.5, federation, graph
    whole = train(*arguments, engine="ray", rounds=6)
    fetched = []

    def spy(cluster, references):
        values = fetch(cluster, references)
        pieces = (value for value in values if isinstance(value, gathering.Piece))
        fetched.extend(piece.clients for piece in pieces if list_tensors(piece.rows))
        return values

    fetch = MemoryCluster.fetch
    monkeypatch.setattr(MemoryCluster, "fetch", spy)
    for module in (gathering, shard, engine):
        monkeypatch.setattr(module, "PIECE_BYTES", TINY)
    monkeypatch.setattr(mapped_tensors, "MAPPED_BYTES", TINY)
    half = train(*arguments, engine="ray", rounds=3)
    pieced = train(*arguments, engine="ray", rounds=6, resume=half)
    assert max(fetched) == 1  # every block here has one client
    assert is_mapped(pieced.models)
    assert not is_mapped(whole.models)
    assert torch.equal(pieced.models, whole.models)
    assert list_scores(pieced)[-1] == list_scores(whole)[-1]
    for part in ("server", "private"):
        states = [list_tensors(getattr(result.progress, part)) for result in (pieced, whole)]
        assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


def test_reordered_clients_resume_from_mapped_models(federation, graph, shards, monkeypatch):
    monkeypatch.setattr(mapped_tensors, "MAPPED_BYTES", TINY)
    shards(2)
    arguments = "fedu", WORK["steps"], 0.5, federation, graph
    half = train(*arguments, engine="ray", rounds=3)
    names = federation.clients[::-1]
    turned = train(*arguments[:3], federation.reorder(names), graph, engine="ray", rounds=6, resume=half)
    assert is_mapped(turned.models)
    assert torch.equal(turned.models.flip(0), train(*arguments, engine="ray", rounds=6).models)


def test_large_checkpoints_are_mapped(federation, graph, shards, monkeypatch, tmp_path):
    shards(2)
    progress = train("fedu", WORK["steps"], 0.5, federation, graph, engine="ray", rounds=3).progress
    write_checkpoint(tmp_path, progress, Owner("e", ("e",)))
    checkpoint = read_checkpoint(tmp_path, 3, "e")
    monkeypatch.setattr(checkpoints, "MAPPED_BYTES", 1)
    monkeypatch.setattr(checkpoints, "parse_tensors", None)
    (found,) = list_tensors(checkpoint.load_progress([]).server)
    assert torch.equal(found, progress.server.models.values)
    state = checkpoint.folder / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match="its checksum differs"):
        checkpoint.load_progress([])


def test_a_disk_without_room_leaves_tables_in_memory(monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mapped_tensors, "MAPPED_BYTES", TINY)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    table = mapped_tensors.allocate_tensor((100, 3), torch.float64)
    assert table.shape == (100, 3)
    assert not is_mapped(table)
    assert "set TMPDIR to a larger disk" in caplog.text
