"""The convolutional network against autograd and PyTorch's own layers, in both ways of convolving."""

import pytest
import torch
from torch.nn import functional

from fedlap.models import convolution, convolutional
from fedlap.models.convolution import (
    BatchedConvolution,
    DirectConvolution,
    TiledConvolution,
    UnfoldedConvolution,
)
from fedlap.models.convolutional import ConvolutionalNetwork
from fedlap.models.parameters import view_parameters
from networks import close

CLIENTS, BATCH, LABELS = 2, 3, 4
IMAGES = [(1, 28, 28), (3, 32, 32), (1, 9, 11), (2, 7, 5), (1, 30, 6), (3, 4, 4)]

every_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: "×".join(map(str, image)))


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in (UnfoldedConvolution, TiledConvolution)]


@pytest.fixture(params=[DirectConvolution, BatchedConvolution, *SLOW], autouse=True)
def way(request, monkeypatch):
    """The code paths of CPUs and GPUs, both on this CPU."""
    monkeypatch.setattr(convolutional, "choose_convolution", lambda device: request.param())
    return request.param


def problem(image, clients=CLIENTS, dtype=torch.float64):
    """A network, its rows, a batch, and the slope ½ Σ (scores − y)² has."""
    g = torch.Generator().manual_seed(sum(image))
    network = ConvolutionalNetwork(image, LABELS)
    W = 0.05 * torch.randn(clients, network.size, generator=g, dtype=dtype)
    x = torch.randn(clients, BATCH, *image, generator=g, dtype=dtype)
    y = torch.randn(clients, BATCH, LABELS, generator=g, dtype=dtype)
    return network, W, x, lambda scores: scores - y.mT


def by_modules(network, W, x, slope):
    """Scores and gradient of ordinary modules, one a row."""
    modules = [network.module(row) for row in W]
    scores = torch.stack([module(images) for module, images in zip(modules, x, strict=True)])
    scores.backward(slope(scores.detach().mT).mT)
    rows = [torch.cat([p.grad.flatten() for p in module.parameters()]) for module in modules]
    return scores.detach(), torch.stack(rows)


@every_image
def test_scores_and_gradient_are_those_of_modules(image):
    network, W, x, slope = problem(image)
    before = W.clone()
    scores, gradient = by_modules(network, W, x, slope)
    close(network.scores(W, x), scores)
    close(network.gradient(W, x, slope), gradient)
    assert torch.equal(W, before)
    for part in view_parameters(gradient, network.shapes):
        assert part.abs().max() > 1e-4  # no layer is left out


def by_autograd(network, W, x, slope):
    leaf = W.clone().requires_grad_()
    out = network.scores(leaf, x)
    return torch.autograd.grad(out, leaf, slope(out.detach().mT).mT)[0]


@every_image
def test_gradient_is_that_of_scores(image):
    network, W, x, slope = problem(image)
    close(network.gradient(W, x, slope), by_autograd(network, W, x, slope))


@pytest.mark.parametrize("image", [(1, 8, 8), (2, 9, 11)])
@pytest.mark.parametrize("zero", [True, False], ids=["zero weights", "constant images"])
def test_the_first_of_equal_maxima_counts(image, zero, way):
    """Numbers are small multiples of powers of two, so that equal sums are equal in every order."""
    network, W, x, slope = problem(image)
    W, x = (W * 64).round() / 4, torch.ones_like(x)
    filters, bias, second, other, *_ = view_parameters(W, network.shapes)
    if zero:
        filters.zero_()
        second.zero_()
        bias.abs_()
        other.abs_()
    expected = by_autograd(network, W, x, slope)
    assert view_parameters(expected, network.shapes)[2].abs().max() > 1e-4
    close(network.gradient(W, x, slope), expected, 1e-12 * expected.abs().max())
    if (
        zero or way is DirectConvolution
    ):  # with Toom and Cook's fractions, only sums of zeros are exactly equal
        close(by_modules(network, W, x, slope)[1], expected, 1e-12 * expected.abs().max())


@pytest.mark.parametrize("keep", [1.0, 0.9, torch.tensor([[0.9], [0.5]], dtype=torch.float64)])
def test_descending(keep):
    network, W, x, slope = problem((2, 9, 11))
    expected = keep * W - 0.3 * network.gradient(W, x, slope)
    network.prepare_weights(W).step_for(len(W))(x, slope, 0.3, keep)
    close(W, expected, 1e-12)


def test_rows_of_a_larger_tensor_descend_in_place():
    network, W, x, slope = problem((1, 12, 8))
    expected = 0.9 * W - 0.3 * network.gradient(W, x, slope)
    large = torch.full((2 * CLIENTS + 1, network.size + 3), 7.0, dtype=torch.float64)
    rows = large[1::2, 1:-2]
    rows.copy_(W)
    close(network.scores(rows, x), network.scores(W, x), 1e-12)
    network.prepare_weights(rows).step_for(len(rows))(x, slope, 0.3, 0.9)
    close(large[1::2, 1:-2], expected, 1e-12)
    large[1::2, 1:-2] = 7.0
    assert (large == 7.0).all()


@pytest.mark.parametrize("values_at_once", [1, 20_000, 2**26])
def test_rows_do_not_meet(values_at_once, way, monkeypatch):
    """However many clients and samples are convolved at once."""
    monkeypatch.setattr(way, "values_at_once", values_at_once)
    network, W, x, slope = problem((1, 8, 12), clients=3)
    scores, gradient = network.scores(W, x), network.gradient(W, x, slope)
    for k in range(3):
        alone = slice(k, k + 1)
        close(network.scores(W[alone], x[alone])[0], scores[k], 1e-12)

        def compute_slope(out, k=k):
            return slope(out.expand(3, -1, -1))[k : k + 1]

        close(network.gradient(W[alone], x[alone], compute_slope)[0], gradient[k], 1e-12)


def test_no_samples():
    network, W, x, _ = problem((1, 8, 8))
    assert network.scores(W, x[:, :0]).shape == (CLIENTS, 0, LABELS)


def test_scores_can_be_differentiated_twice():
    network, W, x, slope = problem((1, 8, 9))
    v = torch.randn(W.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    leaf = W.clone().requires_grad_()
    out = network.scores(leaf, x)
    (gradient,) = torch.autograd.grad(slope(out.mT).square().sum() / 2, leaf, create_graph=True)
    (product,) = torch.autograd.grad((gradient * v).sum(), leaf)
    h = 1e-6
    ahead, behind = (network.gradient(W + s * v, x, slope) for s in (h, -h))
    close(product, (ahead - behind) / (2 * h), 1e-4 * product.abs().max())


def test_scores_first_seen_without_autograd_can_be_differentiated(way):
    convolution.build_tile_matrices.cache_clear()
    network, W, x, _ = problem((1, 8, 8))
    with torch.inference_mode():
        network.scores(W, x)
    leaf = W.clone().requires_grad_()
    network.scores(leaf, x).sum().backward()
    assert leaf.grad.abs().max() > 0


def test_float32_is_as_good_as_of_torch():
    network, W, x, slope = problem((3, 32, 32), dtype=torch.float32)
    exact, _ = by_modules(network, W.double(), x.double(), lambda scores: scores)
    scores, _ = by_modules(network, W, x, slope)
    ours, ordinary = (
        float((values - exact).norm() / exact.norm()) for values in (network.scores(W, x), scores)
    )
    assert ours < max(4 * ordinary, 1e-6)


@every_image
def test_a_layer_is_a_convolution(image, way):
    """With filters of any number, against PyTorch's convolution, and its derivative by the images."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, *image[1:], image[0], generator=g, dtype=torch.float64, requires_grad=True)
    filters = torch.randn(1, 6, image[0], 5, 5, generator=g, dtype=torch.float64, requires_grad=True)
    expected = functional.conv2d(x[0].permute(0, 3, 1, 2), filters[0], padding=2).permute(0, 2, 3, 1)
    out, seen = way().forward(x.detach(), filters.detach())
    close(out[0], expected.detach(), 1e-11)
    delta = torch.randn(expected.shape, generator=g, dtype=torch.float64)
    by_x, by_filters = torch.autograd.grad(expected, (x, filters), delta)
    own_filters, own_x = way().backward(delta.unsqueeze(0), filters.detach(), seen, True)
    close(own_x, by_x, 1e-11)
    close(own_filters, by_filters, 1e-11)
