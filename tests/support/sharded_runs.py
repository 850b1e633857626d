"""Runs of every method, to compare engines."""

import fedlap as fl
from laws import METHODS


def train(name, work, sample, federation, graph, **schedule):
    method = METHODS[name]
    usual = {"rounds": 20, "batch": 4, "seed": 5, "dtype": "float64", "evaluate_every": 10}
    settings = {**usual, "score_training": "always", "sample": sample if method.sampled else 1.0, **schedule}
    return fl.fit(method.make(graph, **work), federation, method.model, **settings)


def list_scores(result):
    """Return all values of all scores, except the seconds."""
    return [
        {key: value for key, value in score.as_dict().items() if key != "seconds" and value is not None}
        for score in result.scores
    ]
