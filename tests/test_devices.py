"""The same numbers on a GPU; skipped where there is none."""

import pytest
import torch

import fedlap as fl
from laws import METHODS, WORK

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def both(algorithm, federation, model, **schedule):
    schedule = {"rounds": 20, "batch": 4, "seed": 5, "dtype": "float64", **schedule}
    return [fl.fit(algorithm, federation, model, device=device, **schedule) for device in ("cpu", "cuda")]


@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
def test_cpu_is_gpu(name, work, engine, federation, graph):
    sample = 0.5 if METHODS[name].sampled else 1.0
    method = METHODS[name].make(graph, **work)
    one, other = both(method, federation, METHODS[name].model, sample=sample, engine=engine)
    assert (one.models - other.models.cpu()).abs().max() < 1e-9
    assert one.scores[-1].objective == pytest.approx(other.scores[-1].objective, abs=1e-9)


@pytest.mark.parametrize("model", [fl.models.linear(), fl.models.cnn()], ids=["linear", "cnn"])
def test_cpu_is_gpu_on_images(model):
    federation = fl.data.load("digits", partition=fl.partition.Labels(8, 3))
    for graph in (fl.Graph.complete(federation.clients), fl.Graph.star(federation.clients, server=True)):
        one, other = both(fl.FedU(graph, lr=0.05), federation, model, rounds=5)
        assert (one.models - other.models.cpu()).abs().max() < 1e-9


def test_cpu_is_gpu_on_a_large_sparse_graph():
    names = [str(k) for k in range(2100)]
    arrays = {name: (torch.randn(3, 2, generator=torch.Generator().manual_seed(k)), torch.tensor([0, 1, 0]))
              for k, name in enumerate(names)}  # fmt: skip
    federation = fl.Federation.from_arrays(arrays, test_share=0.0)
    method = fl.FedU(fl.Graph.ring(names), strength=0.5)
    one, other = both(method, federation, fl.models.linear(), rounds=3, sample=0.3)
    assert (one.models - other.models.cpu()).abs().max() < 1e-9


@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_repeats_bit_for_bit(name, federation, graph):
    one, again = (
        fl.fit(METHODS[name].make(graph), federation, METHODS[name].model, rounds=10, batch=4, device="cuda")
        for _ in range(2)
    )
    assert torch.equal(one.models, again.models)
