"""Jobs of every method that can be trained as one stack."""

import fedlap as fl
from fedlap.training.jobs import Job
from laws import METHODS

STACKABLE = [name for name in METHODS if METHODS[name].make(fl.Graph.complete("abcdef")).traits.is_stackable]
FLOATS = ("lr", "strength", "proximal", "regularisation", "inner_lr", "server_mix", "server_lr", "mixture",
          "mixture_lr", "smoothing", "alpha", "beta", "adapt_lr", "aggregation", "drop",
          "least_work")  # fmt: skip


def scale_settings(algorithm, factor):
    """The same method with every real-valued setting scaled."""
    for name in FLOATS:
        if isinstance(getattr(algorithm, name, None), float):
            algorithm = replace_setting(algorithm, name, getattr(algorithm, name) * factor)
    return algorithm


def replace_setting(algorithm, name, value):
    copied = object.__new__(type(algorithm))
    copied.__dict__.update(vars(algorithm))
    copied.__dict__[name] = value
    return copied


def make_jobs(name, work, federation, graph):
    """Three seeds and settings, on two federations of which one has other rows and one client less."""
    method = METHODS[name]
    arrays = {c: federation.train.client(k) for k, c in enumerate(federation.clients[:-1])}
    other = fl.Federation.from_arrays(
        {c: (x[1:], y[1:]) for c, (x, y) in arrays.items()}, labels=3, scale="none"
    )
    smaller = fl.Graph.path(other.clients)
    jobs = [
        Job(method.make(graph, **work), federation, method.model, 5),
        Job(scale_settings(method.make(graph, **work), 0.9), federation, method.model, 6),
        Job(scale_settings(method.make(smaller, **work), 0.5), other, method.model, 5),
    ]
    return jobs[:2] if name == "global" else jobs  # the steps of one that owns all rows go with its clients
