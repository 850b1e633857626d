"""The strength "auto": a number that cross-validation on training rows chooses before training."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
from example_scores import BLANK
from fedlap.algorithms.coupling import check_strength
from fedlap.errors import InputError
from fedlap.training import strength_choice
from fedlap.training.schedule import Schedule
from fedlap.training.strength_choice import (
    choose_strength,
    find_vertex,
    has_auto_strength,
    list_candidates,
    refine_strength,
)
from fedlap.training.tuning import Candidate, TuningResult

LINEAR = fl.models.linear()
SHORT = Schedule(rounds=6, evaluate_every=1)


def ring(smoothness=10.0, seed=0, **settings):
    """Clients around a ring whose true models are alike, or not, and that ring."""
    problem = fl.data.synthetic(clients=12, rows=20, smoothness=smoothness, seed=seed, **settings)
    return problem.federation, problem.graph


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_choice_is_refined_from_a_tuning_over_the_candidates(task):
    federation, graph = ring(task=task)
    vary = {"strength": list_candidates(graph)}
    tuned = fl.tune(fl.FedU(graph), federation, LINEAR, vary, rounds=6, seed=3)
    chosen = choose_strength(fl.FedU(graph, strength="auto"), federation, LINEAR, SHORT, 3)
    assert chosen == fl.FedU(graph, strength=refine_strength(tuned))


@pytest.mark.parametrize("best", [0.4, 1.0, 2.7])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_vertex_of_a_parabola_is_exact(best, sign):
    strengths = [0.3, 1.0, 3.0]
    scores = [sign * (5 - (math.log(strength / best)) ** 2) for strength in strengths]
    assert find_vertex(strengths, scores) == pytest.approx(best)


def test_the_vertex_of_equal_scores():
    assert find_vertex([0.3, 1.0, 3.0], [2.0, 2.0, 2.0]) == pytest.approx(1)
    assert find_vertex([0.3, 1.0, 3.0], [2.0, 2.0, 1.9]) == pytest.approx(0.3**0.5)  # symmetric about it


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 2.0, 3.0], 0.0),  # no pull
        ([3.0, 1.0, 3.0], 0.8),  # a neighbour is 0, which has no logarithm
        ([3.0, 2.0, 1.0], 8.0),  # the largest candidate
    ],
)
def test_a_candidate_at_the_end_is_only_scaled_to_all_rows(losses, expected):
    strengths = [0.0, 1.0, 10.0]
    tried = [
        Candidate({"strength": strength}, fl.Local(), [replace(BLANK, accuracy=None, loss=loss)])
        for strength, loss in zip(strengths, losses, strict=True)
    ]
    assert refine_strength(TuningResult(tried, [])) == pytest.approx(expected)


@pytest.mark.parametrize(("smoothness", "alike"), [(10.0, True), (0.0, False)])
def test_neighbours_that_are_alike_get_a_strong_pull_and_strangers_a_weak_one(smoothness, alike):
    federation, graph = ring(smoothness)
    method = fl.FedU(graph, strength="auto", lr=0.1)
    pull = choose_strength(method, federation, LINEAR, Schedule(rounds=25)).strength * graph.rho
    assert (pull >= 0.9) if alike else (pull <= 0.11)


def test_test_rows_have_no_say():
    federation, graph = ring()
    poisoned = replace(federation, test=federation.train.select(torch.arange(len(federation.train.row)) < 0))
    method = fl.FedU(graph, strength="auto")
    assert choose_strength(method, poisoned, LINEAR, SHORT) == choose_strength(
        method, federation, LINEAR, SHORT
    )


@pytest.mark.parametrize(
    "make", [fl.FedU, fl.DFedU, fl.FedULearned, fl.NetworkLasso, fl.Mocha], ids=lambda make: make.__name__
)
def test_every_method_with_a_strength_and_a_graph_gets_a_number(make):
    federation, graph = ring()
    method = make(graph, strength="auto")
    assert has_auto_strength(method)
    chosen = choose_strength(method, federation, LINEAR, SHORT)
    assert chosen == replace(method, strength=float(chosen.strength))


def test_methods_with_a_number_or_without_a_graph_stay_unchanged():
    federation, graph = ring()
    for method in (fl.FedU(graph, strength=0.2), fl.NetworkLasso(graph), fl.Local(), fl.L2GD()):
        assert choose_strength(method, federation, LINEAR, SHORT) is method


def test_the_default_follows_from_rows_and_stability():
    federation, graph = ring()
    rows, rho = float(federation.train.count.double().mean()), graph.rho
    small, large = (fl.FedU(graph, lr=lr) for lr in (1e-4, 0.1))
    by_rows = choose_strength(small, federation, LINEAR, SHORT)
    assert by_rows.strength == pytest.approx(40 / (rows * rho), rel=0.05)  # two digits
    by_stability = choose_strength(large, federation, LINEAR, SHORT)
    assert by_stability.strength == pytest.approx(1 / (0.1 * 5 * rho), rel=0.05)
    assert fl.fit(small, federation, LINEAR, rounds=1).algorithm.strength == by_rows.strength
    assert choose_strength(small, federation, LINEAR, SHORT, earlier=large_strength(graph)).strength == 0.7


def large_strength(graph):
    return fl.FedU(graph, strength=0.7, allow_unstable=True)


def test_without_edges_the_default_stays_open():
    federation, _ = ring()
    method = fl.FedU(fl.Graph.empty(federation.clients))
    assert choose_strength(method, federation, LINEAR, SHORT) is method


def test_candidates_that_are_unstable_are_left_out(monkeypatch):
    federation, graph = ring()
    monkeypatch.setattr(strength_choice, "PULLS", (1.0, 1e6))
    assert choose_strength(
        fl.FedU(graph, strength="auto"), federation, LINEAR, SHORT
    ).strength == pytest.approx(0.8 / graph.rho, rel=0.05)


def test_a_graph_without_edges_needs_no_choice():
    federation, _ = ring()
    graph = fl.Graph.from_matrix(np.zeros((12, 12)), federation.clients)
    assert choose_strength(fl.FedU(graph, strength="auto"), federation, LINEAR, SHORT).strength == 0


def test_fit_trains_with_the_number_and_resumes_with_it(monkeypatch):
    federation, graph = ring()
    auto = fl.FedU(graph, strength="auto")
    half = fl.fit(auto, federation, LINEAR, rounds=6)
    number = choose_strength(auto, federation, LINEAR, SHORT).strength
    assert half.algorithm.strength == number
    whole = fl.fit(fl.FedU(graph, strength=number), federation, LINEAR, rounds=12)
    # A resumed run repeats no cross-validation: its strength is known.
    monkeypatch.setattr(strength_choice, "cross_validate", None)
    resumed = fl.fit(auto, federation, LINEAR, rounds=12, resume=half)
    assert torch.equal(resumed.models, whole.models)


def test_an_unresolved_strength_is_refused_by_its_users(graph):
    with pytest.raises(InputError, match=r"strength = 'auto' is chosen from training rows; train the method"):
        _ = fl.FedU(graph, strength="auto").coupling.eta
    with pytest.raises(InputError, match=r"strength = 'much'; use a number, or 'auto'"):
        check_strength("fedu", "much")


def test_a_comparison_of_own_methods_chooses_the_strength_of_each_seed():
    federation, graph = ring()
    methods = {"chosen": fl.FedU(graph, strength="auto"), "local": fl.Local()}
    result = fl.compare(methods, data=federation, rounds=2, seeds=[0, 1])
    for run in result.runs["chosen"]:
        expected = choose_strength(
            fl.FedU(graph, strength="auto"), federation, LINEAR, Schedule(rounds=2), run.experiment.seed
        )
        assert run.experiment.algorithm["strength"] == expected.strength
