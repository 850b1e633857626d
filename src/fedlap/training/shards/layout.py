"""The division of clients into blocks, which are stacks, and of blocks into shards, one per worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.algorithms.server_state import Ids

MAX_BLOCK_CLIENTS = 4_096
MIN_BLOCKS = 32  # so that a federation with few clients can be shared by as many workers


@dataclass(frozen=True)
class ShardLayout:
    """Blocks of consecutive clients, and shards of consecutive blocks.

    Products of matrices are rounded differently in stacks of other sizes. Blocks depend on the number of
    clients alone, and every block computes by itself, so numbers do not depend on the number of workers.
    """

    blocks: tuple[range, ...]  # the clients of each block
    shards: tuple[range, ...]  # the blocks of each shard

    @staticmethod
    def of(rows: Int64[Tensor, "client"], workers: int) -> "ShardLayout":
        """Divide clients with these numbers of rows: at most one shard per worker, balanced by rows."""
        blocks = split_blocks(len(rows))
        sizes = torch.stack([rows[block.start : block.stop].sum() for block in blocks])
        return ShardLayout(tuple(blocks), tuple(split_evenly(sizes.tolist(), min(workers, len(blocks)))))

    @cached_property
    def clients(self) -> tuple[range, ...]:
        """The clients of each shard."""
        return tuple(
            range(self.blocks[shard.start].start, self.blocks[shard.stop - 1].stop) for shard in self.shards
        )

    def list_blocks(self, shard: int) -> tuple[range, ...]:
        """Return the clients of each block of a shard."""
        return self.blocks[self.shards[shard].start : self.shards[shard].stop]


def split_blocks(clients: int) -> list[range]:
    """Split clients into blocks of equal sizes."""
    size = min(MAX_BLOCK_CLIENTS, -(-clients // MIN_BLOCKS))
    return [range(begin, min(begin + size, clients)) for begin in range(0, clients, size)]


def split_evenly(sizes: Sequence[int], parts: int) -> list[range]:
    """Split consecutive items into non-empty parts whose sums of sizes are about equal."""
    ends = torch.tensor(sizes).cumsum(0)
    cuts = [0]
    for part in range(1, parts):
        wanted = int(ends[-1]) * part / parts
        nearest = int(torch.searchsorted(ends, wanted)) + 1
        before = int(ends[nearest - 2]) if nearest > 1 else 0
        if wanted - before < int(ends[min(nearest, len(sizes)) - 1]) - wanted:
            nearest -= 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(sizes) - (parts - part)))
    return [range(begin, end) for begin, end in pairwise([*cuts, len(sizes)])]


def find_slices(ids: Ids, ranges: Sequence[range]) -> list[slice]:
    """Return the slice of ascending ids that lies in each of several ranges."""
    starts = torch.searchsorted(ids, torch.tensor([part.start for part in ranges])).tolist()
    stops = torch.searchsorted(ids, torch.tensor([part.stop for part in ranges])).tolist()
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]
