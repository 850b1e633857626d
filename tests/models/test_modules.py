"""A row of a stack as a module of torch's, and a user's own module as a model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlap as fl
from fedlap.models import Batch, CrossEntropy, Model
from networks import CLIENTS, LABELS, Conv, batch_for, build_seeded, close, every_network, problem, sequential


@every_network
def test_a_row_is_an_ordinary_module(name):
    model, W, batch = problem(name, False)
    x = batch.x
    if name == "cnn on grey":
        x = x.unsqueeze(2)  # the module takes a channel, as torch's layers do
    for place in range(CLIENTS):
        module = model.network.module(W[place])
        with torch.no_grad():
            close(module(x[place]), model.scores(W, batch.x)[place], 1e-12)
        parameters = dict(module.named_parameters())
        flat = [value.flatten() for key, value in module.state_dict().items() if key in parameters]
        assert torch.equal(torch.cat(flat), W[place])


def test_a_module_starts_where_it_is():
    net = sequential()
    network = fl.models.module(net).build((4,), LABELS)
    flat = nn.utils.parameters_to_vector(net.parameters()).detach().double()
    assert torch.equal(network.start(0), flat)
    assert torch.equal(network.start(1), flat)


def test_the_mlp_and_the_same_layers_as_a_module():
    model, W, batch = problem("sequential", False)
    plain = Model(fl.models.mlp((6,)).build((4,), LABELS), CrossEntropy(), 0.1)
    close(model.scores(W, batch.x), plain.scores(W, batch.x), 1e-12)
    close(model.gradient(W, batch), plain.gradient(W, batch), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [sequential, lambda: build_seeded(Conv)], ids=["sequential", "conv"])
def test_a_users_module_called_directly(make, dtype):
    """One copy of the module a client, torch's own loss, and backward()."""
    bound = 1e-5 if dtype == torch.float32 else 1e-12
    inputs = (4,) if make is sequential else (2, 5, 5)
    net = make()
    model = Model(fl.models.module(net).build(inputs, LABELS), CrossEntropy())
    batch = batch_for(inputs, False)
    batch = Batch(batch.x.to(dtype), batch.y, batch.weight.to(dtype))
    W = torch.stack([model.start(0) * (1 + k) for k in range(CLIENTS)]).to(dtype)
    scores, gradient = model.scores(W, batch.x), model.gradient(W, batch)
    assert scores.dtype == gradient.dtype == dtype
    for k in range(CLIENTS):
        copied = copy.deepcopy(net).to(dtype)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.mul_(1 + k)
        out = copied(batch.x[k])
        (functional.cross_entropy(out, batch.y[k], reduction="none") * batch.weight[k]).sum().backward()
        close(out.detach(), scores[k], bound)
        close(torch.cat([p.grad.flatten() for p in copied.parameters()]), gradient[k], bound)


def test_training_leaves_a_users_module_alone(federation):
    net = sequential()
    before = copy.deepcopy(net.state_dict())
    result = fl.fit(fl.Local(), federation, fl.models.module(net), rounds=2, batch=4)
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())
    assert (result.models - nn.utils.parameters_to_vector(net.parameters()).detach()).abs().max() > 1e-3


def test_a_module_trains_as_the_mlp_does(federation, graph):
    method = fl.FedU(graph, strength=0.2)
    schedule = {"rounds": 5, "batch": 4, "seed": 1, "dtype": "float64"}
    theirs = fl.fit(method, federation, fl.models.module(sequential(), l2=0.1), **schedule)
    start = nn.utils.parameters_to_vector(sequential().parameters()).detach().double()
    ours = fl.fit(method, federation, fl.models.mlp((6,), l2=0.1), start=start, **schedule)
    close(theirs.models, ours.models)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, LABELS)

    def forward(self, x):
        return functional.dropout(self.layer(x), 0.5, self.training)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [nn.Linear(4, LABELS), nn.Dropout(0.5)], "layer '1' is a dropout"),
        (lambda: [nn.Sequential(nn.Dropout2d(0.1)), nn.Linear(4, LABELS)], r"layer '0.0' is a dropout"),
        (lambda: [nn.BatchNorm1d(4), nn.Linear(4, LABELS)], "layer '0' is a batch norm with running stat"),
        (lambda: [nn.Linear(4, 2)], r"into shape \(2, 2\); expected \(2, 3\): change its last layer"),
        (lambda: [nn.Linear(5, LABELS)], r"Sequential fails on features of shape \(4,\)"),
        (lambda: [nn.Conv2d(1, 2, 3)], r"Sequential fails on features of shape \(4,\)"),
        (lambda: [nn.Flatten()], "Sequential has no parameters to train"),
        (lambda: [Functional()], r"Sequential fails on features of shape \(4,\)"),
    ],
    ids=["dropout", "inner dropout", "batch norm", "outputs", "inputs", "image", "nothing", "functional"],
)
def test_modules_that_cannot_be_trained(make, message):
    net = build_seeded(lambda: nn.Sequential(*make()))
    with pytest.raises(fl.InputError, match=message) as error:
        fl.models.module(net).build((4,), LABELS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.BatchNorm1d(4, track_running_stats=False)])
def test_harmless_relatives_are_taken(layer):
    net = build_seeded(lambda: nn.Sequential(layer, nn.Linear(4, LABELS)))
    assert fl.models.module(net).build((4,), LABELS).size > 0
