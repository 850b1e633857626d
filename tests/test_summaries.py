"""Every public object has a repr of one short line without values of rows or targets."""

import html
import re

import numpy as np
import pandas
import pytest
import torch

import fedlap as fl
from fedlap.data.table import table_from_arrays
from fedlap.data.target_scale import TargetScale
from fedlap.personal import Personals
from fedlap.summaries import LONGEST_SUMMARY
from fedlap.training.jobs import Job

FEATURE, TARGET, LABEL = 87654.3215, 98765.4325, "marked-label"  # values of one row
MARKS = (str(FEATURE)[:5], str(TARGET)[:5], "8.76", "9.87", LABEL)
CLIENTS = [f"hospital number {number:02d} of a long list of hospitals <b>" for number in range(30)]


def build_frame(task):
    generator = np.random.default_rng(0)
    frame = pandas.DataFrame(generator.normal(size=(300, 3)), columns=["age", "height", "dose"])
    frame["hospital"] = np.repeat(CLIENTS, 10)
    frame["outcome"] = generator.normal(size=300) if task == "regression" else ["a", "b"] * 150
    frame.loc[7, "dose"] = FEATURE
    frame.loc[7, "outcome"] = TARGET if task == "regression" else LABEL
    return frame


@pytest.fixture(scope="module", params=["classification", "regression"])
def federation(request):
    return fl.Federation.from_dataframe(build_frame(request.param), "hospital", "outcome", test_share=0.1)


def list_objects(federation):
    graph = fl.Graph.ring(federation.clients)
    result = fl.fit(fl.FedU(graph, strength=0.01, lr=0.001), federation, fl.models.linear(), rounds=2)
    grid = {"lr": [0.001, 0.002]}
    tuned = fl.tune(fl.FedU(graph), federation, fl.models.linear(), grid, rounds=1, folds=2)
    client = federation.clients[0]
    x = federation.train.client(0)[0]
    return {
        "federation": federation,
        "rows": federation.train,
        "scale": federation.scale,
        "target scale": federation.target_scale or TargetScale.of(fl.data.load("radon").train),
        "roster": federation.roster,
        "table": table_from_arrays({"a": (np.full((4, 2), FEATURE), np.zeros(4, int))}, None, None),
        "places": fl.data.load("radon").places,
        "graph": graph,
        "dense graph": fl.Graph.from_matrix(np.ones((5, 5)) - np.eye(5)),
        "weights": graph.weights,
        "result": result,
        "progress": result.progress,
        "origin": result.progress.origin,
        "score": result.scores[-1],
        "bound method": result.algorithm,
        "objective": result.objective,
        "personals": result.personals,
        "metadata": result.personals.metadata,
        "personal": result.personal(client),
        "predictions": result.personals.predict([client] * len(x), x),
        "tuning": tuned,
        "candidate": tuned.best,
        "job": Job(fl.FedU(graph), federation, fl.models.linear()),
        "early stopping": fl.EarlyStopping(),
        "synthetic": fl.data.synthetic(clients=3),
    }


def check_summary(text):
    assert len(text) <= LONGEST_SUMMARY
    assert "\n" not in text
    assert not [mark for mark in MARKS if mark in text]


def test_reprs_are_short_and_show_no_values(federation):
    for thing in list_objects(federation).values():
        check_summary(repr(thing))
        assert repr(thing).startswith(f"{type(thing).__name__}(")


@pytest.mark.parametrize("name", fl.ALGORITHMS)
def test_methods_show_the_size_of_their_graph(name):
    make = fl.ALGORITHMS[name]
    graph = fl.Graph.complete(CLIENTS)
    has_graph = "graph" in make.__dataclass_fields__
    method = make(graph) if has_graph else make()
    check_summary(repr(method))
    assert ("Graph(30 clients, 435 edges)" in repr(method)) == has_graph


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (fl.models.linear(), "Dense("),
        (fl.models.mlp((100, 20)), "Dense(hidden=(100, 20)"),
        (fl.models.cnn(), "Convolutional("),
        (fl.models.module(torch.nn.Sequential(torch.nn.Linear(3, 2))), "WrappedModule(net=Sequential"),
    ],
)
def test_models_are_one_line(model, text):
    check_summary(repr(model))
    assert repr(model).startswith(text)


def test_the_facts_are_right():
    federation = fl.Federation.from_arrays(
        {name: (np.zeros((8, 2)), np.arange(8) % 2) for name in "abcd"}, test_share=0.25
    )
    assert repr(federation) == (
        "Federation(4 clients ('a', 'b', 'c', …), 24 training and 8 test rows, features of shape (2,), "
        "2 labels, scale 'pooled')"
    )
    assert repr(fl.Graph.path("abcd")) == "Graph(4 clients, 3 edges)"
    assert repr(fl.Graph.star("abcd", server=True)) == "Graph(4 clients, a server, 4 edges)"
    assert repr(fl.FedU(fl.Graph.path("ab"), lr=0.5)) == "FedU(graph=Graph(2 clients, 1 edge), lr=0.5)"
    result = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=2)
    assert re.fullmatch(r"Result\(Local, 4 clients, 6 parameters, round 2, accuracy .*\)", repr(result))
    score = result.scores[-1]
    assert repr(score).startswith(f"Score(round 2, accuracy {score.accuracy:.4g}, accuracy_worst")


def test_notebooks_get_tables_with_escaped_names(federation):
    graph = fl.Graph.path(federation.clients)
    result = fl.fit(fl.Local(lr=0.001), federation, fl.models.linear(), rounds=1)
    for thing in (federation, graph, result):
        text = thing._repr_html_()
        assert text.startswith("<table>")
        assert "<b>" not in text
        for name, value in re.findall(r"<td[^>]*>(.*?)</td><td[^>]*>(.*?)</td>", text):
            assert not re.search(rf"\b{name.rstrip('s')}s?\b", html.unescape(value)), name
        assert not [mark for mark in MARKS if mark in text]
    assert html.escape("hospital number 00 …") in federation._repr_html_()


def test_stored_models_show_no_values(federation, tmp_path):
    result = fl.fit(fl.Local(lr=0.001), federation, fl.models.linear(), rounds=1)
    result.personals.save(tmp_path)
    check_summary(repr(Personals.load(tmp_path)))
