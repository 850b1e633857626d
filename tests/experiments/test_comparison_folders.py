"""Stored runs of a comparison or a sweep: finished runs are loaded, missing runs are trained."""

import json
import shutil
from contextlib import contextmanager

import pytest

from run_folders import COMPARE, TINY, checkpoint, files, running, same  # noqa: F401 — a fixture

SWEEP = ("sweep", *TINY, "--vary", "strength=0,0.1", "--seeds", "0-1", "--json")


def numbers(answer):
    """The scores of a comparison or a sweep without times, and the notes on stderr."""
    code, out, err = answer
    assert code == 0, err
    document = json.loads(out)
    runs = document["algorithms"] if isinstance(document["algorithms"], dict) else document["runs"]
    return json.loads(json.dumps(runs), object_hook=lambda found: found | {"seconds": 0, "ms": 0}), err


def list_runs(out):
    """Return the folders of runs."""
    return sorted(path for path in out.iterdir() if (path / "experiment.toml").exists())


@pytest.mark.parametrize("command", [COMPARE, SWEEP], ids=["compare", "sweep"])
def test_what_is_there_is_shown_and_what_is_missing_is_trained(command, call, tmp_path):
    words = (*command, "--rounds", "3")
    whole, notes = numbers(call(*words))
    assert "finished and loaded from" not in notes
    folders = list_runs(tmp_path / "runs")
    before = {folder: files(folder) for folder in folders}
    shown, notes = numbers(call(*words))
    assert shown == whole
    assert f"{len(folders)} of {len(folders)} runs are finished and loaded from" in notes
    assert "round 1/3" not in notes
    assert {folder: files(folder) for folder in folders} == before
    lost = [folder for folder in folders if "scaffold" in folder.name] or folders
    copies = {folder: tmp_path / "copy" / folder.name for folder in lost}
    for folder, copy in copies.items():
        shutil.move(folder, copy)
    assert numbers(call(*words))[0] == whole
    for folder, copy in copies.items():
        same(folder, copy)
    again, notes = numbers(call(*words, "--again"))
    assert again == whole
    assert "finished and loaded from" not in notes


def test_runs_of_a_comparison_are_those_of_run(run, call, tmp_path):
    """One folder a run, whoever trains it."""
    folder, _ = run("--rounds", "3", "--seed", "1")
    before = files(folder)
    _, notes = numbers(call(*COMPARE, "--rounds", "3"))
    assert "1 of 4 runs are finished and loaded from" in notes
    assert files(folder) == before
    for algorithm in ("fedu", "scaffold"):
        _, notes = run("--rounds", "3", "--seed", "1", "--algorithm", algorithm)
        assert "this run is finished and loaded from" in notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "command"),
    [(3, COMPARE), (4, COMPARE), (7, COMPARE), (2, SWEEP)],
    ids=["first", "between", "second", "sweep"],
)
def test_together_interrupted_and_gone_on_with_is_as_unbroken(rounds, command, call, tmp_path, monkeypatch):
    """Every stack has four rounds; the stop is requested after `rounds` rounds of all stacks."""
    from fedlap.cli import train_runs

    words = (*command, "--rounds", "4")
    whole, _ = numbers(call(*words, "--out", str(tmp_path / "other"), out=False))
    seen = []

    @contextmanager
    def stopping():
        yield lambda: seen.append(1) or len(seen) == rounds

    with monkeypatch.context() as patched:
        patched.setattr(train_runs, "stop_on_signal", stopping)
        code, out, err = call(*words)
    assert (code, out) == (130, "")
    last = (rounds - 1) % 4 + 1
    assert f"stopped after round {last}, checkpoint saved; repeat the command to resume" in err
    ended, notes = numbers(call(*words))
    assert ended == whole
    if rounds % 4:
        assert f"runs resume from round {rounds % 4}" in notes
    for folder in list_runs(tmp_path / "other"):
        same(tmp_path / "runs" / folder.name, folder)


@pytest.mark.parametrize("lost", [[1], [0, 2]])
def test_a_stack_goes_on_from_the_last_round_that_all_have(lost, call, tmp_path):
    words = ("compare", *TINY, "--algorithms", "fedu", "--seeds", "0-2", "--json", "--rounds")
    whole, _ = numbers(call(*words, "4", "--out", str(tmp_path / "other"), out=False))
    numbers(call(*words, "4"))
    folders = list_runs(tmp_path / "runs")
    for place in lost:  # as after a kill between the checkpoints of one round
        shutil.rmtree(checkpoint(folders[place], 4))
    ended, notes = numbers(call(*words, "4"))
    assert ended == whole
    assert "3 of 3 runs resume from round 3" in notes
    for folder in list_runs(tmp_path / "other"):
        same(tmp_path / "runs" / folder.name, folder)


def test_a_stack_that_lost_a_run_says_so(call, tmp_path):
    words = ("compare", *TINY, "--algorithms", "fedu", "--seeds", "0-2", "--json", "--rounds")
    whole, _ = numbers(call(*words, "5", "--out", str(tmp_path / "other"), out=False))
    numbers(call(*words, "3"))
    shutil.rmtree(list_runs(tmp_path / "runs")[1])
    ended, notes = numbers(call(*words, "5"))
    assert "2 of 3 runs that were trained together resume without the others" in notes
    for one, other in zip(ended["fedu"], whole["fedu"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
