"""Comparison of two results of training, bit for bit."""

import torch

from fedlap.training.state import list_tensors


def same(one, other):
    """All but the times of two results."""
    for a, b in ((one.models, other.models), (one.server, other.server), (one.private, other.private)):
        assert [t.shape for t in list_tensors(a)] == [t.shape for t in list_tensors(b)]
        assert all(torch.equal(x, y) for x, y in zip(list_tensors(a), list_tensors(b), strict=True))
    assert one.progress.round == other.progress.round
    assert one.progress.sent == other.progress.sent
    untimed = [[{**score.as_dict(), "seconds": 0} for score in result.scores] for result in (one, other)]
    assert untimed[0] == untimed[1]
