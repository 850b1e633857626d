"""Losses of a score, their conjugates, and the best of one dual variable: what coordinate ascent needs.

All of them work entry by entry, on tensors of any one shape.
"""

from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

# Newton's steps, from a start near enough everywhere for these to reach the last digits.
NEWTON = {torch.float64: 4, torch.float32: 3}


@runtime_checkable
class Conjugate(Protocol):
    """A loss ℓ of a score z and a target y, and ℓ* of minus a dual variable a."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ(z)."""
        ...

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """ℓ*(−a)."""
        ...

    def best(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """The b with the least ℓ*(−b) + z b + (c/2)(b − a)²."""
        ...


class Squared:
    """ℓ(z) = ½(z − y)²."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ(z)."""
        return (z - y).square() / 2

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """ℓ*(−a)."""
        return (a / 2 - y) * a

    def best(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """The b with the least ℓ*(−b) + z b + (c/2)(b − a)²."""
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

    def best(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """Where the squared loss has it, moved into [0, 1]."""
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

    def best(self, a: Tensor, z: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """y σ(t) with t + c σ(t) = d = y(ca − z), σ the logistic function.

        Seen from the side where t ≤ 0, the left is convex in t, so that Newton's steps cannot leave; they
        begin at the root with eᵗ for σ(t), d − L(ceᵈ) with Lambert's function L (to a percent, after
        Winitzki), written such that large c and d do not cancel.
        """
        d = y * (c * a - z)
        other = c - d  # the d of −t
        low, over, log = torch.minimum(d, other), 1 / c, c.log()
        whole = log + low
        rest = softplus(-whole)
        near = whole.add_(rest)  # softplus(whole)
        t = torch.addcmul(rest.add_(log).neg_(), near, near.log1p() / (2 + near)).clamp_max_(0)
        for step in range(NEWTON[t.dtype]):
            # Of σ(t) + (t − d)/c, in as few operations as can be: each is made for every row by itself.
            p = t.sigmoid()
            slope = torch.addcmul(over, p, p, value=-1).add_(p)
            t.addcdiv_(p.addcmul_(t - low, over), slope, value=-1)
            if step == 0:  # after which steps come from above
                t.clamp_max_(0)
        return t.copysign_(d.sub_(other)).sigmoid_().mul_(y)


CONJUGATES: Final[dict[str, Conjugate]] = {
    "squared": Squared(),
    "logistic": Logistic(),
    "hinge": Hinge(),
}
