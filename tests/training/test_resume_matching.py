"""A resumed run takes clients by name and refuses whatever would change its numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedlap as fl
from laws import METHODS
from random_inputs import random_arrays

ORDER = ("d", "a", "f", "b", "e", "c")
MODEL = fl.models.linear(l2=0.01)
HOW = {"batch": 4, "seed": 5, "sample": 0.5}


def opposite(names):
    """Clients with equal features and opposite labels."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = (x[:, 0] > 0).astype(int)
    x[:, 0] += 4 * y
    return fl.Federation.from_arrays({name: (x, y if name == "north" else 1 - y) for name in names})


def test_reordered_clients_keep_their_own_models():
    names = ["north", "south"]
    first = fl.fit(fl.Local(lr=0.5), opposite(names), MODEL, rounds=20)
    assert first.scores[-1].accuracy == 1.0
    second = fl.fit(fl.Local(lr=0.5), opposite(names[::-1]), MODEL, rounds=21, resume=first)
    assert second.scores[-1].accuracy == 1.0
    third = fl.fit(fl.Local(lr=0.5), opposite(names), MODEL, rounds=22, resume=second)
    whole = fl.fit(fl.Local(lr=0.5), opposite(names), MODEL, rounds=22)
    torch.testing.assert_close(third.models, whole.models)


QUICK = ("fedu-sampled", "dfedu", "scaffold", "mocha", "fedu-learned")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_every_method_resumes_with_clients_in_another_order(name, federation, graph):
    method = METHODS[name]
    how = {**HOW, "sample": 0.5 if method.sampled else 1.0}
    algorithm = method.make(graph, local_steps=2)
    whole = fl.fit(algorithm, federation, method.model, rounds=5, **how)
    first = fl.fit(algorithm, federation, method.model, rounds=2, **how)
    other = federation.reorder(ORDER)
    second = fl.fit(algorithm, other, method.model, rounds=5, resume=first, **how)
    assert second.federation is other
    assert second.progress.clients == federation.clients
    assert [s.accuracy for s in second.scores] == [s.accuracy for s in whole.scores]
    for place, client in enumerate(ORDER):
        expected = whole.models[federation.clients.index(client)]
        assert torch.equal(second.models[place], expected)
        assert torch.equal(second.personal(client).parameters, expected)


def test_a_bare_matrix_follows_the_federation_that_is_passed(federation, graph):
    """A graph without names is in the order of the call, not of the state."""
    bare = fl.Graph.from_matrix(graph.weights.matrix())
    places = [federation.clients.index(client) for client in ORDER]
    moved = fl.Graph.from_matrix(graph.weights.matrix()[places][:, places])
    first = fl.fit(fl.FedU(bare, strength=0.3), federation, MODEL, rounds=2, **HOW)
    other = federation.reorder(ORDER)
    second = fl.fit(fl.FedU(moved, strength=0.3), other, MODEL, rounds=4, resume=first, **HOW)
    whole = fl.fit(fl.FedU(bare, strength=0.3), federation, MODEL, rounds=4, **HOW)
    assert torch.equal(second.models, whole.models[places])
    with pytest.raises(fl.InputError, match="resume: the graph differs from the graph of the run"):
        fl.fit(fl.FedU(bare, strength=0.3), other, MODEL, rounds=4, resume=first, **HOW)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ("abcdez", "client 'z' is not among the clients of the run"),
        ("abcde", "client 'f' of the run is missing"),
        ("abcdefg", "client 'g' is not among the clients of the run"),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_other_clients_are_refused(clients, message, allow):
    arrays = random_arrays([7, 9, 5, 8, 6, 7, 9])
    by_name = dict(zip("abcdefz", arrays.values(), strict=True)) | {"g": arrays["g"]}
    first, other = (
        fl.Federation.from_arrays({name: by_name[name] for name in names}, labels=3)
        for names in ("abcdef", clients)
    )
    earlier = fl.fit(fl.Local(), first, MODEL, rounds=1)
    with pytest.raises(fl.InputError, match=message) as error:
        fl.fit(fl.Local(), other, MODEL, rounds=2, resume=earlier, allow_changes=allow)
    assert "\n" not in str(error.value)


def changed_row(part, place):
    """The part with another value in one row's features."""
    store = part.store.clone()
    store[part.row[place]] += 1
    return replace(part, store=store)


CHANGES = {
    "lr": ("lr = 0.1, but the run began with 0.05", lambda a: {"algorithm": replace(a["algorithm"], lr=0.1)}),
    "strength": (
        "strength = 0.2, but the run began with 0.3",
        lambda a: {"algorithm": replace(a["algorithm"], strength=0.2)},
    ),
    "local_steps": ("local_steps", lambda a: {"algorithm": replace(a["algorithm"], local_steps=4)}),
    "graph": (
        "the graph differs from the graph of the run",
        lambda a: {"algorithm": replace(a["algorithm"], graph=fl.Graph.ring(a["federation"].clients))},
    ),
    "method": (
        "algorithm = Local, but the run began with FedU",
        lambda a: {"algorithm": fl.Local(lr=0.05, local_steps=2)},
    ),
    "l2": ("l2 = 0.5, but the run began with 0.01", lambda a: {"model": fl.models.linear(l2=0.5)}),
    "model": (
        "the model differs from the model of the run",
        lambda a: {"model": fl.models.mlp((5,), l2=0.01)},
    ),
    "seed": ("seed = 6, but the run began with 5", lambda a: {"seed": 6}),
    "batch": ("batch = 'all', but the run began with 4", lambda a: {"batch": "all"}),
    "sample": ("sample = 1.0, but the run began with 0.5", lambda a: {"sample": 1.0}),
    "dtype": ("dtype = 'float64', but the run began with 'float32'", lambda a: {"dtype": "float64"}),
    "precision": ("precision = 'bf16', but the run began with 'float32'", lambda a: {"precision": "bf16"}),
    "start": ("start differs from the start of the run", lambda a: {"start": torch.ones(15)}),
    "scale": (
        "the scaling differs from the scaling of the run",
        lambda a: {"federation": a["federation"].standardize("pooled")},
    ),
    "features": (
        "the training rows of client 'b' differ from those of the run",
        lambda a: {"federation": replace(a["federation"], train=changed_row(a["federation"].train, 6))},
    ),
    "test rows": (
        "the test rows of client 'a' differ from those of the run",
        lambda a: {"federation": replace(a["federation"], test=changed_row(a["federation"].test, 0))},
    ),
    "labels": (
        "the training rows of client 'a' differ from those of the run",
        lambda a: {
            "federation": replace(
                a["federation"], train=replace(a["federation"].train, y=(a["federation"].train.y + 1) % 3)
            )
        },
    ),
    "fewer rows": (
        "the training rows of client '.' differ from those of the run",
        lambda a: {"federation": a["federation"].scarce(seed=0)},
    ),
    "names of labels": (
        "labels are .*, but .* in the run",
        lambda a: {"federation": replace(a["federation"], labels=("0", "1", "two"))},
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_the_numbers_is_refused_unless_allowed(what, federation, graph):
    message, change = CHANGES[what]
    algorithm = fl.FedU(graph, strength=0.3, lr=0.05, local_steps=2)
    call = {"algorithm": algorithm, "federation": federation, "model": MODEL, **HOW}
    earlier = fl.fit(rounds=2, **call, start=torch.zeros(15))
    with pytest.raises(fl.InputError, match=f"resume: {message}.*allow_changes=True") as error:
        fl.fit(rounds=4, resume=earlier, **call | change(call))
    assert "\n" not in str(error.value)
    if what in ("method", "model", "dtype"):  # the state itself does not fit these
        with pytest.raises(
            fl.InputError,
            match="does not fit this run; pass the method, model, dtype and clients of the saved run",
        ):
            fl.fit(rounds=4, resume=earlier, allow_changes=True, **call | change(call))
        return
    resumed = fl.fit(rounds=4, resume=earlier, allow_changes=True, **call | change(call))
    assert resumed.progress.round == 4
    again = fl.fit(rounds=5, resume=resumed, **call | change(call))  # it started again with the change
    assert again.progress.round == 5


@pytest.mark.parametrize(
    "other", [{"engine": "one_by_one"}, {"keep": "host"}, {"evaluate_every": 2}, {"device": "cpu"}], ids=str
)
def test_what_keeps_the_numbers_may_differ(other, federation, graph):
    call = {"algorithm": fl.FedU(graph, strength=0.3), "federation": federation, "model": MODEL, **HOW}
    earlier = fl.fit(rounds=2, dtype="float64", **call)
    whole = fl.fit(rounds=4, dtype="float64", **call)
    resumed = fl.fit(rounds=4, dtype="float64", resume=earlier, **call, **other)
    assert (resumed.models - whole.models).abs().max() < 1e-9


def test_equal_data_and_settings_made_again_are_taken(arrays, graph):
    def call():
        federation = fl.Federation.from_arrays(arrays, labels=3, scale="client")
        method = fl.FedU(fl.Graph.from_matrix(graph.weights.matrix(), federation.clients), strength=0.3)
        net = nn.Sequential(nn.Linear(4, 3))
        return {"algorithm": method, "federation": federation, "model": fl.models.module(net)}

    earlier = fl.fit(rounds=2, **call(), **HOW)  # a module's own start does not matter any more
    assert fl.fit(rounds=3, resume=earlier, **call(), **HOW).progress.round == 3


def test_frozen_parameters_of_a_module_count(federation):
    def call(value):
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
        nn.init.constant_(net[0].weight, value)
        net[0].requires_grad_(False)
        nn.init.zeros_(net[0].bias)
        return {"algorithm": fl.Local(), "federation": federation, "model": fl.models.module(net)}

    earlier = fl.fit(rounds=1, **call(0.5))
    assert fl.fit(rounds=2, resume=earlier, **call(0.5)).progress.round == 2
    with pytest.raises(fl.InputError, match="resume: the model differs from the model of the run"):
        fl.fit(rounds=2, resume=earlier, **call(0.6))


def test_a_complete_graph_is_the_same_in_either_form(federation):
    complete = fl.Graph.complete(federation.clients, 0.1)
    written = fl.Graph.from_matrix(complete.weights.matrix(), federation.clients)
    call = {"federation": federation, "model": MODEL, **HOW}
    for one, other in ((complete, written), (written, complete)):
        earlier = fl.fit(fl.FedU(one, strength=0.3), rounds=1, **call)
        assert fl.fit(fl.FedU(other, strength=0.3), rounds=2, resume=earlier, **call).progress.round == 2
