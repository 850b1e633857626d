"""Batched forms of the local updates: one kernel for all clients and steps, else one operation per step.

`UPDATES` maps each function of `algorithms/local_updates.py` to its batched form, which overwrites the models
it is given. Clients are sorted by falling numbers of steps: in later steps only the first ones are active.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from fedlap.algorithms.conjugates import DualProblem
from fedlap.algorithms.held_out_rows import drop_held_out
from fedlap.algorithms.local_updates import (
    block_sgd,
    cosine_sgd,
    dual_coordinate_ascent,
    first_order_maml,
    interpolated_sgd,
    maml,
    moreau,
    sgd,
    sgd_without_held_out,
)
from fedlap.algorithms.task import ClientScalars, DualVariables, LocalUpdate, Setting
from fedlap.errors import InputError, check_integer
from fedlap.kernels.dense import (
    AffineStep,
    BlockStep,
    DualAscent,
    MamlLookahead,
    StepVariant,
    TurningStep,
)
from fedlap.models import Batch
from fedlap.models.model import Stack
from fedlap.models.parameters import view_parameters

if TYPE_CHECKING:
    from fedlap.training.task import StackTask

ROWS_PER_GRAM_BLOCK = 32  # rows of a mini-batch whose inner products are computed together


def run_sgd(
    task: "StackTask",
    w: Stack,
    *,
    lr: Setting,
    anchor: Stack | None = None,
    pull: Setting = 0.0,
    shift: Setting | Stack = 0.0,
) -> Stack:
    """Run `sgd` for all clients."""
    if isinstance(shift, Tensor):
        shift = shift.expand_as(w) if shift.shape == (len(w), 1) else shift
        task.check("shift", shift)
    elif shift:
        shift = torch.full_like(w, shift)
    if anchor is not None:
        task.check("anchor", anchor)
    elif isinstance(pull, Tensor) or pull:
        anchor = w
    if anchor is not None and anchor.data_ptr() == w.data_ptr():
        anchor = task.copy(anchor)  # The steps overwrite w.
    if isinstance(shift, Tensor):
        return _run_affine(task, w, lr, AffineStep(anchor, pull, shift))
    if anchor is not None:
        return _run_affine(task, w, lr, AffineStep(anchor, pull))
    return w if run_kernel(task, w, lr) else _run_plain(task, w, lr)


def run_block_sgd(task: "StackTask", w: Stack, *, lr: Setting, first: int, last: int) -> Stack:
    """Run `block_sgd` for all clients: plain steps, after each of which other parameters are restored."""
    if (first, last) == (0, w.shape[1]):
        return run_sgd(task, w, lr=lr)
    if run_kernel(task, w, lr, 1, BlockStep(first, last)):
        return w
    before, after = w[:, :first].clone(), w[:, last:].clone()
    for batch, active in _iterate_active(task):
        _descend(task, w, batch, lr, active)
        w[:active, :first], w[:active, last:] = before[:active], after[:active]
    return w


def run_sgd_without_held_out(task: "StackTask", w: Stack, *, lr: Setting, every: int) -> Stack:
    """Run `sgd_without_held_out` for all clients: `sgd` on batches in which held-out rows are padding."""
    plan, cohort = task.plan, task.cohort
    used = (plan.weight > 0) & ((plan.rows - cohort.first.unsqueeze(1) + 1) % every != 0)
    left = used.sum(2, keepdim=True)
    # A kernel needs a row in every batch, and sample weights do not scale by numbers of rows.
    if task.clients.train.weight is None and not bool(((left == 0) & (plan.weight[..., :1] > 0)).any()):
        order = used.to(torch.uint8).argsort(dim=2, descending=True, stable=True)
        total = plan.weight.sum(2, keepdim=True)
        weight = (used * total / left.clamp_min(1)).gather(2, order).to(plan.weight)
        without = replace(plan, rows=plan.rows.gather(2, order), weight=weight)
        return run_sgd(replace(task, known_plan=without), w, lr=lr)
    for batch, rows in task.batches_with_rows():
        _descend(task, w, drop_held_out(batch, rows, every), lr, len(batch.x))
    return w


def run_cosine_sgd(task: "StackTask", w: Stack, *, lr: Setting, direction: Stack, pull: Setting) -> Stack:
    """Run `cosine_sgd` for all clients."""
    if not isinstance(pull, Tensor) and not pull:
        return run_sgd(task, w, lr=lr)
    task.check("direction", direction)
    known = _make_contiguous(task, direction)
    assert known is not None
    if run_kernel(task, w, lr, 1, TurningStep(known, pull)):
        return w
    for batch, active in _iterate_active(task):
        before, v = w[:active].clone(), direction[:active]
        inverse = before.norm(dim=1, keepdim=True).reciprocal_().nan_to_num_(posinf=0.0)
        length = take_first(pull, active) * inverse
        back = length * (before * v).sum(1, keepdim=True) * inverse.square()
        _descend(task, w, batch, lr, active)
        w[:active].addcmul_(length, v).addcmul_(back, before, value=-1)
    return w


def _run_plain(task: "StackTask", w: Stack, lr: Setting) -> Stack:
    """Run steps without anchor and shift, in as few operations as possible."""
    clients, plan, before = task.clients, task.plan, -1
    if clients.model.is_batch_dependent:
        for batch, active in _iterate_active(task):
            _descend(task, w, batch, lr, active)
        return w
    model, memory, repeats = clients.model, clients.memory, range(plan.repeat)
    wide = clients.wide_rows if len(w) > 1 else None
    held = model.network.prepare_weights(w, len(plan.active) * plan.repeat, memory, wide is not None)
    if clients.device.type == "cpu" and task.precomputes_targets and not isinstance(lr, Tensor):
        # Products fill the cache, so anything else that a step touches costs time.
        for active, read, places, targets_per_step in task.group_batches(memory, wide):
            descend = held.step_for(active)
            for at, targets in zip(places, targets_per_step, strict=True):
                x = read(at)
                for _ in repeats:
                    model.step_to_targets(descend, x, targets, lr)
    else:
        for active, batch in task.iterate_steps(memory, wide):
            if active != before:
                before, descend, rate = active, held.step_for(active), take_first(lr, active)
            for _ in repeats:
                model.step(descend, batch, rate)
    held.write_back()
    return w


def _run_affine(
    task: "StackTask", w: Stack, lr: Setting, affine: AffineStep, steps_per_batch: int = 1
) -> Stack:
    """Run steps with a pull to an anchor, a shift or both; the anchor may move after each mini-batch."""
    anchor, shift = _make_contiguous(task, affine.anchor), _make_contiguous(task, affine.shift)
    if run_kernel(task, w, lr, steps_per_batch, replace(affine, anchor=anchor, shift=shift)):
        return w
    for batch, active in _iterate_active(task):
        for _ in range(steps_per_batch):
            back = None if anchor is None else w[:active] - anchor[:active]
            _descend(task, w, batch, lr, active)
            if back is not None:
                w[:active] -= take_first(affine.pull, active) * back
            if shift is not None:
                w[:active] -= shift[:active]
        if anchor is not None and affine.follow is not None:
            anchor[:active] -= take_first(affine.follow, active) * (anchor[:active] - w[:active])
    return w


def _make_contiguous(task: "StackTask", rows: Stack | None) -> Stack | None:
    """Return rows that a kernel can read, copied if they are not contiguous."""
    return rows if rows is None or rows.is_contiguous() else task.copy(rows)


def run_moreau(
    task: "StackTask",
    w: Stack,
    *,
    lr: Setting,
    inner_lr: Setting,
    inner_steps: int,
    regularisation: Setting,
) -> tuple[Stack, Stack]:
    """Run `moreau` for all clients."""
    check_integer("inner_steps", inner_steps, 1, scope="moreau")
    pull, follow = inner_lr * regularisation, lr * regularisation
    theta = _run_affine(task, task.copy(w), inner_lr, AffineStep(w, pull, follow=follow), inner_steps)
    return theta, w


def run_first_order_maml(task: "StackTask", w: Stack, *, adapt_lr: Setting, lr: Setting) -> Stack:
    """Run `first_order_maml` for all clients."""
    if run_kernel(task, w, adapt_lr, 1, MamlLookahead(lr)):
        return w
    batches = task.batches()
    for batch, second in zip(batches, batches, strict=True):
        adapted = _descend(task, w.clone(), batch, adapt_lr, len(batch.x))
        active = len(second.x)
        w[:active] -= take_first(lr, active) * task.gradient(adapted[:active], second)
    return w


def run_maml(task: "StackTask", w: Stack, *, adapt_lr: Setting, lr: Setting) -> Stack:
    """Run `maml` for all clients."""
    batches = task.batches()
    for batch, second, third in zip(batches, batches, batches, strict=True):
        adapted = _descend(task, w.clone(), batch, adapt_lr, len(batch.x))
        active = len(third.x)
        step = task.gradient(adapted[: len(second.x)], second)[:active]
        step = step - take_first(adapt_lr, active) * task.curvature(w[:active], third, step)
        w[:active] -= take_first(lr, active) * step
    return w


def run_interpolated_sgd(
    task: "StackTask", w: Stack, *, v: Stack, mixture: ClientScalars, lr: Setting, adaptive: bool
) -> tuple[Stack, Stack, ClientScalars]:
    """Run `interpolated_sgd` for all clients."""
    task.check("v", v)
    v, mixture = task.copy(v), mixture.clone()
    for number, (batch, active) in enumerate(_iterate_active(task)):
        a, rate, difference = mixture[:active], take_first(lr, active), v[:active] - w[:active]
        gradient = task.gradient(a * v[:active] + (1 - a) * w[:active], batch)
        _descend(task, w, batch, lr, active)
        v[:active] -= rate * a * gradient
        if adaptive and number == 0:
            a -= rate * (difference * gradient).sum(1, keepdim=True)
            a.clamp_(0, 1)
    return w, v, mixture


def run_dual_coordinate_ascent(
    task: "StackTask",
    w: Stack,
    *,
    alpha: DualVariables,
    scale: ClientScalars,
    share: ClientScalars,
    problem: DualProblem,
) -> tuple[Stack, DualVariables]:
    """Run `dual_coordinate_ascent` for all clients, on blocks of rows by their Gram matrix."""
    shape = len(w), int(task.cohort.max_count.max()), problem.network.widths[-1]
    if alpha.dtype != w.dtype or alpha.shape[::2] != shape[::2] or alpha.shape[1] < shape[1]:
        raise InputError(
            f"alpha is {alpha.dtype} of shape {tuple(alpha.shape)}; expected {w.dtype} of shape {shape}, "
            "or more rows"
        )
    for name, value in (("scale", scale), ("share", share)):
        if value.shape != (len(w), 1):
            raise InputError(f"{name} has shape {tuple(value.shape)}; expected ({len(w)}, 1)")
    alpha = alpha.clone()
    if problem.classes and run_kernel(task, w, 0.0, 1, DualAscent(problem.loss, alpha, scale, share)):
        return w, alpha
    for x, y, rows, used in _split_blocks(task, share, problem):
        active, factor = len(x), scale[: len(x)].unsqueeze(2)
        weight, bias = view_parameters(w[:active], problem.network.shapes)
        z = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
        gram = (torch.bmm(x, x.mT) + 1) * factor  # effect of one row's Δα on another row's score
        old = alpha[:active].gather(1, rows)
        change = torch.empty_like(old)
        # Rows are unbound once, since creating a view in Python takes as long as a small product.
        per_row = (old, z, y, torch.diagonal(gram, dim1=1, dim2=2).unsqueeze(2), change, used)
        effects = gram.unsqueeze(3).unbind(2), change.unsqueeze(1).unbind(2)
        for before, score, target, curvature, delta, is_used, column, by in zip(
            *(tensor.unbind(1) for tensor in per_row), *effects, strict=True
        ):
            new = problem.loss.minimise(before, score, target, curvature)
            torch.sub(new, before, out=delta).mul_(is_used)
            z.addcmul_(column, by)
        alpha[:active].scatter_add_(1, rows, change)
        change *= factor
        weight.baddbmm_(change.mT, x)
        bias.add_(change.sum(1))
    return w, alpha


def _split_blocks(
    task: "StackTask", share: ClientScalars, problem: DualProblem
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield blocks of the round's rows: features, targets, row indices, and which rows are used."""
    for batch, rows in task.batches_with_rows():
        size = (batch.weight > 0).sum(1, keepdim=True)
        used = torch.arange(rows.shape[1], device=size.device) < (share[: len(size)] * size).ceil()
        y = problem.encode_targets(batch.y, batch.x)
        tensors = (batch.x.flatten(2), y, rows.unsqueeze(2).expand_as(y), used.unsqueeze(2))
        yield from zip(*(tensor.split(ROWS_PER_GRAM_BLOCK, dim=1) for tensor in tensors), strict=True)


def run_kernel(task: "StackTask", w: Stack, lr: Setting, times: int = 1, variant: StepVariant = None) -> bool:
    """Run all steps in one kernel, in place; return False if no kernel supports them."""
    kernel, plan = None if task.step_by_step else task.clients.fused, task.plan
    if kernel is None or (plan.repeat > 1 and variant is not None):
        return False
    return kernel(w, task.cohort, plan, lr, plan.repeat * times, variant)


def take_first(setting: Any, rows: int) -> Any:
    """Return a number unchanged, and of one value per client those of the first rows."""
    return setting[:rows] if isinstance(setting, Tensor) else setting


def _iterate_active(task: "StackTask") -> Iterator[tuple[Batch, int]]:
    """Yield each mini-batch with the number of its clients."""
    for batch in task.batches():
        yield batch, len(batch.x)


def _descend(task: "StackTask", w: Stack, batch: Batch, lr: Setting, active: int) -> Stack:
    """Take one step w_k ← w_k − lr ∇F̃_k(w_k) in place at the active clients."""
    task.clients.model.descend(w[:active], batch, take_first(lr, active))
    return w


UPDATES: Final[dict[LocalUpdate, Callable[..., Any]]] = {
    sgd: run_sgd,
    block_sgd: run_block_sgd,
    cosine_sgd: run_cosine_sgd,
    sgd_without_held_out: run_sgd_without_held_out,
    moreau: run_moreau,
    first_order_maml: run_first_order_maml,
    maml: run_maml,
    interpolated_sgd: run_interpolated_sgd,
    dual_coordinate_ascent: run_dual_coordinate_ascent,
}
