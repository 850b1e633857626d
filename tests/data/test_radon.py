"""The embedded radon measurements: complete, with borders and places, and worth their graph."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.data.radon import load_radon
from fedlap.experiments.experiment import Experiment

SEEDS = range(10)


def test_all_houses_and_counties_are_there():
    connected = load_radon()
    table, graph = connected.table, connected.graph
    assert table.x.shape == (919, 1)
    assert (len(table.clients), graph.edges, graph.components) == (85, 211, 1)
    assert table.clients[0] == "Aitkin"
    assert table.clients[-1] == "Yellow Medicine"
    assert table.places.columns == ("longitude", "latitude")
    assert (table.features, table.target, table.labels) == (("floor",), "log_radon", None)
    assert set(table.x.flatten().tolist()) == {0.0, 1.0}
    # The first house: the first floor, 2.2 pCi/L.
    assert (float(table.x[0]), float(table.y[0].exp())) == (1.0, pytest.approx(2.2))
    hennepin = table.clients.index("Hennepin")
    assert int((table.owner == hennepin).sum()) == 105
    west, east = table.places.values[:, 0].min(), table.places.values[:, 0].max()
    assert (west > -97.5, east < -89.4) == (True, True)


def test_borders_join_counties_that_are_near():
    connected = load_radon()
    places = connected.table.places.values
    matrix = connected.graph.weights.matrix().toarray()
    assert set(np.unique(matrix)) == {0.0, 1.0}
    apart = np.hypot(*(places[:, None] - places).transpose(2, 0, 1) * np.array([0.69, 1])[:, None, None])
    assert apart[matrix > 0].max() < 1.6  # degrees of latitude; the state measures about six
    names = connected.graph.clients
    hennepin = matrix[names.index("Hennepin")]
    assert {names[k] for k in hennepin.nonzero()[0]} == {
        "Anoka", "Carver", "Dakota", "Ramsey", "Scott", "Sherburne", "Wright"
    }  # fmt: skip


def test_uranium_is_a_feature_if_asked():
    federation = fl.data.load("radon", features=["floor", "uranium"])
    assert federation.features == ("floor", "uranium")
    for k in range(len(federation.clients)):
        assert len(federation.train.client(k)[0][:, 1].unique()) == 1
    alone = fl.data.load("radon", features=["uranium"])
    assert torch.equal(alone.train.x[:, 0], federation.train.x[:, 1])


def test_a_county_with_one_house_has_no_test_row():
    federation = fl.data.load("radon")
    counts = federation.train.count + federation.test.count
    assert int((counts == 1).sum()) == 3
    assert federation.test.count[counts == 1].tolist() == [0, 0, 0]
    assert int(counts.sum()) == 919


def test_a_partition_has_neither_the_graph_nor_the_places():
    federation, graph = fl.data.load_with_graph("radon", partition=fl.partition.Iid(10))
    assert (federation.places, graph) == (None, None)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (["flor"], "unknown feature of data 'radon' 'flor'; did you mean 'floor'"),
        ([], "expected floor, uranium, or both"),
        (["floor", "floor"], "expected floor, uranium, or both"),
    ],
)
def test_wrong_features_are_refused(features, message):
    with pytest.raises(fl.InputError, match=message) as error:
        Experiment.of({"data": {"name": "radon", "features": features}}).load()
    assert "\n" not in str(error.value)


def train(method, federation, seed):
    result = fl.fit(
        method, federation, fl.models.linear(), rounds=300, batch="all", seed=seed, evaluate_every=300
    )
    return result.scores[-1].rmse


def measure_errors(features):
    """Return root mean squared errors by method, one per seed; FedU has η = 1."""
    errors = {name: [] for name in ("borders", "shuffled", "complete", "local", "global")}
    for seed in SEEDS:
        federation, borders = fl.data.load_with_graph("radon", seed, features=features)
        graphs = {
            "borders": borders,
            "shuffled": borders.shuffle(seed),
            "complete": fl.Graph.complete(federation.clients),
        }
        for name, graph in graphs.items():
            errors[name].append(
                train(fl.FedU(graph, lr=0.05, strength=1.0, mixing="implicit"), federation, seed)
            )
        errors["local"].append(train(fl.Local(lr=0.05), federation, seed))
        errors["global"].append(train(fl.Global(lr=0.05), federation, seed))
    return {name: np.array(values) for name, values in errors.items()}


@pytest.mark.slow
def test_borders_help_if_the_floor_is_the_only_feature():
    """Measured: borders 0.79, one model 0.83, shuffled 0.84, everybody joined 0.84, alone 0.93."""
    errors = measure_errors(["floor"])
    for name in ("shuffled", "complete", "local", "global"):
        gain = errors[name] - errors["borders"]
        assert gain.mean() > 2.3 * gain.std(ddof=1) / len(gain) ** 0.5, name  # t with 9 degrees: p < 0.05
    assert errors["borders"].mean() == pytest.approx(0.792, abs=0.01)  # half of its square: 0.314


@pytest.mark.slow
def test_one_model_does_as_well_with_uranium():
    """Measured: one model 0.776, everybody joined 0.781, borders 0.787, alone 0.914."""
    errors = measure_errors(["floor", "uranium"])
    assert errors["global"].mean() < errors["borders"].mean() + 0.005
    assert errors["global"].mean() < errors["local"].mean() - 0.05
