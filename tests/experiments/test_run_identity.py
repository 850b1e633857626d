"""The identity of a run: every field but the rounds, and the data; a file makes the same run again."""

import tomllib

import numpy as np
import pytest

from fedlap.experiments.experiment import Experiment
from run_folders import RUN, files, read_error, running, same  # noqa: F401 — a fixture

CHANGES = [
    "data.rows=9", "data.noise=2.0", "data.scale=client", "scarce=true", "scarce.keep=0.5", "model=mlp",
    "model.l2=0.1", "algorithm=local", "algorithm.lr=0.01", "algorithm.local_steps=4",
    "algorithm.local_epochs=2",
    "algorithm.strength=0.02", "algorithm.neighbours=sampled", "algorithm.allow_unstable=true", "graph=ring",
    "graph.weight=0.5", "batch=4", "batch=all", "sample=0.5", "seed=1", "evaluate_every=2",
    "score_training=always", "dtype=float64", "engine=one_by_one", "precision=bf16", "keep=host",
    "fold={number=2, held_out=0}", "fold={number=2, held_out=1}",
]  # fmt: skip


@pytest.mark.slow
def test_every_field_but_the_rounds_gives_another_folder(run, tmp_path):
    usual, _ = run("--rounds", "1")
    assert run("--rounds", "2")[0] == usual
    assert run("--rounds", "2", "--set", "device=cpu", "--threads", "1")[0] == usual
    names = {usual.name} | {run("--rounds", "1", "--set", change)[0].name for change in CHANGES}
    assert len(names) == 1 + len(CHANGES)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    fields = {change.partition("=")[0].partition(".")[0] for change in CHANGES}
    # plugins: test_plugins.py; objects: test_object_folders.py
    others = {"rounds", "device", "content", "partition", "plugins", "objects"}
    assert fields == set(Experiment.model_fields) - others


@pytest.mark.parametrize("partition", ["iid", "quantity", "dirichlet"])
def test_another_partition_gives_another_folder(partition, run):
    words = ("run", "--rounds", "1", "--set", "data.test_share=0.3")
    folders = {
        run(*options, command=words)[0]
        for options in (
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
    second, notes = run(command=words)
    assert first.name != second.name
    assert "finished and loaded from" not in notes
    own_files(path)
    assert run(command=words)[0] == first
    own_files(path, 1e-9)
    why = read_error(call("run", str(first / "experiment.toml")))
    assert "own.npz" in why
    assert "has another SHA-256 than the file of this experiment" in why
    why = read_error(call("resume", str(first), "--rounds", "3"))
    assert "has another SHA-256 than the file of this experiment" in why


def test_other_content_is_refused(run, call):
    """Synthetic data, or data read by a later version, may change although the file of settings did not."""
    folder, _ = run("--rounds", "2")
    file = folder / "experiment.toml"
    content = tomllib.loads(file.read_text())["content"]
    file.write_text(file.read_text().replace(content, "0" * 32))
    for words in (["run", str(file)], ["run", str(file), "--again"]):
        why = read_error(call(*words))
        assert f"content = {'0' * 32!r}" in why
        assert content in why
    before = files(folder)
    assert "an experiment that does not match its name" in read_error(call(*RUN, "--rounds", "2"))
    assert "an experiment that does not match its name" in read_error(call(*RUN, "--rounds", "2", "--again"))
    assert read_error(call("resume", str(folder)))
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
        read_error(call(*words))
    assert files(folder) == before


def test_a_file_makes_the_same_run_again(run, call, tmp_path):
    folder, _ = run("--rounds", "3", "--algorithm", "ditto", "--set", "scarce=true", "--seed", "4")
    file = tmp_path / "mine.toml"
    file.write_bytes((folder / "experiment.toml").read_bytes())
    code, _, err = call("run", str(file))
    assert code == 0
    assert "finished and loaded from" in err
    other, _ = run(command=("run", str(file), "--save-rounds", "1"), out="other")
    same(folder, other)
    longer, notes = run("--rounds", "4", command=("run", str(file), "--save-rounds", "1"), out="other")
    assert longer == other
    assert "resumes from round 3" in notes
    changed, _ = run("--set", "algorithm.lr=0.5", command=("run", str(file)))
    assert changed != folder
    assert tomllib.loads((changed / "experiment.toml").read_text())["algorithm"]["lr"] == 0.5


def test_what_a_file_says_is_not_said_beside_it(run, call):
    folder, _ = run("--rounds", "1")
    for option, value in {
        "--algorithm": "fedu", "--seed": "0", "--lr": "0.1", "--local-steps": "3", "--batch": "20",
        "--data": "digits", "--model": "mlp", "--sample": "1", "--graph": "ring", "--device": "cpu",
    }.items():  # fmt: skip
        why = read_error(call("run", str(folder / "experiment.toml"), option, value))
        assert why.startswith(f"error: {option}: ")
        assert "--set" in why


def test_files_that_are_none(call, tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"seed = 1\n\xff\xfe")
    (tmp_path / "bad.toml").write_text("seed = = 1\n")
    for name, word in {
        "none.toml": "No such file", ".": "directory", "bytes.toml": "utf-8", "bad.toml": "line 1, column"
    }.items():  # fmt: skip
        why = read_error(call("run", str(tmp_path / name)))
        assert str(tmp_path / name) in why.replace("/.'", "'") or name == "."
        assert word in why


def test_an_automatic_strength_is_stored_as_its_number(run, call):
    folder, _ = run("--rounds", "2", "--strength", "auto")
    strength = tomllib.loads((folder / "experiment.toml").read_text())["algorithm"]["strength"]
    assert isinstance(strength, float)
    assert run("--rounds", "2", "--strength", str(strength))[0] == folder
    assert run("--rounds", "2", "--set", "algorithm.strength=auto")[0] == folder
    code, _, error = call(*RUN, "--rounds", "2", "--strength", "auto")
    assert code == 0
    assert f"strength = {strength:g} by 5-fold cross-validation on training rows" in " ".join(error.split())
    code, _, error = call(*RUN, "--strength", "much")
    assert code == 2
    assert "algorithm.strength = 'much'" in error
