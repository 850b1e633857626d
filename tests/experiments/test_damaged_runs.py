"""Runs that are damaged, diverge, are another process's to train, or have a folder that cannot be written."""

import json
import re
import shutil

import pytest
from filelock import FileLock

from fedlap.experiments import checkpoints
from run_folders import COMPARE, RUN, checkpoint, files, read_error, running, same  # noqa: F401 — a fixture


def damage(path):
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


LINES = [
    b"{",
    b"3",
    b"null",
    b"{}",
    b'{"round": 1}',
    b"\xff\xfe",
    b"[1, 2]",
    b'"round"',
    b"",
    b'{"round": "x"}',
]


def test_a_damaged_line_is_named_and_again_mends_it(run, call):
    unbroken, _ = run("--rounds", "3", out="other")
    folder, _ = run("--rounds", "3")
    file = folder / "rounds.jsonl"
    lines = file.read_bytes().split(b"\n")
    for line in LINES:
        file.write_bytes(b"\n".join([lines[0], line, *lines[2:]]))
        for words in (
            (*RUN, "--rounds", "3"),
            ("show", str(folder)),
            ("resume", str(folder), "--rounds", "5"),
        ):
            why = read_error(call(*words))
            assert f"{str(file)!r}, line 2 is damaged" in why
            assert "--again" in why
    run("--rounds", "3", "--again")
    same(folder, unbroken)


def test_a_line_that_is_gone_is_missed(run, call):
    folder, _ = run("--rounds", "3")
    file = folder / "rounds.jsonl"
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join(lines[1:]))
    assert "no score of round 1" in read_error(call(*RUN, "--rounds", "3"))
    file.write_bytes(b"\n".join(lines[:2]))  # the second is not written to its end
    assert "no score of round 2" in read_error(call(*RUN, "--rounds", "3"))


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_the_checkpoint_before_a_damaged_one_is_used(name, run):
    unbroken, _ = run("--rounds", "5", out="other")
    folder, _ = run("--rounds", "3")
    damage(checkpoint(folder, 3) / name)
    _, notes = run("--rounds", "5")
    assert "the checkpoint of round 3 is damaged" in notes
    assert "resumes from round 2" in notes
    same(folder, unbroken)


def test_the_last_checkpoint_of_a_run_that_was_done_is_made_again(run):
    unbroken, _ = run("--rounds", "3", out="other")
    folder, _ = run("--rounds", "3")
    (checkpoint(folder, 3) / "manifest.json").unlink()
    _, notes = run("--rounds", "3")
    assert "is incomplete: manifest.json is missing" in notes
    same(folder, unbroken)
    _, notes = run("--rounds", "3")
    assert "this run is finished and loaded from" in notes


def test_without_a_good_checkpoint_there_is_again(run, call):
    unbroken, _ = run("--rounds", "3", out="other")
    folder, _ = run("--rounds", "3")
    for round in (2, 3):
        damage(checkpoint(folder, round) / "state.safetensors")
    before = files(folder)
    for words in ((*RUN, "--rounds", "3"), (*RUN, "--rounds", "4"), ("resume", str(folder))):
        why = read_error(call(*words))
        assert "no other checkpoint is valid" in why
        assert "--again" in why
    assert files(folder) == before
    run("--rounds", "3", "--again")
    same(folder, unbroken)
    shutil.rmtree(folder / "checkpoint")  # not damaged, but gone
    run("--rounds", "3")
    same(folder, unbroken)


def test_a_checkpoint_of_another_experiment_is_not_used(run, call):
    folder, _ = run("--rounds", "3")
    other, _ = run("--rounds", "3", "--seed", "1")
    for round in (2, 3):
        shutil.rmtree(checkpoint(folder, round))
        shutil.copytree(checkpoint(other, round), checkpoint(folder, round))
    assert "belongs to another experiment" in read_error(call(*RUN, "--rounds", "3"))


DIVERGING = (
    *RUN,
    "--set",
    "data.task=regression",
    "--set",
    "evaluate_every=5",
    "--rounds",
    "60",
    "--lr",
    "2",
)


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(call, tmp_path):
    why = read_error(call(*DIVERGING))
    assert re.search(r"by round \d+ the model of client '\d' is not finite .*; lower lr \(now 2\)", why)
    (folder,) = (tmp_path / "runs").iterdir()
    saved = sorted(path.name for path in (folder / "checkpoint").iterdir())
    assert len(saved) == 2
    good = checkpoints.read_checkpoint(folder / "checkpoint", int(saved[-1][-8:]), folder.name[-16:])
    assert checkpoints.is_finite(good.load_progress([]))
    before = files(folder)
    for words in (DIVERGING, ("show", str(folder)), ("resume", str(folder), "--rounds", "80")):
        assert read_error(call(*words)) == why
    assert files(folder) == before
    (line,) = call("runs", "--json")[1].splitlines()
    assert json.loads(line)["state"] == "diverged"
    assert read_error(call(*DIVERGING, "--again")) == why
    code, out, err = call("compare", *DIVERGING[1:], "--seeds", "0", "--algorithms", "fedu,local", "--json")
    assert code == 1
    assert err.count("error: fedu, seed 0: ") == 1
    assert json.loads(out)


def test_a_damaged_reason_is_said_to_be_damaged(run, call):
    folder, _ = run("--rounds", "2")
    for content in (b"", b"{", b"3", b"{}", b"\xff"):
        (folder / "diverged.json").write_bytes(content)
        for words in ((*RUN, "--rounds", "2"), ("show", str(folder))):
            why = read_error(call(*words))
            assert "diverged.json" in why
            assert "--again" in why
    run("--rounds", "2", "--again")
    assert call("show", str(folder))[0] == 0


@pytest.mark.parametrize("name", ["experiment.toml", "rounds.jsonl"])
def test_a_damaged_run_does_not_hide_the_others(name, run, call):
    good, _ = run("--rounds", "2")
    bad, _ = run("--rounds", "2", "--seed", "1")
    (bad / name).write_bytes(b"seed = = 1\n")
    code, out, _ = call("runs", "--json")
    states = {line["run"]: line["state"] for line in map(json.loads, out.splitlines())}
    assert code == 0
    assert states == {good.name: "done", bad.name: "damaged"}
    code, out, err = call("runs")
    assert code == 0
    assert "damaged" in out
    assert str(bad / name) in err


def test_one_process_trains_a_run(run, call):
    folder, _ = run("--rounds", "2")
    before = files(folder)
    with FileLock(folder / ".lock"):
        for words in (
            (*RUN, "--rounds", "3"),
            (*RUN, "--rounds", "2", "--again"),
            (*COMPARE, "--rounds", "3"),
        ):
            why = read_error(call(*words))
            assert f"another process is training {str(folder)!r}; wait until it has finished" in why
        assert "finished and loaded from" in call(*RUN, "--rounds", "2")[2]  # what is only read needs no lock
    assert files(folder) == before
    run("--rounds", "3")


@pytest.mark.parametrize("name", ["", "rounds.jsonl", "checkpoint", "models", ".lock"])
def test_a_folder_that_cannot_be_written(name, run, call):
    folder, _ = run("--rounds", "2")
    shutil.rmtree(folder)
    wrong = folder / name
    if name == "rounds.jsonl":
        wrong.mkdir(parents=True)  # where a file is wanted
    else:
        wrong.parent.mkdir(exist_ok=True)
        wrong.write_text("")  # where a folder is wanted
        if name == ".lock":
            wrong.unlink()
            wrong.mkdir()
    why = read_error(call(*RUN, "--rounds", "2"))
    assert "cannot be written" in why
    assert str(wrong if name != ".lock" else folder) in why
