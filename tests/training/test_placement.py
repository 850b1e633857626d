"""Rounds of many steps on a CPU without a compiler: models and rows are held where steps are fastest."""

import pytest
import torch

import fedlap as fl
from fedlap.models import Batch, CrossEntropy, Model, compute_padded_width
from fedlap.training.placement import MIN_WIDE_STEPS, NamedBuffers, PlacedClients

pytestmark = pytest.mark.usefixtures("no_compiler")

MODELS = {"linear": fl.models.linear(l2=0.01), "mlp": fl.models.mlp((6, 5), l2=0.01)}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def pictures(kind="real", sizes=(3, 40, 17, 33, 1)):
    g = torch.Generator().manual_seed(3)
    arrays = {}
    for place, n in enumerate(sizes):
        x = torch.randint(0, 256, (n, 4, 4), generator=g)
        x = x.to(torch.uint8) if kind == "bytes" else x.double() / 100 - 1
        arrays[f"k{place}"] = x, torch.randint(0, 3, (n,), generator=g)
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=3, scale="none")


def clients(federation, architecture, batch=4):
    model = Model(architecture.build(federation.inputs, federation.outputs), CrossEntropy())
    resident = federation.to_device(torch.device("cpu"), torch.float64)
    return PlacedClients.of([resident], [0], model, batch, torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("per_client", [False, True], ids=["one lr", "an lr each"])
@every_model
def test_steps_on_held_layers_are_steps_on_rows(model, wide, buffered, per_client):
    """The law also holds while fewer and fewer clients are active, and for buffers with other content."""
    g = torch.Generator().manual_seed(1)
    built = Model(model.build((7,), 3), CrossEntropy(), model.l2)
    W = 0.3 * torch.randn(4, built.size, generator=g, dtype=torch.float64)
    expected, memory = W.clone(), NamedBuffers()
    if buffered:
        for place in range(8):
            memory(f"layer {place}", (1000,), torch.float64).fill_(torch.nan)
        memory("wide layer", (1000,), torch.float64).fill_(torch.nan)
    rates = torch.tensor([[0.1], [0.2], [0.3], [0.05]], dtype=torch.float64)
    held = built.network.prepare_weights(W, MIN_WIDE_STEPS, memory, wide)
    before = W.clone()
    for step in range(MIN_WIDE_STEPS):
        active = 4 - step // 3
        x = torch.randn(active, 5, 7, generator=g, dtype=torch.float64)
        y = torch.randint(0, 3, (active, 5), generator=g)
        weight = torch.full((active, 5), 0.2, dtype=torch.float64)
        rate = rates[:active] if per_client else 0.2
        expected[:active] -= rate * built.gradient(expected[:active], Batch(x, y, weight))
        if wide:
            behind = torch.zeros(active, 5, compute_padded_width(7) - 7, dtype=torch.float64)
            behind[..., 0] = 1
            x = torch.cat([x, behind], -1)
        built.step(held.step_for(active), Batch(x, y, weight), rate)
    assert torch.equal(W, before)  # until they are given
    held.write_back()
    assert (W - expected).abs().max() < 1e-13
    assert (W - before).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("kind", "scale", "work"),
    [
        ("real", "none", {"local_epochs": 2}),
        ("real", "client", {"local_steps": MIN_WIDE_STEPS}),
        ("real", "pooled", {"local_steps": MIN_WIDE_STEPS - 1}),
        ("bytes", "pooled", {"local_epochs": 2}),
        ("bytes", "none", {"local_steps": MIN_WIDE_STEPS}),
        ("bytes", "client", {"local_steps": MIN_WIDE_STEPS - 1}),
    ],
)
@every_model
def test_together_and_apart(model, kind, scale, work):
    federation = pictures(kind).standardize(scale)
    method = fl.FedU(fl.Graph.path(federation.clients), strength=0.05, lr=0.05, **work)
    together, apart = (
        fl.fit(method, federation, model, rounds=3, batch=4, dtype="float64", evaluate_every=0, engine=engine)
        for engine in ("stacked", "one_by_one")
    )
    assert torch.isfinite(together.models).all()
    assert (together.models - apart.models).abs().max() < 1e-11 * apart.models.abs().max()


def test_rows_are_wide_where_they_are_read_often():
    """Features, a one, and zeros, in the order of training rows; images stay bytes."""
    federation = pictures().reorder(["k3", "k1", "k0", "k4", "k2"]).standardize("client")
    placed = clients(federation, fl.models.linear())
    assert placed.prepare(MIN_WIDE_STEPS - 1).wide_rows is None
    wide = placed.prepare(MIN_WIDE_STEPS).wide_rows
    assert wide.shape == (94, 32)
    assert torch.equal(wide[:, :16], placed.train.x.flatten(1))
    assert (wide[:, 16] == 1).all()
    assert not wide[:, 17:].any()
    assert (
        clients(pictures("bytes").standardize("pooled"), fl.models.linear()).prepare(MIN_WIDE_STEPS).wide_rows
        is None
    )
    assert clients(federation, fl.models.cnn()).prepare(MIN_WIDE_STEPS).wide_rows is None


def test_what_is_too_large_is_not_copied(monkeypatch):
    monkeypatch.setattr("fedlap.training.placement.MAX_WIDE_VALUES", 94 * 32 - 1)
    assert clients(pictures(), fl.models.linear()).prepare(MIN_WIDE_STEPS).wide_rows is None
    monkeypatch.setattr("fedlap.models.dense.MOST_VALUES_TO_COPY", 4 * 24 - 1)
    network = fl.models.linear().build((7,), 3)
    W = torch.zeros(4, network.size)
    assert network.prepare_weights(W, MIN_WIDE_STEPS, NamedBuffers()).copied == []
    monkeypatch.setattr("fedlap.models.dense.MOST_VALUES_TO_COPY", 4 * 24)
    assert len(network.prepare_weights(W, MIN_WIDE_STEPS, NamedBuffers()).copied) == 2


def test_lent_memory_is_lent_again():
    memory = NamedBuffers()
    first = memory("a", (2, 3), torch.float32)
    assert memory("a", (5,), torch.float32).data_ptr() == first.data_ptr()
    assert memory("b", (5,), torch.float32).data_ptr() != first.data_ptr()
    assert memory("a", (5,), torch.float64).data_ptr() != first.data_ptr()
    assert memory("a", (4, 5), torch.float32).shape == (4, 5)
