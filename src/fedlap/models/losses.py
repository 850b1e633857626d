"""The losses and their derivatives, on stacks of scores."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor


@runtime_checkable
class Loss(Protocol):
    """A loss: one number per sample from its scores and its label or target."""

    def values(
        self, scores: Float[Tensor, "client batch output"], y: Num[Tensor, "client batch ..."]
    ) -> Float[Tensor, "client batch"]:
        """Loss of each sample."""
        ...

    def score_gradient(
        self, scores: Float[Tensor, "client batch output"], y: Num[Tensor, "client batch ..."]
    ) -> Float[Tensor, "client batch output"]:
        """Derivative of each sample's loss by its scores."""
        ...

    def weighted_targets(
        self,
        y: Num[Tensor, "step client batch ..."],
        weight: Float[Tensor, "step client batch"],
        outputs: int,
    ) -> Float[Tensor, "step client output batch"]:
        """Targets for `weighted_score_gradient`, for many steps at once."""
        ...

    def weighted_score_gradient(
        self,
        scores: Float[Tensor, "client output batch"],
        targets: Float[Tensor, "client output batch"],
        weight: Float[Tensor, "client 1 batch"],
    ) -> Float[Tensor, "client output batch"]:
        """Score gradient times weight, in fewer operations, with samples along the last axis."""
        ...


class CrossEntropy:
    """−log softmax(scores)[y], for labels y = 0, 1, …"""

    def values(
        self, scores: Float[Tensor, "client batch output"], y: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch"]:
        """Loss of each sample."""
        by_label = scores.mT  # the memory order of dense networks; reducing along short rows is much slower
        return by_label.logsumexp(-2) - by_label.gather(-2, y.unsqueeze(-2)).squeeze(-2)

    def score_gradient(
        self, scores: Float[Tensor, "client batch output"], y: Int64[Tensor, "client batch"]
    ) -> Float[Tensor, "client batch output"]:
        """softmax(scores) − the one-hot vector of y."""
        p = torch.softmax(scores.mT, -2)
        return p.scatter_(-2, y.unsqueeze(-2), -1.0, reduce="add").mT

    def weighted_targets(
        self, y: Int64[Tensor, "step client batch"], weight: Float[Tensor, "step client batch"], outputs: int
    ) -> Float[Tensor, "step client output batch"]:
        """One-hot vector of y times −weight."""
        empty = weight.new_zeros(*y.shape[:2], outputs, y.shape[2])
        return empty.scatter_(-2, y.unsqueeze(-2), -weight.unsqueeze(-2))

    def weighted_score_gradient(
        self,
        scores: Float[Tensor, "client output batch"],
        targets: Float[Tensor, "client output batch"],
        weight: Float[Tensor, "client 1 batch"],
    ) -> Float[Tensor, "client output batch"]:
        """softmax(scores) · weight + targets."""
        return torch.addcmul(targets, torch.softmax(scores, -2), weight)


class SquaredError:
    """½‖scores − y‖², for real targets."""

    def values(
        self, scores: Float[Tensor, "client batch output"], y: Float[Tensor, "client batch output"]
    ) -> Float[Tensor, "client batch"]:
        """Loss of each sample."""
        return (scores - y).square().sum(-1) / 2

    def score_gradient(
        self, scores: Float[Tensor, "client batch output"], y: Float[Tensor, "client batch output"]
    ) -> Float[Tensor, "client batch output"]:
        """Scores − y."""
        return scores - y

    def weighted_targets(
        self,
        y: Float[Tensor, "step client batch output"],
        weight: Float[Tensor, "step client batch"],
        outputs: int,
    ) -> Float[Tensor, "step client output batch"]:
        """y times −weight."""
        return (y * -weight.unsqueeze(-1)).mT

    def weighted_score_gradient(
        self,
        scores: Float[Tensor, "client output batch"],
        targets: Float[Tensor, "client output batch"],
        weight: Float[Tensor, "client 1 batch"],
    ) -> Float[Tensor, "client output batch"]:
        """Scores · weight + targets."""
        return torch.addcmul(targets, scores, weight)
