"""Independent functions that a GPU runs concurrently when a round is captured."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")
MAX_BRANCHES = 8  # parallel streams of a captured round


def is_capturing() -> bool:
    """Return whether operations are being captured into a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def run_in_branches(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Run independent functions; during a capture they become branches that a GPU runs concurrently."""
    if len(functions) == 1 or not is_capturing():
        return [function() for function in functions]
    here = torch.cuda.current_stream()
    branches = [torch.cuda.Stream() for _ in range(min(MAX_BRANCHES, len(functions)))]
    results = []
    for branch in branches:
        branch.wait_stream(here)
    for position, function in enumerate(functions):
        with torch.cuda.stream(branches[position % len(branches)]):
            results.append(function())
    for branch in branches:
        here.wait_stream(branch)
    return results
