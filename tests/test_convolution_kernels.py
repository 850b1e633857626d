"""The convolutional network by the kernels of a GPU: what PyTorch's operations give, wherever they run."""

import pytest
import torch

import emulation
from fedlap.models import kernels
from fedlap.models.convolutional import FILTERS, HIDDEN, ConvolutionalNetwork
from fedlap.models.layout import views

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")

CLIENTS, LABELS = 3, 5
IMAGES = [(3, 32, 32), (1, 28, 28), (2, 9, 11), (4, 6, 21)]
every_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: "×".join(map(str, image)))


class ByKernels(ConvolutionalNetwork):
    """The network as it is on a GPU, on this CPU."""

    def _body(self, W, into):
        assert W.dtype == torch.float32
        return emulation.body(self.image, FILTERS, HIDDEN)


def problem(image, batch):
    """Networks, rows that are views of a larger tensor, a batch, and the slope ½ Σ (scores − y)² has."""
    g = torch.Generator().manual_seed(sum(image) + batch)
    exact, own = ConvolutionalNetwork(image, LABELS), ByKernels(image, LABELS)
    rows = torch.randn(2 * CLIENTS, own.size + 3, generator=g)[::2, 1:-2]
    rows.mul_(0.05)
    x = torch.randn(CLIENTS, batch, *image, generator=g)
    y = torch.randn(CLIENTS, LABELS, batch, generator=g)
    return exact, own, rows, x, lambda scores: scores - y.to(scores.dtype)


def close(network, one, other):
    """Every layer, relative to its largest number; no layer is left out."""
    for mine, theirs in zip(views(one, network.shapes), views(other, network.shapes), strict=True):
        assert theirs.abs().max() > 1e-4
        assert (mine - theirs).abs().max() < 3e-6 * theirs.abs().max()


@every_image
@pytest.mark.parametrize("batch", [1, 7, 33])
def test_scores_and_gradient(image, batch):
    exact, own, W, x, slope = problem(image, batch)
    scores = exact.scores(W.double(), x.double())
    assert (own.scores(W, x) - scores).abs().max() < 1e-5 * scores.abs().max()
    before = W.clone()
    close(own, own.gradient(W, x, slope), exact.gradient(W.double(), x.double(), slope))
    assert torch.equal(W, before)


@pytest.mark.parametrize("keep", [1.0, 0.9, torch.tensor([[0.9], [0.5], [0.0]])], ids=["all", "some", "each"])
@pytest.mark.parametrize("batch", [6, 33])
def test_descending(keep, batch):
    """In place, on rows of a larger tensor, of which nothing else is touched."""
    exact, own, W, x, slope = problem((2, 9, 11), batch)
    base = W._base
    around = base.clone()
    gradient = exact.gradient(W.double(), x.double(), slope)
    kept = keep if isinstance(keep, float) else keep.double()
    expected = kept * W.double() - 0.3 * gradient
    own.hold(W).first(CLIENTS)(x, slope, 0.3, keep)
    close(own, W, expected)
    around[::2, 1:-2] = W
    assert torch.equal(base, around)


def test_the_same_numbers_every_time():
    _, own, W, x, slope = problem((2, 9, 11), 6)
    assert torch.equal(own.gradient(W, x, slope), own.gradient(W, x, slope))


def test_the_first_of_equal_maxima_counts():
    exact, own, W, x, slope = problem((2, 9, 11), 3)
    W, x = W.clone(), torch.ones_like(x)
    tensors = views(W, own.shapes)
    for weight, bias in (tensors[:2], tensors[2:4]):
        weight.zero_()
        bias.abs_()
    gradient = exact.gradient(W.double(), x.double(), slope)
    assert (own.gradient(W, x, slope) - gradient).abs().max() < 1e-6 * gradient.abs().max()


def test_what_is_no_number_stays_none():
    _, own, W, x, _ = problem((2, 9, 11), 3)
    x[1, 2, 0, 4, 5] = torch.nan
    nan = own.scores(W, x).isnan()
    assert nan[1, 2].all()
    assert nan.sum() == LABELS


def test_no_samples():
    _, own, W, x, _ = problem((2, 9, 11), 3)
    assert own.scores(W, x[:, :0]).shape == (CLIENTS, 0, LABELS)


@pytest.mark.parametrize("image", [(5, 32, 32), (3, 400, 400)], ids=["five channels", "large"])
def test_what_they_are_not_made_for_is_not_compiled(image):
    with pytest.raises(emulation.NotMadeError):
        emulation.body(image, FILTERS, HIDDEN)


def test_where_nothing_can_be_compiled(monkeypatch):
    monkeypatch.setattr(kernels.compiling, "shared_memory", lambda device: 0)
    kernels.kernels_for.cache_clear()
    assert kernels.kernels_for((3, 32, 32), FILTERS, HIDDEN, torch.device("cuda", 0)) is None
    kernels.kernels_for.cache_clear()
