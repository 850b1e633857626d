"""Losses, their conjugates and the update of one dual variable, for dual coordinate ascent.

The functions of a loss work entry by entry, on tensors of equal shape.
"""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot, softplus

from fedlap.algorithms.task import ClientScalars, DualVariables, Task
from fedlap.errors import UnsuitedError
from fedlap.models import Model
from fedlap.models.dense import DenseNetwork
from fedlap.models.model import Stack

# Newton steps per dtype. The start is near enough everywhere for them to reach the last digits.
NEWTON_STEPS = {torch.float64: 4, torch.float32: 3}


@runtime_checkable
class Conjugate(Protocol):
    """A loss ℓ of a score z and a target y, and ℓ* of minus a dual variable a."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ(z)."""
        ...

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """ℓ*(−a)."""
        ...

    def minimise(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """Return the b that minimises ℓ*(−b) + z b + (c/2)(b − a)²."""
        ...


class Squared:
    """ℓ(z) = ½(z − y)²."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ(z)."""
        return (z - y).square() / 2

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """ℓ*(−a)."""
        return (a / 2 - y) * a

    def minimise(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """Return the b that minimises ℓ*(−b) + z b + (c/2)(b − a)²."""
        return a + (y - z - a) / (1 + c)


class Hinge:
    """ℓ(z) = ½(1 − yz)² where yz is in [0, 1], 0 above, ½ − yz below; y = ±1, and ay is in [0, 1]."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ(z)."""
        short = 1 - y * z
        near = short.clamp(0, 1)
        return near * (short - near / 2)

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """ℓ*(−a)."""
        return (a / 2 - y) * a

    def minimise(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """Return the minimiser for the squared loss, with y b clipped to [0, 1]."""
        return y * (y * (a + (y - z - a) / (1 + c))).clamp(0, 1)


class Logistic:
    """ℓ(z) = log(1 + exp(−yz)), y = ±1, and ay is in [0, 1]."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ(z)."""
        return -logsigmoid(y * z)

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """ℓ*(−a)."""
        b = (a * y).clamp(0, 1)
        return torch.xlogy(b, b) + torch.xlogy(1 - b, 1 - b)

    def minimise(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """Return y σ(t) with t + c σ(t) = d = y(ca − z), where σ is the logistic function.

        By symmetry it suffices to solve for t ≤ 0, where the left-hand side is convex in t, so that Newton's
        steps stay there. They start at the root with eᵗ for σ(t), which is d − L(ceᵈ) with Lambert's function
        L (to one per cent, after Winitzki), written such that large c and d do not cancel.
        """
        d = y * (c * a - z)
        other = c - d  # the d of −t
        low, inverse, log = torch.minimum(d, other), 1 / c, c.log()
        exponent = log + low
        rest = softplus(-exponent)
        soft = exponent.add_(rest)  # softplus(exponent)
        t = torch.addcmul(rest.add_(log).neg_(), soft, soft.log1p() / (2 + soft)).clamp_max_(0)
        for step in range(NEWTON_STEPS[t.dtype]):
            # A step on σ(t) + (t − d)/c, in as few operations as possible: all of them run once per row.
            p = t.sigmoid()
            slope = torch.addcmul(inverse, p, p, value=-1).add_(p)
            t.addcdiv_(p.addcmul_(t - low, inverse), slope, value=-1)
            if step == 0:  # later steps approach the root from above
                t.clamp_max_(0)
        return t.copysign_(d.sub_(other)).sigmoid_().mul_(y)


CONJUGATES: Final[dict[str, Conjugate]] = {
    "squared": Squared(),
    "logistic": Logistic(),
    "hinge": Hinge(),
}


@dataclass(frozen=True)
class DualProblem:
    """A linear model with one loss per score: for classes one against the rest, with targets ±1."""

    network: DenseNetwork
    loss: Conjugate
    classes: bool

    @staticmethod
    def of(model: Model, classes: bool, loss: str, scope: str) -> "DualProblem":
        """Return the problem of a linear model with this loss, by default logistic for classes, else squared.

        Raise UnsuitedError, with the method as its scope, if there is no dual.
        """
        network = model.network
        if not isinstance(network, DenseNetwork) or len(network.widths) != 2:
            raise UnsuitedError("the dual exists for linear models only; use the model 'linear'", scope=scope)
        if not classes and loss not in ("auto", "squared"):
            raise UnsuitedError(
                f"loss = {loss!r} is for classes; use 'squared' for real targets", field="loss", scope=scope
            )
        default = "logistic" if classes else "squared"
        return DualProblem(network, CONJUGATES[default if loss == "auto" else loss], classes)

    def encode_targets(self, y: Tensor, like: Tensor) -> Tensor:
        """Return real targets unchanged, and classes as ±1 per label."""
        return 2 * one_hot(y, self.network.widths[-1]).to(like) - 1 if self.classes else y

    def scores(self, w: Stack, x: Tensor) -> Tensor:
        """Return the scores of one row per client."""
        return self.network.scores(w, x.unsqueeze(1)).squeeze(1)

    def gap(self, alpha: DualVariables, w: Stack, task: Task) -> ClientScalars:
        """Return 1/n_k Σ_i ℓ(w_k·x_i) + ℓ*(−α_i) + α_i w_k·x_i of every client, which is never negative."""
        total = w.new_zeros(len(w), 1)
        for batch, rows in task.rows():
            active = len(rows)
            z, y = self.network.scores(w[:active], batch.x), self.encode_targets(batch.y, w)
            a = alpha[:active].gather(1, rows.unsqueeze(2).expand_as(z))
            gap = self.loss.value(z, y) + self.loss.conjugate(a, y) + a * z
            total[:active] += (gap.sum(2) * batch.weight).sum(1, keepdim=True)
        return total
