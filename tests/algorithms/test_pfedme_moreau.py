"""pFedMe on quadratic losses: the Moreau envelope's gradient, and the optimum that FedU has too."""

import itertools

import numpy as np
import pytest
import torch

import fedlap as fl
from linear_fits import distance, train_linear
from random_inputs import random_arrays


def quadratics(data, l2):
    """H and c of every F(θ) = ½θᵀHθ − cᵀθ + constant, and the constants, for squared error."""
    terms = []
    for x, y in data.values():
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        eye = torch.eye(y.shape[1], dtype=torch.float64)
        rows = torch.stack([torch.cat([torch.kron(eye, sample), eye], 1) for sample in x])  # ∂ scores / ∂ θ
        H = (rows.mT @ rows).mean(0) + l2 * torch.eye(rows.shape[-1], dtype=torch.float64)
        terms.append((H, (rows.mT @ y.unsqueeze(-1)).mean(0).squeeze(-1), y.square().sum(1).mean() / 2))
    return tuple(torch.stack(column) for column in zip(*terms, strict=True))


@pytest.fixture(scope="module")
def squares():
    """Clients with squared error, and H, c and constant of their losses."""
    arrays = random_arrays([7, 23, 5, 12, 40], real=True, labels=2)
    federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
    return federation, *quadratics(arrays, 0.3)


def minimiser(H, c, lam, w):
    """argmin_θ F(θ) + (λ/2)‖θ − w‖², of every client."""
    return torch.linalg.solve(H + lam * torch.eye(len(w), dtype=torch.float64), c + lam * w)


def one_exact_round(squares, lam, lr=0.2):
    """The result of a round in which the inner problem is solved, and the model it began from."""
    federation, H, _, _ = squares
    start = torch.randn(10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    inner_lr = 1 / (lam + torch.linalg.eigvalsh(H).max().item())
    method = fl.PFedMe(lam, 150, inner_lr, lr=lr, local_steps=1)
    return train_linear(method, federation, start, rounds=1, batch="all", l2=0.3), start


def test_pfedme_s_inner_steps_reach_the_minimiser_of_the_moreau_envelope(squares):
    _, H, c, constant = squares
    lam, lr = 1.3, 0.2
    result, start = one_exact_round(squares, lam, lr)
    assert distance(result.models, minimiser(H, c, lam, start)) < 1e-12

    def envelopes(w):
        theta = minimiser(H, c, lam, w)
        values = torch.einsum("ki,kij,kj->k", theta, H, theta) / 2
        return values - (c * theta).sum(1) + constant + lam / 2 * (theta - w).square().sum(1)

    slopes = torch.func.jacrev(envelopes)(start)
    assert distance(lam * (start - result.models), slopes) < 1e-11
    assert distance(start - result.server.model, lr * slopes.mean(0)) < 1e-12


def test_the_envelope_s_gradient_goes_to_the_loss_s_as_regularisation_grows(squares):
    """λ(w − θ) = ∇F(w) + O(1/λ): a step on the envelope becomes a step on the loss."""
    _, H, c, _ = squares
    far = []
    for lam in (200.0, 400.0, 800.0):
        result, start = one_exact_round(squares, lam)
        far.append((lam * (start - result.models) - (H @ start - c)).norm().item())
    ratios = [one / other for one, other in itertools.pairwise(far)]
    assert all(1.9 < ratio < 2.0 for ratio in ratios), ratios


# One optimum: pFedMe's, and FedU's on the star


@pytest.fixture(scope="module")
def joint(squares):
    """λ, the minimiser θ_k, w of Σ_k F_k(θ_k) + (λ/2)‖θ_k − w‖² and the minimum."""
    _, H, c, constant = squares
    lam, (clients, size) = 1.0, c.shape
    eye = torch.eye(size, dtype=torch.float64)
    whole = torch.zeros(clients + 1, size, clients + 1, size, dtype=torch.float64)
    for k in range(clients):
        whole[k, :, k] = H[k] + lam * eye
        whole[k, :, clients] = whole[clients, :, k] = -lam * eye
    whole[clients, :, clients] = clients * lam * eye
    right = torch.cat([c, c.new_zeros(1, size)]).flatten()
    best = torch.linalg.solve(whole.reshape(right.numel(), -1), right).view(-1, size)
    return lam, best, (constant.sum() - right @ best.flatten() / 2).item()


@pytest.mark.slow
def test_pfedme_converges_to_the_joint_optimum(squares, joint):
    federation, H, _, _ = squares
    lam, best, least = joint
    inner_lr = 1 / (lam + torch.linalg.eigvalsh(H).max().item())
    method = fl.PFedMe(lam, 80, inner_lr, lr=1 / lam, local_steps=1)
    result = train_linear(method, federation, np.zeros(10), rounds=100, batch="all", l2=0.3)
    assert distance(result.models, best[:-1]) < 1e-9
    assert distance(result.server.model, best[-1]) < 1e-9
    assert result.scores[-1].objective == pytest.approx(least, abs=1e-9)


@pytest.mark.slow
def test_fedu_on_the_star_comes_to_pfedme_s_optimum_in_proportion_to_its_step(squares, joint):
    federation, *_ = squares
    lam, best, least = joint
    star = fl.Graph.star(federation.clients, server=True)
    distances = []
    for step in (0.1, 0.05, 0.025):  # μ̃ = μR
        method = fl.FedU(star, strength=lam, lr=step / 5, local_steps=5)
        rounds = int(12 / step)
        result = train_linear(method, federation, best[:-1], rounds=rounds, batch="all", l2=0.3)
        assert result.scores[-1].objective >= least - 1e-12
        distances.append((result.server.models.values - best).norm().item())
    ratios = [far / near for far, near in itertools.pairwise(distances)]
    assert distances[-1] < 0.02 * best.norm().item()
    assert all(1.9 < ratio < 2.1 for ratio in ratios), (distances, ratios)
