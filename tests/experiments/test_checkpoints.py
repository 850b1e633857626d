"""Checkpoints are whole or refused, and a process may be killed while it writes one."""

import errno
import os
import random
import resource
import signal

import pytest
import torch

import fedlap as fl
from fedlap.experiments import checkpoints
from fedlap.experiments.checkpoints import Owner, UnusableCheckpointError
from fedlap.training.result import Progress
from fedlap.training.state import list_tensors
from run_folders import files as contents_of
from run_folders import read_error, running  # noqa: F401 — a fixture

OWNER = Owner("0123456789abcdef", ("0123456789abcdef", "fedcba9876543210"))


def progress(round=3, rows=4):
    """Every kind of state that methods keep."""
    generator = torch.Generator().manual_seed(round)
    W = torch.randn(rows, 5, generator=generator)
    server = (W, (W.double(), None), torch.tensor(7), torch.tensor([True, False]))
    return Progress(round, server, W[::2], (123, 10**13), 4.25, [])


def equal(one, other):
    ours, theirs = list_tensors(one), list_tensors(other)
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def test_what_is_written_is_read(tmp_path):
    checkpoints.write_checkpoint(tmp_path, progress(), OWNER)
    checkpoint = checkpoints.read_checkpoint(tmp_path, 3, OWNER.experiment)
    found = checkpoint.load_progress([])
    assert equal(found.server, progress().server)
    assert equal(found.private, progress().private)
    assert found.server[1][1] is None
    assert (found.round, found.sent, found.seconds) == (3, (123, 10**13), 4.25)
    assert checkpoint.owner == OWNER
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".pt", ".pkl", ".pickle")]


def test_the_last_two_are_kept_and_nothing_else(tmp_path):
    for round in (1, 2, 10, 3):  # the last after a run was cut back
        checkpoints.write_checkpoint(tmp_path, progress(round), OWNER)
    assert checkpoints.list_checkpoint_rounds(tmp_path) == [10, 3]
    checkpoints.write_checkpoint(tmp_path, progress(10), OWNER)  # again
    found = checkpoints.read_checkpoint(tmp_path, 10, OWNER.experiment)
    assert equal(found.load_progress([]).server, progress(10).server)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000003", "round-00000010"]


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("tried", [400, pytest.param(10**9, marks=pytest.mark.slow)], ids=["some", "all"])
def test_any_flipped_bit_is_noticed(tmp_path, tried):
    checkpoints.write_checkpoint(tmp_path, progress(), OWNER)
    draw = random.Random(0)
    for path in files(tmp_path):
        whole = path.read_bytes()
        every = len(whole) * 8
        for bit in draw.sample(range(every), min(every, tried)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(UnusableCheckpointError):
                checkpoints.read_checkpoint(tmp_path, 3, OWNER.experiment)
        path.write_bytes(whole)
    checkpoints.read_checkpoint(tmp_path, 3, OWNER.experiment)


def test_any_missing_or_added_end_is_noticed(tmp_path):
    checkpoints.write_checkpoint(tmp_path, progress(), OWNER)
    for path in files(tmp_path):
        whole = path.read_bytes()
        for size in {*range(0, len(whole), 7), len(whole) - 1}:
            path.write_bytes(whole[:size])
            with pytest.raises(UnusableCheckpointError):
                checkpoints.read_checkpoint(tmp_path, 3, OWNER.experiment)
        path.write_bytes(whole + b"\0")
        with pytest.raises(UnusableCheckpointError):
            checkpoints.read_checkpoint(tmp_path, 3, OWNER.experiment)
        path.unlink()
        with pytest.raises(UnusableCheckpointError, match=f"{path.name} is missing"):
            checkpoints.read_checkpoint(tmp_path, 3, OWNER.experiment)
        path.write_bytes(whole)


def test_whose_it_is_and_which_version_wrote_it(tmp_path, monkeypatch):
    checkpoints.write_checkpoint(tmp_path, progress(), OWNER)
    with pytest.raises(UnusableCheckpointError, match="belongs to another experiment"):
        checkpoints.read_checkpoint(tmp_path, 3, "fedcba9876543210")
    (tmp_path / "round-00000003").rename(tmp_path / "round-00000004")
    with pytest.raises(UnusableCheckpointError, match="contains round 3"):
        checkpoints.read_checkpoint(tmp_path, 4, OWNER.experiment)
    current = checkpoints.CHECKPOINT_FORMAT
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FORMAT", current + 1)
    checkpoints.write_checkpoint(tmp_path, progress(5), OWNER)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FORMAT", current)
    with pytest.raises(UnusableCheckpointError, match="written by a newer version"):
        checkpoints.read_checkpoint(tmp_path, 5, OWNER.experiment)


def test_an_older_format_is_refused(tmp_path, monkeypatch):
    current = checkpoints.CHECKPOINT_FORMAT
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FORMAT", current - 1)
    checkpoints.write_checkpoint(tmp_path, progress(), OWNER)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FORMAT", current)
    with pytest.raises(
        UnusableCheckpointError, match=r"^was written by an older version .*\(format 1, expected 2\)$"
    ):
        checkpoints.read_checkpoint(tmp_path, 3, OWNER.experiment)


def test_a_run_of_an_older_format_is_refused_in_one_line(run, call, monkeypatch):
    current = checkpoints.CHECKPOINT_FORMAT
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FORMAT", current - 1)
    folder, _ = run("--rounds", "2")
    before = contents_of(folder)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FORMAT", current)
    why = read_error(call("resume", str(folder), "--rounds", "3", out=False))
    assert "older version of fedlap (format 1, expected 2)" in why
    assert why.endswith("no other checkpoint is valid; rerun with --again")
    assert contents_of(folder) == before
    again, _ = run("--rounds", "2", "--again")
    assert again == folder
    assert call("resume", str(folder), "--rounds", "3", out=False)[0] == 0


def in_a_child(job):
    """The exit code of a process that does this."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(job())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_full_disk_loses_nothing(tmp_path):
    """A process whose files may not grow further fails as on a full disk, in the middle of the tensors."""
    checkpoints.write_checkpoint(tmp_path, progress(1), OWNER)

    def job():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            checkpoints.write_checkpoint(tmp_path, progress(2, rows=4000), OWNER)
        except fl.InputError as error:
            message = str(error)
            assert os.strerror(errno.EFBIG) in message
            assert "the last checkpoint is of round 1; make room there and resume" in message
            return 7
        return 0

    assert in_a_child(job) == 7
    assert checkpoints.list_checkpoint_rounds(tmp_path) == [1]
    found = checkpoints.read_checkpoint(tmp_path, 1, OWNER.experiment)
    assert equal(found.load_progress([]).server, progress(1).server)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000001"]


def test_one_that_cannot_be_written_at_all_is_said(tmp_path):
    (tmp_path / "checkpoint").write_text("a file in the place of the folder")
    with pytest.raises(fl.InputError, match=r"cannot be written to .*; there is no checkpoint yet"):
        checkpoints.write_checkpoint(tmp_path / "checkpoint", progress(), OWNER)


def test_what_a_killed_process_left_is_cleared(tmp_path):
    checkpoints.write_checkpoint(tmp_path, progress(1), OWNER)
    for name in (".round-00000002.77", ".old-round-00000001.77"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.safetensors").write_bytes(b"half")
    assert checkpoints.list_checkpoint_rounds(tmp_path) == [1]
    checkpoints.write_checkpoint(tmp_path, progress(2), OWNER)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000001", "round-00000002"]


def test_what_is_not_finite_is_no_place_to_go_on_from():
    assert checkpoints.is_finite(progress())
    bad = progress()
    bad.server[0][1, 2] = torch.nan
    assert not checkpoints.is_finite(bad)
