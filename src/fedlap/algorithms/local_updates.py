"""Local updates: what a client does with its mini-batches in a round.

A method runs them by `task.run(update, w, **values)`. A client that trains alone runs exactly the text below.
For a stack of clients `training/batched_updates.py` has a kernel or a batched loop for each of them; tests
hold those to this text. F̃ is the client's loss on a mini-batch, with the L2 term.
"""

from typing import Any

import torch

from fedlap.algorithms.conjugates import DualProblem
from fedlap.algorithms.held_out_rows import drop_held_out
from fedlap.algorithms.task import ClientScalars, DualVariables, Setting, Task
from fedlap.models.model import Stack


def sgd(
    w: Stack, task: Task, *, lr: Setting, anchor: Stack | None = None, pull: Setting = 0.0, shift: Any = 0.0
) -> Stack:
    """R local steps  w ← w − lr ∇F̃(w) − pull (w − anchor) − shift."""
    anchor = w if anchor is None else anchor
    for batch in task.batches():
        w = w - lr * task.gradient(w, batch) - pull * (w - anchor) - shift
    return w


def block_sgd(w: Stack, task: Task, *, lr: Setting, first: int, last: int) -> Stack:
    """R local steps  w ← w − lr ∇F̃(w)  on the parameters from `first` to before `last`; the others stay."""
    mask = torch.zeros_like(w)
    mask[:, first:last] = 1
    for batch in task.batches():
        w = w - lr * mask * task.gradient(w, batch)
    return w


def sgd_without_held_out(w: Stack, task: Task, *, lr: Setting, every: int) -> Stack:
    """R local steps  w ← w − lr ∇F̃(w)  on mini-batches without every `every`-th row of the client."""
    for batch, rows in task.batches_with_rows():
        w = w - lr * task.gradient(w, drop_held_out(batch, rows, every))
    return w


def cosine_sgd(w: Stack, task: Task, *, lr: Setting, direction: Stack, pull: Setting) -> Stack:
    """R local steps  w ← w − lr ∇F̃(w) + pull (v − (v·w) w/‖w‖²)/‖w‖,  v the direction to turn to."""
    for batch in task.batches():
        w = w - lr * task.gradient(w, batch) + pull * compute_turn(w, direction)
    return w


def compute_turn(w: Stack, direction: Stack) -> Stack:
    """Return (v − (v·w) w/‖w‖²)/‖w‖, the gradient of v·w/‖w‖ by w; zero at w = 0."""
    length = w.norm(dim=1, keepdim=True)
    inverse = torch.where(length > 0, 1 / length, 0.0)
    unit = w * inverse
    return inverse * (direction - (direction * unit).sum(1, keepdim=True) * unit)


def moreau(
    w: Stack, task: Task, *, lr: Setting, inner_lr: Setting, inner_steps: int, regularisation: Setting
) -> tuple[Stack, Stack]:
    """R steps on the Moreau envelope of F̃; return θ, the personal model, and w.

    θ ← θ − inner_lr (∇F̃(θ) + λ (θ − w))    K times on one mini-batch, and then  w ← w − lr λ (w − θ)
    """
    theta = w
    for batch in task.batches():
        for _ in range(inner_steps):
            theta = theta - inner_lr * (task.gradient(theta, batch) + regularisation * (theta - w))
        w = w - lr * regularisation * (w - theta)
    return theta, w


def first_order_maml(w: Stack, task: Task, *, adapt_lr: Setting, lr: Setting) -> Stack:
    """R steps  w ← w − lr ∇F̃′(w − adapt_lr ∇F̃(w)),  each on two mini-batches."""
    batches = task.batches()
    for batch, second in zip(batches, batches, strict=True):
        adapted = w - adapt_lr * task.gradient(w, batch)
        w = w - lr * task.gradient(adapted, second)
    return w


def maml(w: Stack, task: Task, *, adapt_lr: Setting, lr: Setting) -> Stack:
    """R steps  w ← w − lr (I − adapt_lr ∇²F̃″(w)) ∇F̃′(w − adapt_lr ∇F̃(w)),  each on three mini-batches."""
    batches = task.batches()
    for batch, second, third in zip(batches, batches, batches, strict=True):
        adapted = w - adapt_lr * task.gradient(w, batch)
        gradient = task.gradient(adapted, second)
        w = w - lr * (gradient - adapt_lr * task.curvature(w, third, gradient))
    return w


def interpolated_sgd(
    w: Stack, task: Task, *, v: Stack, mixture: ClientScalars, lr: Setting, adaptive: bool
) -> tuple[Stack, Stack, ClientScalars]:
    """R steps on w, and on v by the gradient at v̄ = a v + (1 − a) w; return w, v and a.

    w ← w − lr ∇F̃(w),  v ← v − lr a ∇F̃(v̄)                   both from the same old values
    a ← a − lr ⟨v − w, ∇F̃(v̄)⟩, clipped to [0, 1]            if adaptive, after the first mini-batch
    """
    a = mixture
    for number, batch in enumerate(task.batches()):
        difference, gradient = v - w, task.gradient(a * v + (1 - a) * w, batch)
        w, v = w - lr * task.gradient(w, batch), v - lr * a * gradient
        if adaptive and number == 0:
            a = (a - lr * (difference * gradient).sum(1, keepdim=True)).clamp(0, 1)
    return w, v, a


def dual_coordinate_ascent(
    w: Stack,
    task: Task,
    *,
    alpha: DualVariables,
    scale: ClientScalars,
    share: ClientScalars,
    problem: DualProblem,
) -> tuple[Stack, DualVariables]:
    """Dual coordinate ascent on a linear model, row by row; return w and α.

    α_i ← argmin_b ℓ*(−b) + z b + (c/2)(b − α_i)²,  c = scale (‖x‖² + 1)    z = w·x, at each row i in turn
    w ← w + scale Δα_i x                                                    x ends in a one, for the bias

    share: the share of each mini-batch's rows that are used, rounded up.
    """
    for batch, rows in task.batches_with_rows():
        size = (batch.weight > 0).sum()  # a short mini-batch is padded
        for place in range(int((share * size).ceil())):
            x, row = batch.x[:, place].flatten(1), rows[:, place]
            y, z = problem.encode_targets(batch.y[:, place], w), problem.scores(w, x)
            old, curvature = alpha[:, int(row)], scale * (x.square().sum(1, keepdim=True) + 1)
            change = problem.loss.minimise(old, z, y, curvature) - old
            alpha = alpha.index_add(1, row, change.unsqueeze(1))
            step = scale * change
            w = w + torch.cat([(step.unsqueeze(2) * x.unsqueeze(1)).flatten(1), step], 1)
    return w, alpha
