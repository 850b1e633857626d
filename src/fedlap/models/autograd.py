"""Gradients by automatic differentiation on the stack, for networks without a hand-written one."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedlap.models.model import Keep, Slope, Stack


def gradient(scores: Callable[[Tensor, Tensor], Tensor], W: Stack, x: Tensor, slope: Slope) -> Stack:
    """The derivative by W: rows do not meet, so one backward pass over the stack serves every client."""
    with torch.enable_grad():
        leaf = W.detach().requires_grad_()
        out = scores(leaf, x)
    return torch.autograd.grad(out, leaf, grad_outputs=slope(out.detach().mT).mT)[0]


def descend(
    scores: Callable[[Tensor, Tensor], Tensor],
    W: Stack,
    x: Tensor,
    slope: Slope,
    lr: float = 1.0,
    keep: Keep = 1.0,
) -> None:
    """W ← keep·W − lr·gradient, in place."""
    step = gradient(scores, W, x, slope)
    W.mul_(keep).sub_(step, alpha=lr)
