"""The expected step of a server that passes steps on to clients that were not sampled."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.graph.extension import CompleteExtension, Extension
from fedlap.randomness import draws

MOST_COHORTS = 10_000  # if there are more, this many are drawn
DRAWN_VALUES = 2_000_000_000  # most values computed for drawn cohorts, N²S per cohort
LEAST_DRAWS = 100

Matrix = Float64[Tensor, "client client"]


@dataclass(frozen=True, eq=False)
class ExpectedStep:
    """The mean of Π_S, which maps the steps of all clients to those that they take if S are sampled.

    With full gradients, one local step and the pull from old models, a round is W⁺ = W − μ̃ Π_S ∇J(W).

    mean: M = E Π_S. square: E Π_SᵀΠ_S. share: S/N, the M of FedU. draws: number of cohorts that the means
        were taken over, or None if these were all.
    """

    mean: Matrix
    square: Matrix
    share: float
    draws: int | None

    @property
    def symmetric_eigenvalues(self) -> Float64[Tensor, "client"]:
        """Eigenvalues of (M + Mᵀ)/2; if all are positive, small steps lower E J."""
        values: Tensor = torch.linalg.eigvalsh((self.mean + self.mean.mT) / 2)
        return values

    @property
    def least(self) -> float:
        """m, the smallest eigenvalue of (M + Mᵀ)/2: E⟨∇J, W − W⁺⟩ ≥ μ̃m‖∇J‖²."""
        return float(self.symmetric_eigenvalues[0])

    @property
    def common(self) -> float:
        """Speed of the mean model if all clients have the same gradient, in steps per round."""
        return float(self.mean.sum()) / len(self.mean)

    @property
    def spread(self) -> float:
        """c, the largest eigenvalue of E Π_SᵀΠ_S: E‖W⁺ − W‖² ≤ μ̃²c‖∇J‖²."""
        return float(torch.linalg.eigvalsh((self.square + self.square.mT) / 2)[-1])

    def find_largest_step(self, beta_j: float) -> float:
        """Return 2m/(β_J c), below which E J falls in every round; zero if m is not positive."""
        return max(0.0, 2 * self.least / (beta_j * self.spread))

    def compute_decrease(self, step: float, alpha: float, beta_j: float) -> float:
        """Return the share 2μ̃α(m − μ̃β_J c/2) of J − J* that a round removes in expectation, at least."""
        return 2 * step * alpha * (self.least - step * beta_j * self.spread / 2)


def compute_expected_step(extension: Extension, clients: int, sampled: int) -> ExpectedStep:
    """Average Π_S over all cohorts, or over drawn ones if there are too many."""
    count = math.comb(clients, sampled)
    if isinstance(extension, CompleteExtension):
        cohorts: Iterator[Int64[Tensor, chosen]] = iter([torch.arange(sampled)])
    elif count <= MOST_COHORTS:
        cohorts = map(torch.tensor, itertools.combinations(range(clients), sampled))
    else:
        most = max(LEAST_DRAWS, min(MOST_COHORTS, DRAWN_VALUES // (clients**2 * sampled)))
        cohorts = draw_cohorts(clients, sampled, most)
    mean, square = (torch.zeros(clients, clients, dtype=torch.float64) for _ in range(2))
    number = 0
    for number, ids in enumerate(cohorts, 1):  # noqa: B007
        shares = extension.extend(ids, torch.eye(sampled, dtype=torch.float64))
        mean[:, ids] += shares
        square[ids.unsqueeze(1), ids] += shares.mT @ shares
    mean, square = mean / number, square / number
    if isinstance(extension, CompleteExtension):  # all cohorts are alike up to the order of clients
        return ExpectedStep(average_orders(mean), average_orders(square), sampled / clients, None)
    return ExpectedStep(mean, square, sampled / clients, None if number == count else number)


def draw_cohorts(clients: int, sampled: int, most: int) -> Iterator[Int64[Tensor, "chosen"]]:
    """Yield cohorts; those of one random order are disjoint, so that clients are drawn equally often."""
    per_order = clients // sampled
    for number in range(math.ceil(most / per_order)):
        order = draws(0, "vertices", number).keys(torch.arange(clients)).argsort()
        yield from order[: per_order * sampled].split(sampled)


def average_orders(matrix: Matrix) -> Matrix:
    """Return the mean of a matrix over all orders of clients."""
    size = len(matrix)
    diagonal = matrix.diagonal().mean()
    other = (matrix.sum() - matrix.trace()) / max(1, size * (size - 1))
    return other + (diagonal - other) * torch.eye(size, dtype=torch.float64)
