"""Affine local steps of clients of unequal size, for a kernel and for a plain PyTorch loop."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn import functional

import fedlap as fl
from fedlap.algorithms.local_work import LocalWork
from fedlap.kernels.dense import AffineStep
from fedlap.models import CrossEntropy, Model
from fedlap.training.batches import BatchPlan, Cohort
from fedlap.training.placement import PlacedClients

SIZES = (9, 2, 13, 5, 21)  # with batches of 4 rows, some last batches are short and one client has no other
BATCH, LABELS, L2 = 4, 3, 0.01
TERMS = {  # of a step: whether it has an anchor, a shift, and whether the anchor moves
    "shift": (False, True, False),
    "anchor and shift": (True, True, False),
    "moving anchor and shift": (True, True, True),
    "anchor": (True, False, False),
}


def make_federation(kind, features):
    """Clients with rows of numbers, or of bytes that are scaled when they are read."""
    draw = torch.Generator().manual_seed(11)
    arrays = {}
    for place, rows in enumerate(SIZES):
        if kind == "bytes":
            x = torch.randint(0, 256, (rows, 1, features), generator=draw).byte()
        else:
            x = torch.randn(rows, features, generator=draw, dtype=torch.float64)
        arrays[str(place)] = (x, torch.randint(0, LABELS, (rows,), generator=draw))
    federation = fl.Federation.from_arrays(arrays, labels=LABELS, test_share=0.0, scale="none")
    return federation.standardize("client") if kind == "bytes" else federation


@dataclass(frozen=True)
class Problem:
    """A round of all clients: where they start, their batches, and the terms of their steps."""

    clients: PlacedClients
    cohort: Cohort
    plan: BatchPlan
    w: torch.Tensor
    lr: torch.Tensor
    step: AffineStep
    times: int

    def run(self, kernel):
        """Return the models and the anchors after the steps of a kernel."""
        w, anchor = self.w.clone(), None if self.step.anchor is None else self.step.anchor.clone()
        step = AffineStep(anchor, self.step.pull, self.step.shift, self.step.follow)
        assert kernel(w, self.cohort, self.plan, self.lr, self.times, step)
        return [tensor.cpu().double() for tensor in (w, anchor) if tensor is not None]

    def run_plainly(self):
        """Return the models and the anchors after the same steps by autograd, one client at a time."""
        step = self.step
        rows, weight = self.plan.rows.cpu(), self.plan.weight.cpu()
        models, anchors = [], []
        for place in range(len(self.w)):
            w, lr, pull, follow = (
                value[place].cpu().double() if isinstance(value, torch.Tensor) else value
                for value in (self.w, self.lr, step.pull, step.follow)
            )
            anchor = w if step.anchor is None else step.anchor[place].cpu().double()
            shift = 0.0 if step.shift is None else step.shift[place].cpu().double()
            for row, share in zip(rows[:, place], weight[:, place], strict=True):
                inside = share > 0
                if not inside.any():
                    continue
                x, y = self._read(place, row[inside])
                for _ in range(self.times):
                    w = w - lr * self._gradient(w, x, y, share[inside]) - pull * (w - anchor) - shift
                if follow is not None:
                    anchor = anchor + follow * (w - anchor)
            models.append(w)
            anchors.append(anchor)
        return [torch.stack(models)] if step.anchor is None else [torch.stack(models), torch.stack(anchors)]

    def _read(self, place, rows):
        """Features, scaled, and labels of some rows of a client."""
        train, scale = self.clients.train, self.clients.scale
        x = train.store.cpu()[train.row.cpu()[rows]].double().flatten(1)
        if scale.kind != "none":
            client = int(self.cohort.ids[place])
            x = (x - scale.shift[client].cpu().double().item()) * scale.factor[client].cpu().double().item()
        return x, train.y.cpu()[rows]

    def _gradient(self, w, x, y, weight):
        """The gradient of the weighted cross-entropy and the L2 term."""
        w = w.clone().requires_grad_()
        at, scores, widths = 0, x, self.clients.model.network.widths
        for layer, (ins, outs) in enumerate(pairwise(widths)):
            scores = scores.relu() if layer else scores
            scores = scores @ w[at : at + ins * outs].view(outs, ins).T + w[at + ins * outs :][:outs]
            at += (ins + 1) * outs
        loss = (weight * functional.cross_entropy(scores, y, reduction="none")).sum()
        return torch.autograd.grad(loss + L2 / 2 * w.square().sum(), w)[0]


def make_problem(
    terms, kind="numbers", hidden=(), features=37, epochs=True, dtype=torch.float64, device="cpu", seed=5
):
    """A problem whose terms are those of `TERMS`, with different settings for every client."""
    device = torch.device(device)
    model = fl.models.mlp(hidden, l2=L2) if hidden else fl.models.linear(L2)
    federation = make_federation(kind, features)
    model = Model(model.build(federation.inputs, LABELS), CrossEntropy(), L2)
    resident = federation.to_device(device, dtype)
    clients = PlacedClients.of([resident], [0], model, BATCH, device, dtype)
    cohort = clients.build_cohort(clients.sort_by_count(torch.arange(len(SIZES))))
    plan = clients.draw_plans(cohort, [1], LocalWork(2 if epochs else 3, epochs))[0]
    draw = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.rand(*shape, generator=draw, dtype=torch.float64).to(device, dtype)

    has_anchor, has_shift, moves = TERMS[terms]
    shape = len(SIZES), model.size
    step = AffineStep(
        0.2 * (random(*shape) - 0.5) if has_anchor else None,
        0.1 * random(len(SIZES), 1) if has_anchor else 0.0,
        0.02 * (random(*shape) - 0.5) if has_shift else None,
        0.2 * random(len(SIZES), 1) if moves else None,
    )
    lr = 0.01 + 0.05 * random(len(SIZES), 1)
    return Problem(clients, cohort, plan, 0.2 * (random(*shape) - 0.5), lr, step, 2 if moves else 1)
