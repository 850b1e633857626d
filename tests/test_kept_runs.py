"""Runs that are kept: shown, repeated, gone on with, and whatever may have happened to their folders."""

import json
import re
import shutil
import tomllib
from contextlib import contextmanager

import numpy as np
import pytest
from filelock import FileLock

from fedlap import checkpoints
from fedlap.experiment import Experiment

TINY = (
    "--data", "synthetic", "--set", "data.clients=4", "--set", "data.features=3", "--set", "data.rows=8",
    "--set", "data.test_rows=4", "--save-rounds", "1",
)  # fmt: skip
RUN = ("run", *TINY)
COMPARE = ("compare", *TINY, "--algorithms", "fedu,scaffold", "--seeds", "0-1", "--json")
SWEEP = ("sweep", *TINY, "--vary", "strength=0,0.1", "--seeds", "0-1", "--json")


@pytest.fixture
def run(call, tmp_path):
    """Run `fedlap run …` on tiny data: its folder, and what was said beside the result."""

    def made(*words, out="runs", command=RUN):
        code, said, err = call(*command, "--json", *words, "--out", str(tmp_path / out), out=False)
        assert code == 0, err
        return tmp_path / out / json.loads(said)["folder"].rpartition("/")[2], err

    return made


def files(folder):
    """Everything that is kept, byte for byte, and when it was written."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def rounds(folder):
    """The lines of rounds.jsonl but for the times."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


def same(one, other):
    """Two folders of one run are alike in all but times."""
    assert one.name == other.name
    assert rounds(one) == rounds(other)
    for name in ("experiment.toml", "models/models.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    last = [max((folder / "checkpoint").iterdir()) for folder in (one, other)]
    assert last[0].name == last[1].name
    assert (last[0] / "state.safetensors").read_bytes() == (last[1] / "state.safetensors").read_bytes()


def refused(answer):
    """The one line that says why."""
    code, out, err = answer
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(errors)) == (2, "", 1), err
    assert err.splitlines()[-1] == errors[0]
    assert "Traceback" not in err
    return errors[0]


def damage(path):
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def checkpoint(folder, round):
    return folder / "checkpoint" / f"round-{round:08d}"


def test_the_same_again_is_shown_and_nothing_is_trained(run, call):
    folder, said = run("--rounds", "3")
    assert "there already" not in said
    before = files(folder)
    again, said = run("--rounds", "3")
    assert again == folder
    assert "note: this run is there already" in said
    assert "--again" in said
    assert f"fedlap resume {folder} --rounds" in said
    assert "round 1/3" not in said
    assert files(folder) == before
    one, other = (call(*RUN, "--rounds", "3") for _ in range(2))
    assert one == other  # the times are those of the training, too


def test_again_repeats_with_the_same_numbers(run, tmp_path):
    folder, _ = run("--rounds", "3")
    before = tmp_path / "before" / folder.name
    shutil.copytree(folder, before)
    again, said = run("--rounds", "3", "--again")
    assert again == folder
    assert "round 3/3" in said
    same(folder, before)
    assert (folder / "rounds.jsonl").stat().st_mtime_ns > (before / "rounds.jsonl").stat().st_mtime_ns


@pytest.mark.parametrize(
    "words",
    [
        (), ("--algorithm", "scaffold", "--sample", "0.5"), ("--algorithm", "mocha"),
        ("--algorithm", "apfl", "--local-epochs", "1", "--batch", "3"), ("--set", "evaluate_every=2"),
        ("--set", "evaluate_every=0"),
    ],
)  # fmt: skip
def test_more_rounds_go_on_exactly(words, run, tmp_path):
    unbroken, _ = run(*words, "--rounds", "5", out="other")
    folder, _ = run(*words, "--rounds", "3")
    again, said = run(*words, "--rounds", "5")
    assert again == folder
    assert "goes on from round 3" in said
    same(folder, unbroken)
    (only,) = (tmp_path / "runs").iterdir()
    assert only == folder


def test_again_with_more_rounds_begins_anew(run):
    folder, _ = run("--rounds", "2")
    unbroken, _ = run("--rounds", "4", out="other")
    _, said = run("--rounds", "4", "--again")
    assert "goes on" not in said
    assert "round 1/4" in said
    same(folder, unbroken)


def test_fewer_rounds_are_shown_where_they_were_scored(call, tmp_path):
    words = (*RUN, "--set", "evaluate_every=2", "--json")
    short = json.loads(call(*words, "--rounds", "2", "--out", str(tmp_path / "other"), out=False)[1])
    long = json.loads(call(*words, "--rounds", "5")[1])
    before = files(tmp_path / "runs")
    code, out, err = call(*words, "--rounds", "2")
    shown = json.loads(out)
    assert code == 0
    assert "there already" in err
    assert shown["folder"] == long["folder"]
    assert {**shown["last"], "seconds": 0} == {**short["last"], "seconds": 0}
    why = refused(call(*words, "--rounds", "3"))
    assert "is at round 5 already, and not scored at round 3" in why
    assert "--again" in why
    assert files(tmp_path / "runs") == before


CHANGES = [
    "data.rows=9", "data.noise=2.0", "data.scale=client", "scarce=true", "scarce.keep=0.5", "model=mlp",
    "model.l2=0.1", "algorithm=local", "algorithm.lr=0.01", "algorithm.local_steps=4",
    "algorithm.local_epochs=2",
    "algorithm.strength=0.02", "algorithm.neighbours=sampled", "algorithm.allow_unstable=true", "graph=ring",
    "graph.weight=0.5", "batch=4", "batch=all", "sample=0.5", "seed=1", "evaluate_every=2", "dtype=float64",
    "engine=one_by_one", "precision=bf16", "keep=host", "fold={number=2, held_out=0}",
    "fold={number=2, held_out=1}",
]  # fmt: skip


def test_every_field_but_the_rounds_gives_another_folder(run, tmp_path):
    usual, _ = run("--rounds", "1")
    assert run("--rounds", "2")[0] == usual
    assert run("--rounds", "2", "--set", "device=cpu", "--threads", "1")[0] == usual
    names = {usual.name} | {run("--rounds", "1", "--set", change)[0].name for change in CHANGES}
    assert len(names) == 1 + len(CHANGES)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    fields = {change.partition("=")[0].partition(".")[0] for change in CHANGES}
    assert fields == set(Experiment.model_fields) - {"rounds", "device", "content", "partition"}


@pytest.mark.parametrize("partition", ["iid", "quantity", "dirichlet"])
def test_another_partition_gives_another_folder(partition, run):
    words = ("run", "--rounds", "1", "--set", "data.test_share=0.3")
    folders = {
        run(*some, command=words)[0]
        for some in (
            ("--partition", partition, "--set", "partition.clients=10"),
            ("--partition", partition, "--set", "partition.clients=11"),
            ("--set", "partition.clients=10"),
        )
    }
    assert len(folders) == 3


def own_files(path, shift=0.0):
    """Train and test rows of four clients."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2))
    x[7, 1] += shift
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int), client=np.arange(60) % 4)


def test_other_data_in_the_same_file_are_another_run(run, call, tmp_path):
    path = tmp_path / "own.npz"
    own_files(path)
    words = ("run", "--data", str(path), "--rounds", "2")
    first, _ = run(command=words)
    own_files(path, 1e-9)
    second, said = run(command=words)
    assert first.name != second.name
    assert "there already" not in said
    own_files(path)
    assert run(command=words)[0] == first
    own_files(path, 1e-9)
    why = refused(call("run", str(first / "experiment.toml")))
    assert "own.npz" in why
    assert "SHA-256 differs" in why
    assert "SHA-256 differs" in refused(call("resume", str(first), "--rounds", "3"))


def test_other_content_is_refused(run, call):
    """Data that are made up, or read by a later version, may change although the file of settings did not."""
    folder, _ = run("--rounds", "2")
    file = folder / "experiment.toml"
    content = tomllib.loads(file.read_text())["content"]
    file.write_text(file.read_text().replace(content, "0" * 32))
    for words in (["run", str(file)], ["run", str(file), "--again"]):
        why = refused(call(*words))
        assert f"content = {'0' * 32!r}" in why
        assert content in why
    before = files(folder)
    assert "another experiment than its name says" in refused(call(*RUN, "--rounds", "2"))
    assert "another experiment than its name says" in refused(call(*RUN, "--rounds", "2", "--again"))
    assert refused(call("resume", str(folder)))
    assert files(folder) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [("lr = 0.03", "lr = 0.04"), ("seed = 0", "seed = 1"), ("lr = 0.03", "lr = x"), ("lr", "rl")],
)
def test_a_file_that_was_edited_in_its_folder_is_refused(old, new, run, call):
    folder, _ = run("--rounds", "2")
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    before = files(folder)
    for words in ((*RUN, "--rounds", "2"), (*RUN, "--rounds", "4"), ("resume", str(folder), "--rounds", "4")):
        refused(call(*words))
    assert files(folder) == before


def test_a_file_makes_the_same_run_again(run, call, tmp_path):
    folder, _ = run("--rounds", "3", "--algorithm", "ditto", "--set", "scarce=true", "--seed", "4")
    file = tmp_path / "mine.toml"
    file.write_bytes((folder / "experiment.toml").read_bytes())
    code, _, err = call("run", str(file))
    assert code == 0
    assert "there already" in err
    other, _ = run(command=("run", str(file), "--save-rounds", "1"), out="other")
    same(folder, other)
    longer, said = run("--rounds", "4", command=("run", str(file), "--save-rounds", "1"), out="other")
    assert longer == other
    assert "goes on from round 3" in said
    changed, _ = run("--set", "algorithm.lr=0.5", command=("run", str(file)))
    assert changed != folder
    assert tomllib.loads((changed / "experiment.toml").read_text())["algorithm"]["lr"] == 0.5


def test_what_a_file_says_is_not_said_beside_it(run, call):
    folder, _ = run("--rounds", "1")
    for option, value in {
        "--algorithm": "fedu", "--seed": "0", "--lr": "0.1", "--local-steps": "3", "--batch": "20",
        "--data": "digits", "--model": "mlp", "--sample": "1", "--graph": "ring", "--device": "cpu",
    }.items():  # fmt: skip
        why = refused(call("run", str(folder / "experiment.toml"), option, value))
        assert why.startswith(f"error: {option}: ")
        assert "--set" in why


def test_files_that_are_none(call, tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"seed = 1\n\xff\xfe")
    (tmp_path / "bad.toml").write_text("seed = = 1\n")
    for name, word in {
        "none.toml": "No such file", ".": "directory", "bytes.toml": "utf-8", "bad.toml": "line 1, column"
    }.items():  # fmt: skip
        why = refused(call("run", str(tmp_path / name)))
        assert str(tmp_path / name) in why.replace("/.'", "'") or name == "."
        assert word in why


def numbers(answer):
    """The scores of a comparison or a sweep, but for times, and what was said."""
    code, out, err = answer
    assert code == 0, err
    made = json.loads(out)
    runs = made["algorithms"] if isinstance(made["algorithms"], dict) else made["runs"]
    return json.loads(json.dumps(runs), object_hook=lambda found: found | {"seconds": 0, "ms": 0}), err


def kept(out):
    """The folders of runs."""
    return sorted(path for path in out.iterdir() if (path / "experiment.toml").exists())


@pytest.mark.parametrize("command", [COMPARE, SWEEP], ids=["compare", "sweep"])
def test_what_is_there_is_shown_and_what_is_missing_is_trained(command, call, tmp_path):
    words = (*command, "--rounds", "3")
    whole, said = numbers(call(*words))
    assert "there already" not in said
    folders = kept(tmp_path / "runs")
    before = {folder: files(folder) for folder in folders}
    shown, said = numbers(call(*words))
    assert shown == whole
    assert f"{len(folders)} of {len(folders)} runs are there already" in said
    assert "round 1/3" not in said
    assert {folder: files(folder) for folder in folders} == before
    lost = [folder for folder in folders if "scaffold" in folder.name] or folders
    copies = {folder: tmp_path / "copy" / folder.name for folder in lost}
    for folder, copy in copies.items():
        shutil.move(folder, copy)
    assert numbers(call(*words))[0] == whole
    for folder, copy in copies.items():
        same(folder, copy)
    again, said = numbers(call(*words, "--again"))
    assert again == whole
    assert "there already" not in said


def test_runs_of_a_comparison_are_those_of_run(run, call, tmp_path):
    """One folder a run, whoever trains it."""
    folder, _ = run("--rounds", "3", "--seed", "1")
    before = files(folder)
    _, said = numbers(call(*COMPARE, "--rounds", "3"))
    assert "1 of 4 runs are there already" in said
    assert files(folder) == before
    for algorithm in ("fedu", "scaffold"):
        _, said = run("--rounds", "3", "--seed", "1", "--algorithm", algorithm)
        assert "this run is there already" in said


@pytest.mark.parametrize(
    ("rounds", "command"),
    [(3, COMPARE), (4, COMPARE), (7, COMPARE), (2, SWEEP)],
    ids=["first", "between", "second", "sweep"],
)
def test_together_interrupted_and_gone_on_with_is_as_unbroken(rounds, command, call, tmp_path, monkeypatch):
    """Asked to stop after so many rounds of all stacks, of four rounds each."""
    from fedlap.cli import together

    words = (*command, "--rounds", "4")
    whole, _ = numbers(call(*words, "--out", str(tmp_path / "other"), out=False))
    seen = []

    @contextmanager
    def stopping():
        yield lambda: seen.append(1) or len(seen) == rounds

    with monkeypatch.context() as patched:
        patched.setattr(together, "stop_on_signal", stopping)
        code, out, err = call(*words)
    assert (code, out) == (130, "")
    assert f"stopped after round {(rounds - 1) % 4 + 1}, and saved; the same command goes on" in err
    ended, said = numbers(call(*words))
    assert ended == whole
    if rounds % 4:
        assert f"runs go on from round {rounds % 4}" in said
    for folder in kept(tmp_path / "other"):
        same(tmp_path / "runs" / folder.name, folder)


@pytest.mark.parametrize("lost", [[1], [0, 2]])
def test_a_stack_goes_on_from_the_last_round_that_all_have(lost, call, tmp_path):
    words = ("compare", *TINY, "--algorithms", "fedu", "--seeds", "0-2", "--json", "--rounds")
    whole, _ = numbers(call(*words, "4", "--out", str(tmp_path / "other"), out=False))
    numbers(call(*words, "4"))
    folders = kept(tmp_path / "runs")
    for place in lost:  # as after a kill between the checkpoints of one round
        shutil.rmtree(checkpoint(folders[place], 4))
    ended, said = numbers(call(*words, "4"))
    assert ended == whole
    assert "3 of 3 runs go on from round 3" in said
    for folder in kept(tmp_path / "other"):
        same(tmp_path / "runs" / folder.name, folder)


def test_a_stack_that_lost_a_run_says_so(call, tmp_path):
    words = ("compare", *TINY, "--algorithms", "fedu", "--seeds", "0-2", "--json", "--rounds")
    whole, _ = numbers(call(*words, "5", "--out", str(tmp_path / "other"), out=False))
    numbers(call(*words, "3"))
    shutil.rmtree(kept(tmp_path / "runs")[1])
    ended, said = numbers(call(*words, "5"))
    assert "2 of 3 runs that were trained together go on without the others" in said
    for one, other in zip(ended["fedu"], whole["fedu"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_runs_lists_them(run, call, tmp_path):
    done, _ = run("--rounds", "2")
    half, _ = run("--rounds", "4", "--algorithm", "local")
    shutil.rmtree(checkpoint(half, 4))
    code, out, _ = call("runs", "--json")
    lines = {line["run"]: line for line in map(json.loads, out.splitlines())}
    assert code == 0
    assert set(lines) == {done.name, half.name}
    assert lines[done.name] == {
        "run": done.name, "state": "done", "round": 2, "rounds": 2, "folder": str(done),
        "accuracy": rounds(done)[-1]["accuracy"], "loss": rounds(done)[-1]["loss"],
    }  # fmt: skip
    assert (lines[half.name]["state"], lines[half.name]["round"]) == ("unfinished", 3)
    code, out, _ = call("runs")
    assert code == 0
    assert [name in out for name in (done.name, half.name, "unfinished", "3/4", "2/2")] == [True] * 5
    assert "there are no runs" in refused(call("runs", "--out", str(tmp_path / "none"), out=False))


def test_show_and_resume_take_a_folder_or_a_name(run, call, tmp_path, monkeypatch):
    folder, _ = run("--rounds", "2")
    before = files(folder)
    by_run = json.loads(call(*RUN, "--rounds", "2", "--json")[1])
    for name in (str(folder), folder.name):
        assert json.loads(call("show", name, "--json")[1]) == by_run
        code, out, err = call("show", name)
        assert (code, err) == (0, "")
        assert str(folder) in out
        assert "there already" in call("resume", name)[2]
    assert files(folder) == before
    monkeypatch.chdir(folder.parent)
    assert call("show", folder.name, out=False)[0] == 0
    assert (
        json.loads(call("resume", folder.name, "--rounds", "3", "--json", out=False)[1])["last"]["round"] == 3
    )
    for command in ("show", "resume"):
        for wrong in ("synthetic-fedu-none", str(tmp_path), str(folder / "rounds.jsonl")):
            assert "is not the folder of a run" in refused(call(command, wrong))


def test_resume_goes_on_exactly(run, call):
    unbroken, _ = run("--rounds", "6", out="other")
    folder, _ = run("--rounds", "6")
    for round in (6, 5):
        shutil.rmtree(checkpoint(folder, round))
    (folder / "models" / "models.safetensors").unlink()
    run("--rounds", "4", "--again")
    assert call("resume", str(folder), "--rounds", "5", "--save-rounds", "1")[0] == 0
    code, _, err = call("resume", str(folder), "--rounds", "6", "--save-rounds", "2")
    assert code == 0
    assert "goes on from round 5" in err
    same(folder, unbroken)
    renamed = folder.rename(folder.with_name("mine"))
    assert "not named by its experiment" in refused(call("resume", str(renamed), "--rounds", "7"))
    assert call("show", str(renamed))[0] == 0


def test_an_unfinished_run_is_shown_as_far_as_it_is(run, call):
    folder, _ = run("--rounds", "3")
    shutil.rmtree(checkpoint(folder, 3))
    code, out, err = call("show", str(folder), "--json")
    assert code == 0
    assert "not finished (saved at round 2)" in err
    assert f"fedlap resume {folder}" in err
    assert json.loads(out)["last"]["round"] >= 2
    shutil.rmtree(folder / "checkpoint")
    (folder / "rounds.jsonl").write_text("")
    assert "has no scores yet" in refused(call("show", str(folder)))


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
            why = refused(call(*words))
            assert f"{str(file)!r}, line 2 is damaged" in why
            assert "--again" in why
    run("--rounds", "3", "--again")
    same(folder, unbroken)


def test_a_line_that_is_gone_is_missed(run, call):
    folder, _ = run("--rounds", "3")
    file = folder / "rounds.jsonl"
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join(lines[1:]))
    assert "no line for round 1" in refused(call(*RUN, "--rounds", "3"))
    file.write_bytes(b"\n".join(lines[:2]))  # the second is not written to its end
    assert "no line for round 2" in refused(call(*RUN, "--rounds", "3"))


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_the_checkpoint_before_a_damaged_one_is_used(name, run):
    unbroken, _ = run("--rounds", "5", out="other")
    folder, _ = run("--rounds", "3")
    damage(checkpoint(folder, 3) / name)
    _, said = run("--rounds", "5")
    assert "the checkpoint of round 3 is damaged" in said
    assert "goes on from round 2" in said
    same(folder, unbroken)


def test_the_last_checkpoint_of_a_run_that_was_done_is_made_again(run):
    unbroken, _ = run("--rounds", "3", out="other")
    folder, _ = run("--rounds", "3")
    (checkpoint(folder, 3) / "manifest.json").unlink()
    _, said = run("--rounds", "3")
    assert "is not complete: manifest.json is missing" in said
    same(folder, unbroken)
    _, said = run("--rounds", "3")
    assert "this run is there already" in said


def test_without_a_good_checkpoint_there_is_again(run, call):
    unbroken, _ = run("--rounds", "3", out="other")
    folder, _ = run("--rounds", "3")
    for round in (2, 3):
        damage(checkpoint(folder, round) / "state.safetensors")
    before = files(folder)
    for words in ((*RUN, "--rounds", "3"), (*RUN, "--rounds", "4"), ("resume", str(folder))):
        why = refused(call(*words))
        assert "there is no other" in why
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
    assert "belongs to another experiment" in refused(call(*RUN, "--rounds", "3"))


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
    why = refused(call(*DIVERGING))
    assert re.search(r"by round \d+ the loss of client '\d' .*; lower lr \(now 2\)", why)
    (folder,) = (tmp_path / "runs").iterdir()
    saved = sorted(path.name for path in (folder / "checkpoint").iterdir())
    assert len(saved) == 2
    good = checkpoints.read(folder / "checkpoint", int(saved[-1][-8:]), folder.name[-16:])
    assert checkpoints.finite(good.progress([]))
    before = files(folder)
    for words in (DIVERGING, ("show", str(folder)), ("resume", str(folder), "--rounds", "80")):
        assert refused(call(*words)) == why
    assert files(folder) == before
    (line,) = call("runs", "--json")[1].splitlines()
    assert json.loads(line)["state"] == "diverged"
    assert refused(call(*DIVERGING, "--again")) == why
    code, out, err = call("compare", *DIVERGING[1:], "--seeds", "0", "--algorithms", "fedu,local", "--json")
    assert code == 1
    assert err.count("error: fedu, seed 0: ") == 1
    assert json.loads(out)


def test_a_damaged_reason_is_said_to_be_damaged(run, call):
    folder, _ = run("--rounds", "2")
    for content in (b"", b"{", b"3", b"{}", b"\xff"):
        (folder / "diverged.json").write_bytes(content)
        for words in ((*RUN, "--rounds", "2"), ("show", str(folder))):
            why = refused(call(*words))
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
            assert f"another process is training {str(folder)!r}; wait for it" in refused(call(*words))
        assert "there already" in call(*RUN, "--rounds", "2")[2]  # what is only read needs no lock
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
    why = refused(call(*RUN, "--rounds", "2"))
    assert "cannot be written" in why
    assert str(wrong if name != ".lock" else folder) in why
