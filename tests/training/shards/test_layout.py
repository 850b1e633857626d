"""Blocks depend on the number of clients alone; shards are balanced by rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlap.training.shards.layout import MAX_BLOCK_CLIENTS, ShardLayout, find_slices


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 40), st.integers(0, 5))
def test_every_client_is_in_one_block_and_every_block_in_one_shard(clients, workers, seed):
    rows = torch.randint(1, 50, (clients,), generator=torch.Generator().manual_seed(seed))
    layout, single = ShardLayout.of(rows, workers), ShardLayout.of(rows, 1)
    assert layout.blocks == single.blocks
    assert [k for block in layout.blocks for k in block] == list(range(clients))
    assert [b for shard in layout.shards for b in shard] == list(range(len(layout.blocks)))
    assert max(map(len, layout.blocks)) <= MAX_BLOCK_CLIENTS
    assert min(map(len, layout.shards)) >= 1
    assert len(layout.shards) == min(workers, len(layout.blocks))


def test_shards_have_about_equally_many_rows():
    rows = torch.cat([torch.full((500,), 20), torch.full((1500,), 5)])
    layout = ShardLayout.of(rows, 4)
    sizes = [int(rows[clients.start : clients.stop].sum()) for clients in layout.clients]
    largest_block = max(int(rows[block.start : block.stop].sum()) for block in layout.blocks)
    assert max(sizes) - min(sizes) <= 2 * largest_block


@pytest.mark.parametrize("ids", [[], [0], [3, 4, 9], list(range(10))])
def test_slices_of_ascending_ids(ids):
    ranges = [range(4), range(4, 9), range(9, 10)]
    parts = find_slices(torch.tensor(ids, dtype=torch.int64), ranges)
    assert [ids[part] for part in parts] == [[k for k in ids if k in part] for part in ranges]
