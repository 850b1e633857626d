"""Small plans of runs without a server, with their rows."""

import fedlap as fl
from fedlap.deploy.plan import Plan
from random_inputs import random_arrays

COUNTS = (9, 14, 6, 11)


def build_peer_plan(real=False, peers=None, **changes):
    """Return a plan of four peers on a ring; staleness 0 unless `peers` has settings."""
    labels = {"task": "regression"} if real else {"task": "classification", "labels": ["x", "y", "z"]}
    data = {"label": "y", "features": ["u", "v", "w", "t"], "scale": "pooled", **labels}
    values = {
        "name": "test", "clients": list("abcd"), "rounds": 6, "batch": 4, "evaluate_every": 2, "seed": 5,
        "data": data, "graph": {"name": "ring"}, "algorithm": {"name": "dfedu"},
    }  # fmt: skip
    values |= changes
    addresses = {name: f"127.0.0.1:{7001 + place}" for place, name in enumerate(values["clients"])}
    return Plan.of({**values, "peers": {"addresses": addresses, **(peers or {"staleness": 0})}})


def build_peer_rows(real=False, counts=COUNTS):
    """Return the rows of the peers a, b, c, …, unscaled, as a simulation has them."""
    arrays = random_arrays(counts, labels=1 if real else 3, real=real)
    labels = None if real else ["x", "y", "z"]
    return fl.Federation.from_arrays(arrays, test_share=0.25, seed=5, labels=labels, scale="none")
