"""The convolutional network by kernels on a GPU; skipped where there is none."""

import pytest
import torch

import fedlap as fl
from cnn_kernels import METHODS, WORK, close, every_image, middle_error, problem, run
from fedlap.kernels.cnn import CnnKernels
from fedlap.models import convolutional

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@every_image
@pytest.mark.parametrize("batch", [1, 7, 20, 33])
def test_scores_and_gradient(image, batch):
    exact, _, W, x, slope = problem(image, batch)
    weights, images = W.cuda(), x.cuda()
    assert isinstance(exact._choose_hidden_layers(weights, weights), CnnKernels)
    scores = exact.scores(W.double(), x.double())
    assert (exact.scores(weights, images).cpu() - scores).abs().max() < 1e-5 * scores.abs().max()
    gradient = exact.gradient(weights, images, lambda out: slope(out.cpu()).cuda())
    close(exact, gradient.cpu(), exact.gradient(W.double(), x.double(), slope))


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
def test_runs(name, work, monkeypatch):
    """Kernels against operations in float64, and the same bit for bit when repeated."""
    assert middle_error(name, work, "cuda") < 1e-6
    one, again = (run(name, work, "cuda", seed=0) for _ in range(2))
    assert torch.equal(one, again)
    monkeypatch.setattr(convolutional, "compile_cnn_kernels", lambda *args: None)
    assert not torch.equal(one, run(name, work, "cuda", seed=0))  # or the kernels were not used


@pytest.mark.parametrize("name", METHODS)
def test_long_runs_are_as_good_as_by_operations(name, monkeypatch):
    """On images with many equal values a small change grows; neither way is exact in float32."""
    digits = fl.data.load("digits", partition=fl.partition.Labels(8, 3))
    method = METHODS[name](digits.clients, local_epochs=2)

    def models(seed, dtype="float32"):
        schedule = {"rounds": 2, "batch": 9, "sample": 0.5, "device": "cuda", "seed": seed, "dtype": dtype}
        return fl.fit(method, digits, fl.models.cnn(), **schedule).models.double()

    exact = [models(seed, "float64") for seed in range(5)]

    def errors():
        ours = [models(seed) for seed in range(5)]
        return sorted(float((a - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True))

    by_kernels = errors()
    monkeypatch.setattr(convolutional, "compile_cnn_kernels", lambda *args: None)
    assert by_kernels[2] < 10 * max(errors()[2], 1e-6)
    assert by_kernels[-1] < 2e-2


def test_the_hessian_goes_by_operations_that_autograd_knows():
    exact, _, W, x, _ = problem((2, 9, 11), 3)
    leaf = W.cuda().requires_grad_()
    exact.scores(leaf, x.cuda()).sum().backward()
    assert leaf.grad.abs().max() > 0


def test_coarser_products_are_a_choice():
    exact, _, W, _, _ = problem((2, 9, 11), 3)
    before, weights = torch.get_float32_matmul_precision(), W.cuda()
    try:
        torch.set_float32_matmul_precision("high")
        assert not isinstance(exact._choose_hidden_layers(weights, weights), CnnKernels)
    finally:
        torch.set_float32_matmul_precision(before)
