"""Mistakes and corners that once went wrong."""

import numpy as np
import pytest
import torch
from torch import nn

import fedlap as fl
from fedlap.data.partition import Labels
from fedlap.training.schedule import Schedule, check_algorithm_and_model, compute_sample_size
from random_inputs import random_arrays


def test_global_takes_images_scaled_client_by_client():
    """Each pooled row keeps its own client's constants."""
    federation = fl.data.load("digits", scale="client")
    pooled = federation.pool_clients().to_device(torch.device("cpu"), torch.float64)
    by_name = federation.digests.argsort().tolist()
    raw = [federation.train.client(k)[0].unsqueeze(0) for k in by_name]
    images = [
        federation.scale.apply(x, torch.tensor([k]), torch.float64)[0]
        for x, k in zip(raw, by_name, strict=True)
    ]
    assert torch.equal(pooled.train.x, torch.cat(images))
    assert fl.fit(fl.Global(), federation, fl.models.linear(), rounds=2).scores[-1].accuracy > 0.5


def test_a_cut_that_leaves_a_label_to_nobody_is_refused():
    with pytest.raises(fl.InputError, match="do not cover all 10 labels"):
        fl.data.load("digits", partition=Labels(clients=4, labels_per_client=3))
    assert len(fl.data.load("digits", partition=Labels(clients=8, labels_per_client=3)).clients) == 8
    with pytest.raises(fl.InputError, match="no rows"):
        Labels(2, 1, 1.0).cut(torch.zeros(0, dtype=torch.int64), 0)


def test_a_very_uneven_cut():
    federation = fl.data.load("digits", partition=Labels(spread=500.0))
    assert int(federation.train.count.sum() + federation.test.count.sum()) == 1797


def test_regression_without_test_rows():
    problem = fl.data.synthetic("regression", clients=4, test_rows=0)
    last = fl.fit(fl.Local(), problem.federation, fl.models.linear(), rounds=2).scores[-1]
    assert last.loss is None
    assert last.train_loss > 0


@pytest.mark.parametrize("make", [fl.Graph.empty, lambda names: fl.Graph.ring(names, 0.0)])
@pytest.mark.parametrize("size", [1, 3, 2500])
def test_graphs_without_edges(make, size):
    graph = make([str(k) for k in range(size)])
    assert (graph.rho, graph.lambda2, graph.components, graph.edges) == (0, 0, size, 0)


def test_a_model_handed_out_is_the_user_s_own(federation, graph):
    result = fl.fit(fl.FedU(graph), federation, fl.models.mlp((4,)), rounds=1)
    before, generator = result.models.clone(), torch.get_rng_state()
    module = result.model("a")
    assert torch.equal(torch.get_rng_state(), generator)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    assert torch.equal(result.models, before)


def test_large_values_keep_their_digits():
    """Features are shifted before they are rounded."""
    arrays = {name: (x + 1e9, y) for name, (x, y) in random_arrays([30, 20]).items()}
    federation = fl.Federation.from_arrays(arrays, test_share=0).standardize("pooled")
    seen = federation.to_device(torch.device("cpu"), torch.float32).train.x
    assert seen.std(0, correction=0).sub(1).abs().max() < 1e-5


def test_a_bad_row_is_named_as_the_user_counts():
    x = np.zeros((6, 2))
    x[5, 1] = np.nan
    with pytest.raises(fl.InputError, match="client 'a', row 5"):
        fl.Federation.from_arrays({"a": (x, np.zeros(6, int))}, test_share=0.25)


def test_grey_images_are_one_channel():
    x = torch.randint(0, 255, (10, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    federation = fl.Federation.from_arrays({"a": (x, torch.arange(10) % 2)}, test_share=0).standardize(
        "pooled"
    )
    assert federation.scale.shift.numel() == 1


@pytest.mark.parametrize(
    "rows", [(np.zeros((3, 2)), 3), (np.zeros((3, 0)), np.zeros(3)), ([[1], [1, 2]], [0, 1])]
)
def test_arrays_that_cannot_be(rows):
    with pytest.raises(fl.InputError, match="client 'a'"):
        fl.Federation.from_arrays({"a": rows})


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 1], [1]], r"graph: the weights cannot be read \(.+\); expected a matrix of real numbers"),
        ([["a"]], r"graph: the weights cannot be read \(.+\); expected a matrix of real numbers"),
        (np.zeros((2, 2, 2)), r"graph: the weights cannot be read \(.+\); expected a matrix of real numbers"),
        (np.zeros(3), "graph: the weight"),
    ],
    ids=["matrix0", "matrix1", "matrix2", "matrix3"],
)
def test_weights_that_cannot_be(matrix, message):
    with pytest.raises(fl.InputError, match=message):
        fl.Graph.from_matrix(matrix)


def test_weights_from_a_sparse_tensor():
    matrix = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    assert fl.Graph.from_matrix(matrix.to_sparse()).rho == pytest.approx(4.0)


def test_frozen_parameters_stay():
    federation = fl.data.load("digits")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    for parameter in net[1].parameters():
        parameter.requires_grad_(False)
    result = fl.fit(fl.Local(lr=0.1), federation, fl.models.module(net), rounds=2)
    assert result.models.shape == (20, 60)
    module = result.model("3")
    assert torch.equal(module[1].weight, net[1].weight)
    assert not torch.equal(module[3].weight, net[3].weight)


@pytest.mark.parametrize(
    "net", [nn.LazyLinear(10), nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False))]
)
def test_modules_that_cannot_be(net):
    with pytest.raises(fl.InputError, match="module: "):
        fl.fit(fl.Local(), fl.data.load("digits"), fl.models.module(net), rounds=1)


def test_a_start_of_the_wrong_shape(federation, graph):
    for start in (torch.zeros(7), torch.zeros(5, 15), torch.full((15,), torch.nan)):
        with pytest.raises(fl.InputError, match="start"):
            fl.fit(fl.FedU(graph), federation, fl.models.linear(), start=start)


def test_a_graph_of_other_clients(federation):
    with pytest.raises(fl.InputError, match="client 'f' of the data is not in the graph"):
        fl.fit(fl.FedU(fl.Graph.complete("abcde")), federation, fl.models.linear())
    with pytest.raises(fl.InputError, match="5 vertices; expected 6, the number of clients"):
        fl.fit(fl.FedU(fl.Graph.from_matrix(np.zeros((5, 5)))), federation, fl.models.linear())


def test_predict_takes_raw_features():
    federation = fl.data.load("digits")
    result = fl.fit(fl.Local(lr=0.1), federation, fl.models.linear(), rounds=20)
    right = [
        result.predict(name, federation.test.client(k)[0]) == federation.test.client(k)[1]
        for k, name in enumerate(federation.clients)
    ]
    assert torch.cat(right).double().mean().item() == pytest.approx(result.scores[-1].accuracy, abs=1e-12)
    with pytest.raises(fl.InputError, match="unknown client '33'"):
        result.predict("33", federation.test.x)
    with pytest.raises(fl.InputError, match="pass rows of features"):
        result.predict("3", torch.zeros(64))


def test_two_names_that_read_alike(arrays):
    with pytest.raises(fl.InputError, match="'1' appears twice"):
        fl.Federation.from_arrays({1: arrays["a"], "1": arrays["b"]})


def test_labels_far_beyond_what_is_seen():
    with pytest.raises(fl.InputError, match="largest label is 10000000"):
        fl.Federation.from_arrays({"a": (np.zeros((3, 1)), np.array([0, 1, 10_000_000]))})


def test_labels_counted_by_numpy_or_named_in_an_array():
    rows = {"a": (np.zeros((4, 1)), np.array([0, 1, 2, 0]))}
    assert fl.Federation.from_arrays(rows, labels=np.int64(3)).labels == ("0", "1", "2")
    assert fl.Federation.from_arrays(rows, labels=np.array(["x", "y", "z"])).labels == ("x", "y", "z")


def test_arrays_that_may_not_be_written_to():
    x = np.zeros((4, 1))
    x.flags.writeable = False
    fl.Federation.from_arrays({"a": (x, np.array([0, 1, 0, 1]))})


def test_weights_rounded_to_single_precision_are_symmetric_enough():
    a = np.array([[0, 0.1], [np.float32(0.1), 0]])
    graph = fl.Graph.from_matrix(a)
    matrix = graph.weights.matrix().toarray()
    assert np.array_equal(matrix, matrix.T)


def test_an_unknown_setting_of_data():
    with pytest.raises(fl.InputError, match="'clientz'; did you mean 'clients'"):
        fl.data.load("synthetic", clientz=3)


def test_one_hidden_layer_by_its_width():
    assert fl.models.mlp(7) == fl.models.mlp((7,))


@pytest.mark.parametrize(
    ("algorithm", "model", "message"),
    [
        (fl.FedU, fl.models.linear(), "not an algorithm"),
        ("fedu", fl.models.linear(), "not an algorithm"),
        (fl.Local(), fl.models.linear, "not a model"),
        (fl.Local(), nn.Linear(4, 3), r"pass fl.models.module\(net\)"),
    ],
)
def test_makers_that_cannot_be(algorithm, model, message, federation):
    with pytest.raises(fl.InputError, match=message):
        check_algorithm_and_model(algorithm, model)


@pytest.mark.parametrize(
    "bad",
    [
        {"rounds": 2.5},
        {"batch": 2.5},
        {"batch": None},
        {"sample": "1"},
        {"keep": "cloud"},
        {"precision": "fp8"},
    ],
)
def test_schedules_that_cannot_be(bad):
    schedule = Schedule()
    schedule.__dict__.update(bad)  # past the types that tests check everywhere
    with pytest.raises(fl.InputError, match=next(iter(bad))):
        schedule.__post_init__()


@pytest.mark.parametrize(
    ("share", "clients", "size"), [(0.5, 5, 3), (0.5, 7, 4), (0.1, 4, 1), (0.1, 30, 3), (1.0, 6, 6)]
)
def test_how_many_are_sampled(share, clients, size):
    """max(1, ⌊sample·N + ½⌋): a half goes up."""
    assert compute_sample_size(fl.Local(), share, clients) == size
