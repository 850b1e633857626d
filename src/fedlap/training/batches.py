"""The work of a round: how much each client does, and on which of its rows."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.randomness import Draws

# Up to this batch size distinct rows are chosen one by one, for the cost of a batch; above it all of a
# client's rows are shuffled, for the cost of a pass.
CHOOSE_UP_TO = 64


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Row numbers for every step of every client of a stack, which is sorted by falling number of steps.

    In step s the first `active[s]` clients work; the others have finished. A place past the end of a short
    batch has weight zero and repeats a row of the client's.
    """

    rows: Int64[Tensor, "step client batch"]
    weight: Float[Tensor, "step client batch"]
    active: tuple[int, ...]
    repeat: int = 1  # times that each step is made; more than once only where there is one, on all rows


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who works, as far as their batches depend on it; numbers are where batches are used.

    `most` says on the host how many rows each has, so that shapes are known there; it is exact, and falling,
    wherever clients differ in how many steps they make.
    """

    ids: Int64[Tensor, "*round client"]
    digests: Int64[Tensor, "*round client"]
    first: Int64[Tensor, "*round client"]
    count: Int64[Tensor, "*round client"]
    most: Int64[Tensor, "client"]


def in_order(
    first: Int64[Tensor, "client"], count: Int64[Tensor, "client"], most: Int64[Tensor, "client"], batch: int
) -> BatchPlan:
    """One pass over every row as it stands, `most` of a client at most."""
    times = _timetable(count, most, batch, 1)
    return BatchPlan(first.view(1, -1, 1) + times.local, times.weight, times.active)


def drawn(stream: Draws, cohort: Cohort, work: LocalWork, batch: BatchSize) -> list[BatchPlan]:
    """The mini-batches of one round, or of several, drawn from the clients' numbers alone.

    With several, the stream's keys and the cohort's numbers have rounds on their first axis.
    """
    rounds = stream.shape[0] if len(stream.shape) > 1 else 1
    several = stream.mapped(lambda key: key.unsqueeze(-2))  # room for steps
    digests, first, count = (v.unsqueeze(-2) for v in (cohort.digests, cohort.first, cohort.count))
    largest = int(cohort.most.max())
    if batch == "all" or (batch >= largest and not work.epochs):
        every = torch.arange(largest, device=count.device)
        inside = every < count.unsqueeze(-1)
        rows = first.unsqueeze(-1) + torch.where(inside, every, 0)
        weight = inside.double() / count.unsqueeze(-1)
        return _plans(rounds, rows, weight, (rows.shape[-2],), work.repeats)
    if work.epochs:
        times = _timetable(cohort.count, cohort.most, batch, work.repeats)
        order = shuffled(several, cohort, work.repeats)
        place = (
            times.epoch * order.shape[-1] + _offset(cohort.most).to(count.device).view(1, -1, 1) + times.local
        )
        order = order.flatten(-2)
        local = order.gather(-1, place.flatten().expand(*order.shape[:-1], -1))
        rows = first.unsqueeze(-1) + local.unflatten(-1, place.shape)
        return _plans(rounds, rows, times.weight, times.active)
    if batch <= CHOOSE_UP_TO:
        local = chosen(several, digests, count, work.repeats, batch)
    else:
        at = (_offset(cohort.most).unsqueeze(1) + torch.arange(batch)).to(count.device)
        order = shuffled(several, cohort, work.repeats)
        local = order[..., at.clamp_max(order.shape[-1] - 1)]
    size = count.clamp_max(batch).unsqueeze(-1)
    inside = torch.arange(batch, device=count.device) < size
    rows = first.unsqueeze(-1) + torch.where(inside, local, 0)
    return _plans(rounds, rows, inside.double() / size, (rows.shape[-2],) * work.repeats)


def _plans(
    rounds: int, rows: Tensor, weight: Tensor, active: tuple[int, ...], repeat: int = 1
) -> list[BatchPlan]:
    """A plan for each round."""
    rows = rows.expand(rounds, *rows.shape[-3:])
    weight = weight.expand(rows.shape)
    return [BatchPlan(r, w, active, repeat) for r, w in zip(rows, weight, strict=True)]


def chosen(
    draws: Draws,
    digests: Int64[Tensor, "... 1 client"],
    count: Int64[Tensor, "... 1 client"],
    steps: int,
    batch: int,
) -> Int64[Tensor, "... step client batch"]:
    """Distinct rows for each step, uniformly, with `batch` draws (Floyd's algorithm).

    For j = 0, 1, … row j is drawn from the first top_j = n − batch + j + 1; where it has been chosen before,
    the last of these is taken. That is so where an earlier draw is the same, or where it is the last row of
    an earlier j which was replaced in this way: a chain that doubling follows to its end.
    A client with fewer rows gets each of them once, and then numbers that mean nothing.
    """
    device = count.device
    at = torch.arange(steps, device=device).unsqueeze(1)
    shape = np.broadcast_shapes(digests.shape, at.shape, draws.shape)
    words = draws.words(digests.expand(shape), at.expand(shape), batch)
    place = torch.arange(batch, device=device)
    lowest = (count - count.clamp_max(batch)).unsqueeze(-1)
    guess = words * (lowest + place + 1) >> 32
    earlier = place.unsqueeze(0) < place.unsqueeze(1)
    replaced = ((guess.unsqueeze(-1) == guess.unsqueeze(-2)) & earlier).any(-1)
    link = guess - lowest  # the earlier place whose last row this is, if it is one
    link = torch.where((link >= 0) & (link < place), link, place)
    for _ in range((batch - 1).bit_length()):
        replaced = replaced | replaced.gather(-1, link)
        link = link.gather(-1, link)
    return torch.where(replaced, lowest + place, guess)


def shuffled(draws: Draws, cohort: Cohort, epochs: int) -> Int64[Tensor, "... epoch place"]:
    """Each client's row numbers in a random order, clients one after another, in every epoch.

    Clients are padded to a multiple of four places, since draws come in fours; `_offset` says where each
    begins. One sort serves all: by client first, by draw second, by place third.
    """
    device, most = cohort.digests.device, cohort.most
    blocks = (most + 3) // 4
    owner = torch.repeat_interleave(torch.arange(len(most)), blocks)
    within = (torch.arange(len(owner)) - (blocks.cumsum(0) - blocks)[owner]).to(device)
    owner = owner.to(device)
    epoch = torch.arange(epochs, device=device).unsqueeze(1)
    own, count = (v[..., owner].unsqueeze(-2) for v in (cohort.digests, cohort.count))
    keyed = draws.mapped(lambda key: key if key.shape[-1] == 1 else key[..., owner])
    words = keyed.blocks(own, epoch, within)
    local = within.unsqueeze(-1) * 4 + torch.arange(4, device=device)
    # Padding sorts behind every row of its client.
    past = torch.where(local < count.unsqueeze(-1), 0, 2**32 - 1)
    bits = int(most.max()).bit_length() + 2
    group = owner.unsqueeze(-1) << 32
    if len(most).bit_length() + 32 + bits > 63:  # too many for one number to tell client, draw and place
        order = (words | past | group).flatten(-2).argsort(dim=-1, stable=True)
        return local.flatten()[order]
    keys = words.bitwise_left_shift_(bits).bitwise_or_((past | group) << bits | local).flatten(-2)
    if device.type == "cpu":  # NumPy sorts whole numbers several times faster.
        keys.numpy().sort()
    else:
        keys = keys.sort(-1).values
    return keys.bitwise_and_((1 << bits) - 1)


def _offset(most: Int64[Tensor, "client"]) -> Int64[Tensor, "client"]:
    padded = (most + 3) // 4 * 4
    return padded.cumsum(0) - padded


@dataclass(frozen=True, eq=False)
class _Timetable:
    """Passes cut into batches: in which epoch each step is, and its places among the client's own."""

    epoch: Int64[Tensor, "step client 1"]
    local: Int64[Tensor, "step client batch"]
    weight: Float[Tensor, "step client batch"]
    active: tuple[int, ...]


def _timetable(
    count: Int64[Tensor, "client"], most: Int64[Tensor, "client"], batch: int, epochs: int
) -> _Timetable:
    """A client goes through its own batches without waiting, then is done."""
    device = count.device
    steps = epochs * ((most + batch - 1) // batch)
    last = int(steps.max())
    active = (steps > torch.arange(last).unsqueeze(1)).sum(1).tolist()
    step = torch.arange(last, device=device).view(-1, 1, 1)
    n = count.view(1, -1, 1)
    per = ((n + batch - 1) // batch).clamp_min(1)
    local = step % per * batch + torch.arange(batch, device=device)
    inside = (local < n) & (step < epochs * per)
    size = inside.sum(-1, keepdim=True).clamp_min(1)
    # Padding repeats the client's first row.
    return _Timetable(
        (step // per).clamp_max(epochs - 1),
        torch.where(inside, local, 0),
        inside.double() / size,
        tuple(active),
    )
