"""Late models: up to μRηd = 1 they lead where current models lead; above it, they may not.

The losses are quadratic, so that the fixed point of a round is known from a linear system.
"""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.report.theory_text import describe_delays
from fedlap.theory import (
    DelayTheorem,
    LaplacianProblem,
    analyze_run,
    compute_contraction,
    summarize_analysis,
)
from late_models import (
    QuadraticPeers,
    draw_ages,
    draw_peers,
    fix_age,
    lose_messages,
)
from random_inputs import random_arrays, random_weights

CLOSE = 1e-12
COMPLETE = np.ones((8, 8)) - np.eye(8)
STAR = np.zeros((9, 9))
STAR[0, 1:] = STAR[1:, 0] = 1
WEIGHTED = random_weights(range(8), seed=3, density=0.5)
GRAPHS = pytest.mark.parametrize(
    "matrix", [COMPLETE, STAR, WEIGHTED], ids=["complete", "star", "random weights"]
)
BOTH = pytest.mark.parametrize("product", [0.4, 1.0])


def build_theorem(peers):
    return DelayTheorem(compute_contraction(*peers.curvature, peers.lr, peers.steps), peers.product)


def draw_start(peers):
    return 3 * np.random.default_rng(9).normal(size=peers.target.shape)


def measure(peers, rounds, choose_ages, **how):
    """Return the errors after each round, relative to the first."""
    errors = peers.measure_errors(peers.run(draw_start(peers), rounds, choose_ages, **how))
    return errors / errors[0]


def check_bound(errors, rate):
    """Check that errors are below rᵗ, and below `CLOSE` at the end; rounding errors count from then on."""
    rounds = np.arange(len(errors))
    assert (errors <= np.maximum(rate**rounds * (1 + 1e-9), CLOSE)).all()
    assert errors[-1] <= CLOSE


def measure_growth(errors, rounds):
    """Return the mean factor per round over the last rounds."""
    return (errors[-1] / errors[-1 - rounds]) ** (1 / rounds)


def test_rounds_without_delays_are_dfedu():
    arrays = random_arrays([7, 12, 5, 9], features=3, labels=1, real=True)
    federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
    matrix = random_weights(federation.clients, seed=1)
    seen = [np.hstack([x, np.ones((len(x), 1))]) for x, _ in arrays.values()]
    hessian = np.array([x.T @ x / len(x) + 0.1 * np.eye(4) for x in seen])
    target = np.array([x.T @ y[:, 0] / len(x) for x, (_, y) in zip(seen, arrays.values(), strict=True)])
    peers = QuadraticPeers(hessian, target, matrix, lr=0.05, steps=3, strength=0.4)
    start = draw_start(peers)
    path = peers.run(start, 400, fix_age(0))
    method = fl.DFedU(fl.Graph.from_matrix(matrix, federation.clients), strength=0.4, lr=0.05, local_steps=3)
    assert method.coupling.delay_product == pytest.approx(peers.product, rel=1e-14)
    for rounds in (1, 60):
        found = fl.fit(
            method, federation, fl.models.linear(l2=0.1), rounds=rounds, batch="all", dtype="float64",
            start=torch.from_numpy(start), evaluate_every=0,
        )  # fmt: skip
        assert np.abs(found.models.numpy() - path[rounds]).max() <= CLOSE
    assert peers.measure_errors(path)[-1] <= CLOSE


@GRAPHS
@BOTH
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_lost_messages_change_only_the_speed(matrix, product, share):
    """Each message is lost for ever with this probability; ages have no bound."""
    peers = draw_peers(matrix, product)
    assert peers.product == pytest.approx(product)
    check_bound(measure(peers, 350, lose_messages(share)), build_theorem(peers).compute_rate_at_losses(share))


@GRAPHS
@BOTH
@pytest.mark.parametrize("age", [1, 5])
def test_bounded_ages_change_only_the_speed(matrix, product, age):
    peers = draw_peers(matrix, product)
    rate = build_theorem(peers).compute_rate(age)
    assert rate <= build_theorem(peers).contraction ** (1 / (1 + age)) + 1e-12
    for choose_ages in (fix_age(age), draw_ages(age)):
        check_bound(measure(peers, 200 * (1 + age), choose_ages), rate)


@GRAPHS
def test_an_adversary_that_chooses_the_worst_model_does_not_beat_the_rate(matrix):
    peers = draw_peers(matrix, 1.0)

    def choose_worst(done, sent):
        """Choose, for each neighbour, the one of its last six models that is farthest from its limit."""
        latest = sent[-6:][::-1]
        return np.linalg.norm(latest - peers.train(peers.fixed_point), axis=2).argmax(0)

    check_bound(measure(peers, 1200, choose_worst), build_theorem(peers).compute_rate(5))


@GRAPHS
def test_ages_that_grow_without_bound_still_lead_to_the_fixed_point(matrix):
    peers = draw_peers(matrix, 1.0, steps=8)
    errors = measure(peers, 1500, lambda done, sent: int(done**0.5))
    assert errors[-1] <= CLOSE


def test_a_partition_and_dead_peers_only_cost_time():
    """Two halves do not hear each other for 100 rounds; later two neighbours do nothing for 100 rounds."""
    peers = draw_peers(WEIGHTED, 1.0)
    half = np.arange(8) < 4
    apart = half[:, None] != half
    awake = np.ones((450, 8), dtype=bool)
    awake[120:220, :2] = False
    errors = measure(
        peers, 450, lambda done, sent: np.where(apart & (5 <= done < 105), done - 4, 0), awake=awake
    )
    for last in (105, 220):  # the others come to rest before the fault ends, elsewhere
        assert errors[last] > 1e-4
        assert errors[last] == pytest.approx(errors[last - 10], rel=1e-2)
    assert errors[-1] <= CLOSE


@pytest.mark.parametrize("product", [0.4, 1.0, 1.3])
@pytest.mark.parametrize("age", [1, 3])
def test_the_rate_cannot_be_better(product, age):
    """All errors and all losses are equal; above 1 errors alternate in sign, which odd ages amplify."""
    peers = draw_peers(COMPLETE, product, curvature=(0.3, 0.3))
    start = peers.fixed_point + np.ones(3)
    errors = peers.measure_errors(peers.run(start, 300, fix_age(age)))
    rate = build_theorem(peers).compute_rate(age)
    assert measure_growth(errors, 100) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("product", [1.2, 1.5, 1.7])
def test_above_the_bound_models_that_are_one_round_old_diverge(product):
    peers = draw_peers(COMPLETE, product, curvature=(0.3, 0.3))
    assert peers.step * 8 < 2  # μRηρ: rounds without delays are stable
    assert measure(peers, 400, fix_age(0))[-1] <= CLOSE
    late = measure(peers, 400, fix_age(1))
    assert late[-1] > 1e10
    assert measure_growth(late, 100) == pytest.approx(build_theorem(peers).compute_rate(1), rel=1e-6)
    assert measure(peers, 400, lose_messages(0.5))[-1] <= 1e-6  # ages that differ do less harm


def test_between_one_and_the_bound_of_these_losses_late_models_converge():
    """The bound (1 + 1/γ)/2 is exact: on both sides of it, models are one round old."""
    bound = build_theorem(draw_peers(COMPLETE, 1.0, curvature=(0.5, 0.5))).largest_product
    assert 1.08 < bound < 1.1
    for product, holds in ((0.98 * bound, True), (1.02 * bound, False)):
        peers = draw_peers(COMPLETE, product, curvature=(0.5, 0.5))
        assert build_theorem(peers).holds is holds
        errors = measure(peers, 1500, fix_age(1))
        assert (errors[-1] <= CLOSE) if holds else (errors[-1] > 1e10)


def test_on_a_star_bounded_ages_can_be_chosen_so_that_training_diverges():
    """The centre alone is above the bound: it hears of each sign in turn, the others for four rounds each."""
    product, most = 1.6, 8

    def choose_ages(done, sent):
        wanted = np.full(9, 1 if done // 4 % 2 == 0 else -1)
        wanted[0] = 1 if done % 2 else -1
        latest = (sent[-(most + 1) :] - peers.fixed_point)[::-1, :, 0]
        return (wanted[:, None] * latest[:, None]).argmax(0)

    for product, diverges in ((1.6, True), (1.0, False)):
        peers = draw_peers(STAR, product, curvature=(0.03, 0.03))
        assert peers.step * 9 < 2
        assert measure(peers, 3500, fix_age(0))[-1] <= CLOSE
        errors = measure(peers, 1000, choose_ages)
        rate = build_theorem(peers).compute_rate(most)
        assert (errors <= 1.001 * rate ** np.arange(1001)).all()
        assert (errors[-1] > 1e10) == diverges


@pytest.mark.parametrize("contraction", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("product", [0.0, 0.3, 1.0, 1.2])
def test_rates_solve_their_equations(contraction, product):
    theorem = DelayTheorem(contraction, product)
    q = contraction
    assert theorem.compute_rate(0) == pytest.approx(theorem.gain)
    assert theorem.compute_rate_at_losses(0) == pytest.approx(theorem.gain)
    rates = [theorem.compute_rate(age) for age in (0, 1, 5, 50)]
    for age, r in zip((0, 1, 5, 50), rates, strict=True):
        assert r ** (age + 1) == pytest.approx(q * abs(1 - product) * r**age + q * product, abs=1e-9)
    if theorem.holds:
        assert rates == sorted(rates)
        assert rates[-1] < 1
        for share in (0.3, 0.9):
            assert theorem.gain - 1e-12 <= theorem.compute_rate_at_losses(share) < 1
    assert theorem.holds == (theorem.product < theorem.largest_product)
    with pytest.raises(fl.InputError, match="expected a number from 0 to 1"):
        theorem.compute_rate_at_losses(1.5)


def test_local_steps_contract_as_far_as_the_curvature_says():
    for lr in (0.1, 0.45, 0.5, 0.55):  # 2/(α + β) = 0.44 and 2/β = 0.5
        peers = draw_peers(COMPLETE, 0.5, lr=lr, curvature=(0.5, 4.0))
        q = compute_contraction(0.5, 4.0, lr, peers.steps)
        assert np.linalg.norm(peers.local_map[0], 2, axis=(1, 2)).max() == pytest.approx(q)
        assert (q < 1) == (lr < 0.5)
        if lr < 0.44:
            assert q == pytest.approx((1 - 0.5 * lr) ** 3)


def analyze(batch="all", l2=0.2, method=fl.DFedU, **how):
    arrays = random_arrays([6, 5, 9], features=2, labels=1, real=True)
    federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
    method = method(fl.Graph.complete(federation.clients), local_steps=3, **how)
    problem = LaplacianProblem.of(method, federation, fl.models.linear(l2=l2), batch=batch)
    return analyze_run(problem, problem.initial_models(0), {})


@pytest.mark.parametrize(
    ("how", "beginning"),
    [
        ({"strength": 1.0}, "Late models: μRηd = 0.6 with the largest degree d = 2, below 1.0"),
        (
            {"strength": 2.0},
            "Late models: strength = 2 is too large for late models: lr·R·strength·degree = ",
        ),
        ({"strength": 0.01, "lr": 3.0}, "Late models: local steps do not contract, since μ ≥ 2/β; lower lr."),
        ({"strength": 1.0, "mixing": "implicit"}, "Late models: mixing = implicit is not covered"),
    ],
)
def test_the_theory_of_a_run_says_whether_late_models_are_covered(how, beginning):
    found = analyze(**{"lr": 0.1, **how})
    assert describe_delays(found)[0].startswith(beginning)
    facts = summarize_analysis(found)["delays"]
    assert facts["largest_degree"] == 2
    assert facts["tolerated"] == found.problem.algorithm.coupling.tolerates_delays
    assert facts["holds"] == ("μRηd" in beginning)
    if facts["holds"]:
        q = compute_contraction(found.curvature.alpha, found.curvature.beta, 0.1, 3)
        assert facts["contraction"] == facts["rates"]["0"] == q
        assert "lead to the fixed point" in describe_delays(found)[0]
        assert f"at least {1 - q:.2%} without delays" in describe_delays(found)[1]
        assert "lead to a neighbourhood of the fixed point" in describe_delays(analyze(2, **how))[0]


def test_a_method_with_a_server_has_no_late_models():
    found = analyze(method=fl.FedU, strength=1.0)
    assert describe_delays(found) == []
    assert summarize_analysis(found)["delays"] is None
