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

    def goal(
        self,
        y: Num[Tensor, "step client batch ..."],
        weight: Float[Tensor, "step client batch"],
        outputs: int,
    ) -> Float[Tensor, "step client output batch"]:
        """What `slope_to` wants, for many steps at once."""
        ...

    def slope_to(
        self,
        scores: Float[Tensor, "client output batch"],
        goal: Float[Tensor, "client output batch"],
        weight: Float[Tensor, "client 1 batch"],
    ) -> Float[Tensor, "client output batch"]:
        """The weighted slope, in fewer operations, of scores with samples along the last axis."""
        ...


class CrossEntropy:
    """−log softmax(scores)[y], for labels y = 0, 1, …"""

    def values(
        self, scores: Float[Tensor, "client batch output"], y: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch"]:
        """The loss of each sample."""
        by_label = scores.mT  # as dense networks leave scores in memory: much faster than along rows of a few
        return by_label.logsumexp(-2) - by_label.gather(-2, y.unsqueeze(-2)).squeeze(-2)

    def slope(
        self, scores: Float[Tensor, "client batch output"], y: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch output"]:
        """softmax(scores) − the one-hot vector of y."""
        p = torch.softmax(scores.mT, -2)
        return p.scatter_(-2, y.unsqueeze(-2), -1.0, reduce="add").mT

    def goal(
        self, y: Int64[Tensor, "step client batch"], weight: Float[Tensor, "step client batch"], outputs: int
    ) -> Float[Tensor, "step client output batch"]:
        """The one-hot vector of y times −weight."""
        empty = weight.new_zeros(*y.shape[:2], outputs, y.shape[2])
        return empty.scatter_(-2, y.unsqueeze(-2), -weight.unsqueeze(-2))

    def slope_to(
        self,
        scores: Float[Tensor, "client output batch"],
        goal: Float[Tensor, "client output batch"],
        weight: Float[Tensor, "client 1 batch"],
    ) -> Float[Tensor, "client output batch"]:
        """softmax(scores) · weight + goal."""
        return torch.addcmul(goal, torch.softmax(scores, -2), weight)


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

    def goal(
        self,
        y: Float[Tensor, "step client batch output"],
        weight: Float[Tensor, "step client batch"],
        outputs: int,
    ) -> Float[Tensor, "step client output batch"]:
        """y times −weight."""
        return (y * -weight.unsqueeze(-1)).mT

    def slope_to(
        self,
        scores: Float[Tensor, "client output batch"],
        goal: Float[Tensor, "client output batch"],
        weight: Float[Tensor, "client 1 batch"],
    ) -> Float[Tensor, "client output batch"]:
        """Scores · weight + goal."""
        return torch.addcmul(goal, scores, weight)
