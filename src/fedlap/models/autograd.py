"""Gradients by automatic differentiation on the stack, for networks without a hand-written one."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedlap.models.model import DecayFactor, ScoreGradient, Stack


def gradient(scores: Callable[[Tensor, Tensor], Tensor], W: Stack, x: Tensor, slope: ScoreGradient) -> Stack:
    """Derivative by W, in one backward pass over the stack, since no operation mixes clients."""
    with torch.enable_grad():
        leaf = W.detach().requires_grad_()
        out = scores(leaf, x)
    return torch.autograd.grad(out, leaf, grad_outputs=slope(out.detach().mT).mT)[0]


def descend(
    scores: Callable[[Tensor, Tensor], Tensor],
    W: Stack,
    x: Tensor,
    slope: ScoreGradient,
    lr: float = 1.0,
    decay: DecayFactor = 1.0,
) -> None:
    """W ← decay·W − lr·gradient, in place."""
    step = gradient(scores, W, x, slope)
    W.mul_(decay).sub_(step, alpha=lr)
