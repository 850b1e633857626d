"""`fl.compare(folder=…)` with Python objects: runs are stored and loaded by the digests of their content."""

import json
from dataclasses import dataclass, replace

import pandas
import pytest
import torch
from torch import nn

import fedlap as fl
from fedlap.experiments import session
from fedlap.experiments.run_folder import list_run_folders


@dataclass(frozen=True)
class Twice(fl.Local):
    """Local training, of which every model is then doubled."""

    factor: float = 2.0

    def adapt(self, w, task):
        return self.factor * w


def small(seed):
    drawn = fl.data.synthetic(clients=4, features=3, rows=12, seed=seed)
    return drawn.federation, drawn.graph


def build_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


METHODS = {"mine": Twice(), "fedu": lambda federation, graph: fl.FedU(graph, strength=0.1), "local": "local"}


def compare(**changes):
    settings = {
        "methods": METHODS,
        "data": small,
        "model": fl.models.module(build_net()),
        "graph": "known",
        "seeds": [0, 1],
        "rounds": 3,
    }
    settings |= changes
    return fl.compare(settings.pop("methods"), settings.pop("data"), settings.pop("model"), **settings)


@pytest.fixture
def count_trained(monkeypatch):
    """The number of runs that were trained and stored so far."""
    numbers, train = [], session.train_stack

    def count(prepared, *callbacks):
        numbers.append(len(prepared))
        return train(prepared, *callbacks)

    monkeypatch.setattr(session, "train_stack", count)
    return lambda: sum(numbers)


def list_scores(result):
    frame = result.scores
    return frame[~frame["metric"].str.startswith("seconds")].reset_index(drop=True)


def test_stored_objects_have_the_numbers_of_memory_and_are_loaded(tmp_path, count_trained):
    memory = compare()
    first = compare(folder=tmp_path)
    assert count_trained() == 6
    again = compare(folder=tmp_path)
    assert count_trained() == 6
    assert len(list_run_folders(tmp_path)) == 6
    for result in (first, again):
        pandas.testing.assert_frame_equal(list_scores(result), list_scores(memory))
        pandas.testing.assert_frame_equal(result.clients, memory.clients)
        for row, by_seed in memory.results.items():
            for seed, wanted in by_seed.items():
                assert torch.equal(result.results[row][seed].models, wanted.models)
    assert again.report(tmp_path / "page.html").exists()


CHANGES = {
    "another setting": {"methods": METHODS | {"mine": Twice(factor=3.0)}},
    "another start": {"model": fl.models.module(build_net(1))},
    "other data": {"data": lambda seed: small(seed + 7)},
    "another graph": {"graph": lambda federation: fl.Graph.complete(federation.clients)},
    "another batch": {"batch": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_changed_objects_are_trained(change, tmp_path, count_trained):
    compare(folder=tmp_path)
    compare(folder=tmp_path, **CHANGES[change])
    expected = {"another setting": 2, "another graph": 2}  # only that row
    assert count_trained() == 6 + expected.get(change, 6)


def test_changed_code_is_trained(tmp_path, count_trained):
    compare(folder=tmp_path, methods={"mine": Twice()})
    other = dataclass(frozen=True)(type("Twice", (Twice,), {"__doc__": "Other code."}))
    compare(folder=tmp_path, methods={"mine": other()})
    assert count_trained() == 4


def test_an_interrupted_comparison_resumes(tmp_path, count_trained):
    """A comparison of fewer rounds is continued, with the numbers of an unbroken one."""
    compare(folder=tmp_path, rounds=1)
    resumed, unbroken = compare(folder=tmp_path), compare()
    pandas.testing.assert_frame_equal(list_scores(resumed), list_scores(unbroken))
    assert count_trained() == 12
    assert len(list_run_folders(tmp_path)) == 6


def test_named_data_keep_their_clients_on_the_command_line(tmp_path, call, no_figures):
    data = {"name": "synthetic", "clients": 4, "features": 3, "rows": 12}
    result = compare(folder=tmp_path, data=data, model="linear", graph="ring")
    listed = [
        json.loads(line) for line in call("runs", "--json", "--out", str(tmp_path), out=False)[1].splitlines()
    ]
    assert {entry["algorithm"] for entry in listed if "run" in entry} == {"Twice", "fedu", "local"}
    code, _, err = call("report", str(result.folder), "--out", str(tmp_path / "page"), out=False)
    assert (code, "Traceback" in err) == (0, False)
    assert err == ""
    with (tmp_path / "page" / "tables" / "client-scores.csv").open() as file:
        assert len(file.readlines()) == 1 + 3 * 2 * 4  # methods, seeds and clients


def test_tuning_and_sweeps_of_objects_are_stored(tmp_path, count_trained):
    tuned = compare(folder=tmp_path, methods={"mine": Twice()}, seeds=[0], tune=True, folds=2)
    number = count_trained()
    again = compare(folder=tmp_path, methods={"mine": Twice()}, seeds=[0], tune=True, folds=2)
    assert count_trained() == number
    assert again.tuned == tuned.tuned
    swept = fl.sweep(Twice(), small, vary={"factor": [1.0, 2.0]}, seeds=[0], rounds=2, folder=tmp_path)
    assert count_trained() == number + 2
    assert swept.folder is not None
    assert replace(swept, folder=None).table.shape[0] == 2
