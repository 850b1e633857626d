"""Marks of tests that start Ray; they run one after another, and are counted where Ray is absent."""

from importlib.util import find_spec

import pytest

from fedlap.training.shards.cluster import set_variables

set_variables(None)  # before Ray is imported
NEEDS_RAY = "needs the extra fedlap[ray]"
RAY_MARKS = [
    pytest.mark.deploy,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(find_spec("ray") is None, reason=NEEDS_RAY),
    # Ray leaves processes and sockets to its own shutdown, and warns of its future.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
