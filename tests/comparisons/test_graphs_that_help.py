"""Data on which a graph helps: FedU with its default strength against local training and one global model."""

import pytest

import fedlap as fl
from fedlap.data import SOURCES


@pytest.mark.slow
@pytest.mark.parametrize(("data", "seeds"), [("radon", 10), ("colorado", 10)])
def test_the_known_graph_leads_and_the_shuffled_one_does_not(data, seeds):
    official = SOURCES[data].distribution
    if official is not None and official.find_state() == "to download":
        pytest.skip(f"genuine files of {data} are absent")
    comparison = fl.compare(
        ["fedu", "local", "global"], data, graph=["known", "shuffled"], seeds=range(seeds), evaluate_every=0
    )
    tests = comparison.tests
    assert set(tests["leader"]) == {"fedu (known)"}
    beaten = tests.loc[tests["verdict"].isin(["better", "this graph helps"]), "other"]
    assert set(beaten) == {"fedu (shuffled)", "local", "global"}
