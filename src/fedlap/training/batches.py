"""Mini-batch plans: the rows that each client uses in each local step of a round."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.randomness import Draws

# Up to this batch size distinct rows are chosen one by one, at the cost of a batch; above it all rows of a
# client are shuffled, at the cost of a pass.
MAX_CHOSEN_BATCH = 64


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Row numbers for every step of every client of a stack, which is sorted by decreasing number of steps.

    In step s the first `active[s]` clients work; the others have finished. Padding at the end of a short
    batch has weight zero and repeats a row of the client.
    """

    rows: Int64[Tensor, "step client batch"]
    weight: Float[Tensor, "step client batch"]
    active: tuple[int, ...]
    repeat: int = 1  # executions of each step; above 1 only for plans with a single step, on all rows


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round, as far as batches depend on them; tensors are where batches are used.

    `max_count` bounds the rows of each client on the host, so that shapes are known there; it is exact, and
    decreasing, wherever clients differ in their number of steps.
    """

    ids: Int64[Tensor, "*round client"]
    digests: Int64[Tensor, "*round client"]
    first: Int64[Tensor, "*round client"]
    count: Int64[Tensor, "*round client"]
    max_count: Int64[Tensor, "client"]


def plan_pass(
    first: Int64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    max_count: Int64[Tensor, "client"],
    batch: int,
) -> BatchPlan:
    """Plan one pass over the first `max_count` rows of each client, in stored order."""
    times = _split_passes(count, max_count, batch, 1)
    return BatchPlan(first.view(1, -1, 1) + times.local, times.weight, times.active)


def draw_batches(stream: Draws, cohort: Cohort, work: LocalWork, batch: BatchSize) -> list[BatchPlan]:
    """Draw the mini-batches of one or several rounds from the clients' digests and row counts alone.

    For several rounds, the stream's keys and the cohort's tensors have rounds on their first axis.
    """
    rounds = stream.shape[0] if len(stream.shape) > 1 else 1
    stream_per_step = stream.map_keys(lambda key: key.unsqueeze(-2))  # an axis for steps
    digests, first, count = (v.unsqueeze(-2) for v in (cohort.digests, cohort.first, cohort.count))
    largest = int(cohort.max_count.max())
    if batch == "all" or (batch >= largest and not work.epochs):
        every = torch.arange(largest, device=count.device)
        inside = every < count.unsqueeze(-1)
        rows = first.unsqueeze(-1) + torch.where(inside, every, 0)
        weight = inside.double() / count.unsqueeze(-1)
        return _split_rounds(rounds, rows, weight, (rows.shape[-2],), work.repeats)
    if work.epochs:
        times = _split_passes(cohort.count, cohort.max_count, batch, work.repeats)
        order = shuffle_rows(stream_per_step, cohort, work.repeats)
        place = (
            times.epoch * order.shape[-1]
            + _padded_offsets(cohort.max_count).to(count.device).view(1, -1, 1)
            + times.local
        )
        order = order.flatten(-2)
        local = order.gather(-1, place.flatten().expand(*order.shape[:-1], -1))
        rows = first.unsqueeze(-1) + local.unflatten(-1, place.shape)
        return _split_rounds(rounds, rows, times.weight, times.active)
    if batch <= MAX_CHOSEN_BATCH:
        local = choose_rows(stream_per_step, digests, count, work.repeats, batch)
    else:
        at = (_padded_offsets(cohort.max_count).unsqueeze(1) + torch.arange(batch)).to(count.device)
        order = shuffle_rows(stream_per_step, cohort, work.repeats)
        local = order[..., at.clamp_max(order.shape[-1] - 1)]
        # A client whose rows are all in the batch reads them in their order, as it does by itself.
        local = torch.where(count.unsqueeze(-1) <= batch, torch.arange(batch, device=local.device), local)
    size = count.clamp_max(batch).unsqueeze(-1)
    inside = torch.arange(batch, device=count.device) < size
    rows = first.unsqueeze(-1) + torch.where(inside, local, 0)
    return _split_rounds(rounds, rows, inside.double() / size, (rows.shape[-2],) * work.repeats)


def _split_rounds(
    rounds: int, rows: Tensor, weight: Tensor, active: tuple[int, ...], repeat: int = 1
) -> list[BatchPlan]:
    """Return one plan per round."""
    rows = rows.expand(rounds, *rows.shape[-3:])
    weight = weight.expand(rows.shape)
    return [BatchPlan(r, w, active, repeat) for r, w in zip(rows, weight, strict=True)]


def choose_rows(
    draws: Draws,
    digests: Int64[Tensor, "... 1 client"],
    count: Int64[Tensor, "... 1 client"],
    steps: int,
    batch: int,
) -> Int64[Tensor, "... step client batch"]:
    """Choose distinct rows for each step, uniformly, with `batch` draws (Floyd's algorithm).

    For j = 0, 1, … row j is drawn from the first top_j = n − batch + j + 1 rows; if it was chosen before, row
    top_j − 1 takes its place. It was chosen before if an earlier draw is equal, or if it is the last row of
    an earlier j that was replaced in this way: a chain that pointer doubling follows to its end.
    A client with fewer rows gets each of them once, followed by meaningless numbers.
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
    link = guess - lowest  # the earlier place whose last row was drawn, if there is one
    link = torch.where((link >= 0) & (link < place), link, place)
    for _ in range((batch - 1).bit_length()):
        replaced = replaced | replaced.gather(-1, link)
        link = link.gather(-1, link)
    return torch.where(replaced, lowest + place, guess)


def shuffle_rows(draws: Draws, cohort: Cohort, epochs: int) -> Int64[Tensor, "... epoch place"]:
    """Shuffle each client's row numbers in every epoch, clients one after another.

    Clients are padded to a multiple of four places, since draws come in fours; `_padded_offsets` returns
    where each begins. One sort serves all: by client first, by draw second, by place third.
    """
    device, max_count = cohort.digests.device, cohort.max_count
    blocks = (max_count + 3) // 4
    owner = torch.repeat_interleave(torch.arange(len(max_count)), blocks)
    within = (torch.arange(len(owner)) - (blocks.cumsum(0) - blocks)[owner]).to(device)
    owner = owner.to(device)
    epoch = torch.arange(epochs, device=device).unsqueeze(1)
    digests, count = (v[..., owner].unsqueeze(-2) for v in (cohort.digests, cohort.count))
    keyed = draws.map_keys(lambda key: key if key.shape[-1] == 1 else key[..., owner])
    words = keyed.blocks(digests, epoch, within)
    local = within.unsqueeze(-1) * 4 + torch.arange(4, device=device)
    # Padding sorts behind every row of its client.
    past = torch.where(local < count.unsqueeze(-1), 0, 2**32 - 1)
    bits = int(max_count.max()).bit_length() + 2
    group = owner.unsqueeze(-1) << 32
    if len(max_count).bit_length() + 32 + bits > 63:  # client, draw and place do not fit into one number
        order = (words | past | group).flatten(-2).argsort(dim=-1, stable=True)
        return local.flatten()[order]
    keys = words.bitwise_left_shift_(bits).bitwise_or_((past | group) << bits | local).flatten(-2)
    if device.type == "cpu":  # NumPy sorts integers several times faster.
        keys.numpy().sort()
    else:
        keys = keys.sort(-1).values
    return keys.bitwise_and_((1 << bits) - 1)


def _padded_offsets(max_count: Int64[Tensor, "client"]) -> Int64[Tensor, "client"]:
    padded = (max_count + 3) // 4 * 4
    return padded.cumsum(0) - padded


@dataclass(frozen=True, eq=False)
class _Timetable:
    """Passes split into batches: the epoch of each step, and its places among the client's rows."""

    epoch: Int64[Tensor, "step client 1"]
    local: Int64[Tensor, "step client batch"]
    weight: Float[Tensor, "step client batch"]
    active: tuple[int, ...]


def _split_passes(
    count: Int64[Tensor, "client"], max_count: Int64[Tensor, "client"], batch: int, epochs: int
) -> _Timetable:
    """Split passes into batches; a client with fewer batches finishes earlier."""
    device = count.device
    steps = epochs * ((max_count + batch - 1) // batch)
    last = int(steps.max())
    active = (steps > torch.arange(last).unsqueeze(1)).sum(1).tolist()
    step = torch.arange(last, device=device).view(-1, 1, 1)
    n = count.view(1, -1, 1)
    batches = ((n + batch - 1) // batch).clamp_min(1)  # per epoch
    local = step % batches * batch + torch.arange(batch, device=device)
    inside = (local < n) & (step < epochs * batches)
    size = inside.sum(-1, keepdim=True).clamp_min(1)
    # Padding repeats the client's first row.
    return _Timetable(
        (step // batches).clamp_max(epochs - 1),
        torch.where(inside, local, 0),
        inside.double() / size,
        tuple(active),
    )
