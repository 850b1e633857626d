"""The work of a round: how much each client does, and on which of its rows."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.errors import InputError, whole
from fedlap.randomness import Draws

BatchSize = int | Literal["all"]

DEFAULT_STEPS = 5  # of a client in a round, where neither steps nor epochs are given

# Up to this batch size distinct rows are chosen one by one, for the cost of a batch; above it all of a
# client's rows are shuffled, for the cost of a pass.
CHOOSE_UP_TO = 64


@dataclass(frozen=True)
class Work:
    """R mini-batch steps, or R passes over the client's rows."""

    repeats: int
    epochs: bool

    @staticmethod
    def of(local_steps: int | None, local_epochs: int | None) -> "Work":
        """What an algorithm's two fields say: steps (5 where neither is given) or epochs."""
        if local_steps is not None and local_epochs is not None:
            raise InputError(
                f"algorithm: local_steps = {local_steps} and local_epochs = {local_epochs} are both given; "
                "give one of them"
            )
        name, repeats = (
            ("local_steps", local_steps) if local_epochs is None else ("local_epochs", local_epochs)
        )
        repeats = whole(f"algorithm: {name}", DEFAULT_STEPS if repeats is None else repeats, 1)
        return Work(repeats, local_epochs is not None)

    def times(self, factor: int) -> "Work":
        """More steps; a pass stays a pass."""
        return self if self.epochs else Work(self.repeats * factor, False)


@dataclass(frozen=True, eq=False)
class Plan:
    """Row numbers for every step of every client of a stack, which is sorted by falling number of steps.

    In step s the first `active[s]` clients work; the others have finished. A place past the end of a short
    batch has weight zero and repeats the client's first row.
    """

    rows: Int64[Tensor, "step client batch"]
    weight: Float[Tensor, "step client batch"]
    active: tuple[int, ...]
    repeat: int = 1  # times that each step is made; more than once only where there is one, on all rows


def in_order(
    first: Int64[Tensor, "client"], count: Int64[Tensor, "client"], batch: int, device: torch.device
) -> Plan:
    """One pass over every row as it stands."""
    return _table(first, count, batch, 1, None, device)


def drawn(
    draws: Draws,
    digests: Int64[Tensor, "client"],
    first: Int64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    work: Work,
    batch: BatchSize,
    device: torch.device,
) -> Plan:
    """The mini-batches of one round, drawn from the clients' numbers alone."""
    largest = int(count[0])
    if batch == "all" or (batch >= largest and not work.epochs):
        plan = _table(first, count, largest, 1, None, device)
        return Plan(plan.rows, plan.weight, plan.active, work.repeats)
    digests = digests.to(device)
    if work.epochs:
        return _table(
            first, count, batch, work.repeats, shuffled(draws, digests, count, work.repeats), device
        )
    if batch <= CHOOSE_UP_TO:
        local = chosen(draws, digests, count.to(device), work.repeats, batch)
    else:
        local = _heads(shuffled(draws, digests, count, work.repeats), count, batch)
    size = count.to(device).clamp_max(batch).view(1, -1, 1)
    inside = torch.arange(batch, device=device) < size
    rows = first.to(device).view(1, -1, 1) + torch.where(inside, local, 0)
    weight = (inside.double() / size).expand(rows.shape)
    return Plan(rows, weight, (len(count),) * work.repeats)


def chosen(
    draws: Draws, digests: Int64[Tensor, "client"], count: Int64[Tensor, "client"], steps: int, batch: int
) -> Int64[Tensor, "step client batch"]:
    """Distinct rows for each step, uniformly, with `batch` draws (Floyd's algorithm).

    A client with fewer rows gets each of them once, and then numbers that mean nothing.
    """
    at = torch.arange(steps, device=count.device).unsqueeze(1).expand(-1, len(count))
    words = draws.words(digests.expand_as(at), at, batch)
    place = torch.arange(batch, device=count.device)
    highest = (count - count.clamp_max(batch)).unsqueeze(-1) + place  # (client, batch)
    guess = words * (highest + 1) >> 32
    picked = guess.clone()
    for j in range(1, batch):
        seen = (picked[..., :j] == guess[..., j : j + 1]).any(-1)
        picked[..., j] = torch.where(seen, highest[..., j], guess[..., j])
    return picked


def shuffled(
    draws: Draws, digests: Int64[Tensor, "client"], count: Int64[Tensor, "client"], epochs: int
) -> Int64[Tensor, "epoch place"]:
    """Each client's row numbers in a random order, clients one after another, in every epoch.

    Clients are padded to a multiple of four places, since draws come in fours; `_offset` says where each
    begins. One stable sort serves all: by epoch and client first, by draw second.
    """
    device = digests.device
    blocks = (count + 3) // 4
    owner = torch.repeat_interleave(torch.arange(len(count)), blocks)
    within = (torch.arange(len(owner)) - (blocks.cumsum(0) - blocks)[owner]).to(device)
    epoch = torch.arange(epochs, device=device).unsqueeze(1).expand(-1, len(owner))
    owner = owner.to(device)
    words = draws.blocks(digests[owner].expand_as(epoch), epoch, within.expand_as(epoch))
    local = within.unsqueeze(-1) * 4 + torch.arange(4, device=device)
    # Padding sorts behind every row of its client.
    words = torch.where(local < count.to(device)[owner].unsqueeze(-1), words, 2**32 - 1)
    group = epoch * len(count) + owner
    order = ((group.unsqueeze(-1) << 32) + words).flatten().argsort(stable=True).view(epochs, -1)
    return local.flatten()[order - torch.arange(epochs, device=device).unsqueeze(1) * order.shape[1]]


def _offset(count: Int64[Tensor, "client"]) -> Int64[Tensor, "client"]:
    padded = (count + 3) // 4 * 4
    return padded.cumsum(0) - padded


def _heads(
    order: Int64[Tensor, "epoch place"], count: Int64[Tensor, "client"], batch: int
) -> Int64[Tensor, "epoch client batch"]:
    """The first rows of each client's order."""
    at = (_offset(count).unsqueeze(1) + torch.arange(batch)).clamp_max(order.shape[1] - 1)
    return order[:, at.to(order.device)]


def _table(
    first: Int64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    batch: int,
    epochs: int,
    order: Int64[Tensor, "epoch place"] | None,
    device: torch.device,
) -> Plan:
    """Passes cut into batches; a client goes through its own batches without waiting, then is done."""
    batches = (count + batch - 1) // batch
    steps = epochs * batches
    last = int(steps.max())
    active = (steps > torch.arange(last).unsqueeze(1)).sum(1).tolist()
    step = torch.arange(last, device=device).view(-1, 1, 1)
    n, per, begin = (v.to(device).view(1, -1, 1) for v in (count, batches.clamp_min(1), first))
    local = step % per * batch + torch.arange(batch, device=device)
    inside = (local < n) & (step < epochs * per)
    size = inside.sum(-1, keepdim=True).clamp_min(1)
    local = torch.where(inside, local, 0)
    if order is not None:
        local = order[(step // per).clamp_max(epochs - 1), _offset(count).to(device).view(1, -1, 1) + local]
    # Padding repeats a row of the client's own, wherever that is.
    rows = begin + local.clamp_max((n - 1).clamp_min(0))
    return Plan(rows, inside.double() / size, tuple(active))
