"""The convolutional network by kernels on a GPU; skipped where there is none."""

import pytest
import torch

import fedlap as fl
from fedlap.models import convolutional
from fedlap.models.kernels import Kernels
from test_convolution_kernels import close, every_image, problem

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@every_image
@pytest.mark.parametrize("batch", [1, 7, 20, 33])
def test_scores_and_gradient(image, batch):
    exact, _, W, x, slope = problem(image, batch)
    own, given = W.cuda(), x.cuda()
    assert isinstance(exact._body(own, own), Kernels)
    scores = exact.scores(W.double(), x.double())
    assert (exact.scores(own, given).cpu() - scores).abs().max() < 1e-5 * scores.abs().max()
    gradient = exact.gradient(own, given, lambda out: slope(out.cpu()).cuda())
    close(exact, gradient.cpu(), exact.gradient(W.double(), x.double(), slope))


@pytest.mark.parametrize("work", [{"local_steps": 3}, {"local_epochs": 2}], ids=["steps", "epochs"])
@pytest.mark.parametrize("name", ["fedu", "pfedme", "perfedavg", "scaffold"])
def test_runs(name, work, monkeypatch):
    """Kernels against operations, both in float32, and the same bit for bit when repeated."""
    federation = fl.data.load("digits", partition=fl.partition.Labels(8, 3))
    graph = fl.Graph.complete(federation.clients)
    method = {
        "fedu": lambda: fl.FedU(graph, lr=0.05, **work),
        "pfedme": lambda: fl.PFedMe(regularisation=5.0, inner_lr=0.03, inner_steps=3, lr=0.05, **work),
        "perfedavg": lambda: fl.PerFedAvg(adapt_lr=0.05, lr=0.05, **work),
        "scaffold": lambda: fl.Scaffold(lr=0.05, **work),
    }[name]()

    def models():
        schedule = {"rounds": 6, "batch": 9, "sample": 0.5, "seed": 4, "device": "cuda"}
        return fl.fit(method, federation, fl.models.cnn(), **schedule).models

    one, again = models(), models()
    assert torch.equal(one, again)
    monkeypatch.setattr(convolutional, "kernels_for", lambda *given: None)
    other = models()
    assert (one - other).norm() < 1e-3 * other.norm()
    assert not torch.equal(one, other)  # or the kernels were not used


def test_the_hessian_goes_by_operations_that_autograd_knows():
    exact, _, W, x, _ = problem((2, 9, 11), 3)
    leaf = W.cuda().requires_grad_()
    exact.scores(leaf, x.cuda()).sum().backward()
    assert leaf.grad.abs().max() > 0


def test_coarser_products_are_a_choice():
    exact, _, W, _, _ = problem((2, 9, 11), 3)
    before, own = torch.get_float32_matmul_precision(), W.cuda()
    try:
        torch.set_float32_matmul_precision("high")
        assert not isinstance(exact._body(own, own), Kernels)
    finally:
        torch.set_float32_matmul_precision(before)
