"""Labels mixed by a Dirichlet distribution: its moments, its limits, and labels that run out."""

from itertools import product

import pytest
import torch

from fedlap.data.partition import Dirichlet
from fedlap.randomness import draws
from partitions import draw_labels, sizes_of


def label_shares(parts, y, labels):
    """Each client's mix of labels, one row a client."""
    return torch.stack([torch.bincount(y[rows], minlength=labels) / len(rows) for rows in parts])


@pytest.mark.parametrize("counts", [[40], [0, 0, 0, 40], [38, 0, 0, 1, 1], [0, 500, 3], [1] * 12], ids=str)
def test_labels_may_be_rare_or_absent(counts):
    y = draw_labels(counts)
    for alpha, spread in product((1e-6, 0.01, 0.5, 1e6), (0.0, 500.0)):
        parts = Dirichlet(12, alpha, spread).cut(y, 0)
        assert sorted(torch.cat(parts).tolist()) == list(range(len(y)))
        assert min(sizes_of(parts)) >= 1


@pytest.mark.parametrize("counts", [[100] * 8, [400, 240, 120, 40]], ids=["balanced", "unbalanced"])
def test_a_large_alpha_gives_everybody_the_same_mix(counts):
    y, overall = draw_labels(counts), torch.tensor(counts) / 800
    for seed in range(5):
        shares = label_shares(Dirichlet(8, 1e6).cut(y, seed), y, len(counts))
        assert (shares - overall).abs().max() < 0.03


@pytest.mark.parametrize(("alpha", "most"), [(1e-6, 0.8), (1e-3, 0.8), (0.01, 0.6)])
def test_a_tiny_alpha_gives_most_clients_one_label(alpha, most):
    y = draw_labels([500] * 10)
    for seed in range(3):
        largest = label_shares(Dirichlet(100, alpha).cut(y, seed), y, 10).max(1).values
        assert (largest > 0.95).double().mean() > most


@pytest.mark.parametrize(("alpha", "least"), [(1e-6, 1.0), (1e-3, 0.95)])
def test_a_client_whose_label_has_run_out_takes_the_next_of_its_mix(alpha, least):
    """As many clients as labels, all of one size: whoever comes late finds another label whole."""
    y = draw_labels([100] * 10)
    for seed in range(5):
        assert label_shares(Dirichlet(10, alpha).cut(y, seed), y, 10).max(1).values.mean() >= least


def mixes(alpha, share, clients=1000, seed=0):
    stream = draws(seed, "partition")
    return Dirichlet(clients, alpha)._draw_log_mixes(stream, torch.tensor(share).double()).exp()


@pytest.mark.parametrize(
    ("alpha", "share"), [(0.1, [0.6, 0.3, 0.1]), (1.0, [0.25] * 4), (20.0, [0.6, 0.3, 0.1])], ids=str
)
def test_mixes_have_the_moments_of_a_dirichlet_distribution(alpha, share):
    mix, p = mixes(alpha, share), torch.tensor(share).double()
    variance = p * (1 - p) / (alpha * len(share) + 1)
    assert torch.allclose(mix.sum(1), torch.ones(()).double())
    assert ((mix.mean(0) - p).abs() < 4 * (variance / len(mix)).sqrt()).all()
    assert ((mix.var(0) / variance - 1).abs() < 0.2).all()
    covariance = -p[0] * p[1] / (alpha * len(share) + 1)
    assert abs(mix[:, :2].T.cov()[0, 1] / covariance - 1) < 0.2


@pytest.mark.parametrize("alpha", [5e-324, 1e-308, 1e-6, 1e6, 1e300, 1.7e308])
def test_mixes_are_shares_whatever_alpha(alpha):
    mix = mixes(alpha, [0.5, 0.3, 0.2], clients=50)
    assert bool((mix >= 0).all())
    assert torch.allclose(mix.sum(1), torch.ones(()).double())
