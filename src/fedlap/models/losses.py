"""The losses and their derivatives, on stacks of scores."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor


@runtime_checkable
class Loss(Protocol):
    """How far scores are from the truth, a number a sample."""

    def values(
        self, scores: Float[Tensor, "client batch output"], y: Num[Tensor, "client batch ..."]
    ) -> Float[Tensor, "client batch"]:
        """The loss of each sample."""
        ...

    def slope(
        self, scores: Float[Tensor, "client batch output"], y: Num[Tensor, "client batch ..."]
    ) -> Float[Tensor, "client batch output"]:
        """The derivative of each sample's loss by its scores."""
        ...


class CrossEntropy:
    """−log softmax(scores)[y], for labels y = 0, 1, …"""

    def values(
        self, scores: Float[Tensor, "client batch output"], y: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch"]:
        """The loss of each sample."""
        return scores.logsumexp(-1) - scores.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def slope(
        self, scores: Float[Tensor, "client batch output"], y: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch output"]:
        """softmax(scores) − the one-hot vector of y."""
        p = torch.softmax(scores, -1)
        return p.scatter_add_(-1, y.unsqueeze(-1), p.new_full((), -1.0).expand(*y.shape, 1))


class SquaredError:
    """½‖scores − y‖², for real targets."""

    def values(
        self, scores: Float[Tensor, "client batch output"], y: Float[Tensor, "client batch output"]
    ) -> Float[Tensor, "client batch"]:
        """The loss of each sample."""
        return (scores - y).square().sum(-1) / 2

    def slope(
        self, scores: Float[Tensor, "client batch output"], y: Float[Tensor, "client batch output"]
    ) -> Float[Tensor, "client batch output"]:
        """Scores − y."""
        return scores - y
