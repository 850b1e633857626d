"""The same data give the same numbers, bit for bit, in Python and on the command line."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import fedlap as fl
from fedlap.data.user_files import get_exact_options
from fedlap.personal import Personals
from user_tables import REAL, ROWS

ROUNDS, SEED = 3, 4
FRAMES = {"classification": ROWS, "regression": REAL.assign(outcome=1000 + 50 * REAL["outcome"])}
SCALES = ("pooled", "client", "none")
either_task = pytest.mark.parametrize("task", FRAMES)
every_scale = pytest.mark.parametrize("scale", SCALES)


def run_command(call, *words):
    """Return the models and the scores, without times, of a run of the command line."""
    code, out, err = call("run", *words, "--rounds", str(ROUNDS), "--seed", str(SEED), "--json")
    assert code == 0, err
    folder = Path(json.loads(out)["folder"])
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    scores = [fl.Score.from_dict(json.loads(line)) for line in lines]
    return Personals.load(folder / "models"), scores


def check_same(command, result):
    """Compare models, their scaling, and scores."""
    personals, scores = command
    mine = result.personals
    assert personals.clients == mine.clients
    assert personals.metadata.labels == mine.metadata.labels
    assert torch.equal(personals.models, mine.models)
    for name in ("shift", "factor"):
        assert torch.equal(getattr(personals.scale, name), getattr(mine.scale, name))
    targets = [models.target_scale for models in (personals, mine)]
    assert (targets[0] is None) == (targets[1] is None)
    if targets[0] is not None:
        assert torch.equal(targets[0].mean, targets[1].mean)
        assert torch.equal(targets[0].deviation, targets[1].deviation)
    untimed = [[{**score.as_dict(), "seconds": 0} for score in run] for run in (scores, result.scores)]
    assert untimed[0] == untimed[1]


def train(federation, graph=None, method=fl.FedU, **settings):
    graph = fl.Graph.complete(federation.clients) if graph is None else graph
    return fl.fit(method(graph, **settings), federation, fl.models.linear(), rounds=ROUNDS, seed=SEED)


@either_task
def test_weights_of_a_file_give_the_numbers_of_weights_in_python(task, call, tmp_path):
    frame = FRAMES[task].assign(share=np.random.default_rng(3).integers(0, 4, 32) + 0.25)
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    words = ("--data", str(path), "--client", "hospital", "--label", "outcome", "--weight", "share")
    federation = fl.Federation.from_dataframe(frame, "hospital", "outcome", weight="share", seed=SEED)
    check_same(run_command(call, *words), train(federation))
    unweighted = fl.Federation.from_dataframe(
        frame, "hospital", "outcome", drop=["share"], seed=SEED, scale="pooled"
    )
    assert not torch.equal(train(federation).models, train(unweighted).models)


@either_task
@every_scale
def test_a_csv_file_gives_the_numbers_of_its_data_frame(task, scale, call, tmp_path):
    path = tmp_path / "rows.csv"
    FRAMES[task].to_csv(path, index=False)
    words = ("--data", str(path), "--client", "hospital", "--label", "outcome")
    command = run_command(call, *words, "--set", f"data.scale={scale}")
    frame = pandas.read_csv(path, **get_exact_options(pandas.__version__))
    federation = fl.Federation.from_dataframe(frame, "hospital", "outcome", seed=SEED, scale=scale)
    check_same(command, train(federation))


@either_task
def test_the_default_scale_is_the_same_everywhere(task, call, tmp_path):
    path, frame = tmp_path / "rows.csv", FRAMES[task]
    frame.to_csv(path, index=False)
    command = run_command(call, "--data", str(path), "--client", "hospital", "--label", "outcome")
    check_same(command, train(fl.Federation.from_dataframe(frame, "hospital", "outcome", seed=SEED)))
    loaded = fl.data.load("file", seed=SEED, path=str(path), client="hospital", label="outcome")
    check_same(command, train(loaded))
    targets = frame["outcome"].to_numpy()
    if task == "classification":
        labels, targets = np.unique(targets.astype(str), return_inverse=True)
    x = frame[["age", "dose"]].to_numpy()
    arrays = {name: (x[frame["hospital"] == name], targets[frame["hospital"] == name])
              for name in frame["hospital"].unique()}  # fmt: skip
    names = labels if task == "classification" else None
    check_same(command, train(fl.Federation.from_arrays(arrays, seed=SEED, labels=names)))


@either_task
@every_scale
def test_an_npz_file_gives_the_numbers_of_its_arrays(task, scale, call, tmp_path):
    path, frame = tmp_path / "rows.npz", FRAMES[task]
    x, clients = frame[["age", "dose"]].to_numpy(), frame["hospital"].to_numpy().astype(str)
    y = frame["outcome"].to_numpy()
    labels = None
    if task == "classification":
        y = np.unique(y.astype(str), return_inverse=True)[1]
        labels = 2
    np.savez(path, x=x, y=y, client=clients)
    command = run_command(call, "--data", str(path), "--set", f"data.scale={scale}")
    arrays = {name: (x[clients == name], y[clients == name]) for name in dict.fromkeys(clients.tolist())}
    check_same(command, train(fl.Federation.from_arrays(arrays, seed=SEED, labels=labels, scale=scale)))


@pytest.mark.parametrize("name", ["digits", "synthetic", "radon"])
def test_an_embedded_set_gives_the_same_numbers(name, call):
    command = run_command(call, "--data", name)
    check_same(command, train(fl.data.load(name, seed=SEED)))


@pytest.mark.parametrize("name", ["synthetic", "radon"])
def test_a_known_graph_gives_the_same_numbers(name, call):
    command = run_command(call, "--data", name, "--graph", "known", "--strength", "0.1", "--lr", "0.05")
    federation, graph = fl.data.load_with_graph(name, seed=SEED)
    check_same(command, train(federation, graph, strength=0.1, lr=0.05))
