"""Draw J by round below, at and above the limit of stability, the growth per round, and sampling."""

from typing import Any

import numpy as np
import torch
from figure_files import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, Facts, Tables, run_script
from matplotlib.figure import Figure

import fedlap as fl
from fedlap.algorithms.coupling import Mixing
from fedlap.theory import LaplacianProblem, find_optimum

NAME = "stability-limits"
PAGE = "explanation/stability.md"
CLIENTS, FEATURES, LR, STEPS, L2 = 10, 4, 0.02, 5, 0.05
ROUNDS, SAMPLED_ROUNDS, EVERY = 40, 100, 5
LIMITS = (0.9, 1.0, 1.1, 1.2)  # μRηρ/2
PRODUCTS = np.linspace(0, 4, 81).round(6).tolist()
IMPLICIT = 10.0  # μRηρ/2
SAMPLED = (0.5, 0.9, 1.1)  # μRηd(1 − S/N)
COLOURS = (BLUE, GREEN, ORANGE, PURPLE)


def load_clients() -> tuple[fl.Federation, fl.Graph]:
    """Return clients with linear models on a ring."""
    data = fl.data.synthetic(
        "regression", clients=CLIENTS, features=FEATURES, rows=30, test_rows=0, size=2.0, seed=0
    )
    return data.federation, data.graph


def build_method(graph: fl.Graph, limit: float, mixing: Mixing = "explicit") -> fl.FedU:
    """Return FedU whose μRηρ is this multiple of 2."""
    strength = limit * 2 / (LR * STEPS * graph.rho)
    return fl.FedU(graph, strength=strength, lr=LR, local_steps=STEPS, mixing=mixing, allow_unstable=True)


def measure_gap(limit: float, mixing: Mixing = "explicit", rounds: int = ROUNDS) -> list[float]:
    """Return J − J* with full gradients after every round."""
    federation, graph = load_clients()
    method, model = build_method(graph, limit, mixing), fl.models.linear(l2=L2)
    result = fl.fit(
        method, federation, model, rounds=rounds, batch="all", evaluate_every=1, score_training="always",
        dtype="float64",
    )  # fmt: skip
    best = find_optimum(LaplacianProblem.of(method, federation, model, batch="all")).value
    gaps = np.array([score.objective for score in result.scores], dtype=float) - best
    return [float(f"{gap:.6g}") for gap in gaps.tolist()]


def compute_growth() -> dict[str, list[float]]:
    """Return the spectral radius by μRηρ of mixing alone, a whole round, and one with implicit mixing."""
    federation, graph = load_clients()
    problem = LaplacianProblem.of(build_method(graph, 0.5), federation, fl.models.linear(l2=L2), batch="all")
    size, width = problem.size, problem.model.size
    start = torch.zeros(size, width, dtype=torch.float64)
    columns = [
        problem.loss_hessian_product(start, unit.view(size, width)).flatten().numpy()
        for unit in torch.eye(size * width, dtype=torch.float64)
    ]
    steps = np.linalg.matrix_power(np.eye(size * width) - LR * np.stack(columns, 1), STEPS)
    eye = np.eye(size)
    laplacian = graph.apply_laplacian(torch.from_numpy(eye)).numpy() / graph.rho
    growth: dict[str, list[float]] = {"mixing alone": [], "a round of FedU": [], "implicit mixing": []}
    for product in PRODUCTS:
        explicit, implicit = eye - product * laplacian, np.linalg.inv(eye + product * laplacian)
        growth["mixing alone"].append(compute_radius(explicit))
        growth["a round of FedU"].append(compute_radius(np.kron(explicit, np.eye(width)) @ steps))
        growth["implicit mixing"].append(compute_radius(np.kron(implicit, np.eye(width)) @ steps))
    return {name: [round(value, 6) for value in values] for name, values in growth.items()}


def compute_radius(matrix: np.ndarray) -> float:
    """Return the largest absolute value of an eigenvalue."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def measure_sampled(product: float, rounds: int = SAMPLED_ROUNDS) -> list[float]:
    """Return the training loss of FedU on digits with a tenth of the clients per round."""
    federation = fl.data.load("digits", seed=0)
    graph, share = fl.Graph.complete(federation.clients), 0.1
    strength = product / (0.03 * 5 * graph.largest_degree * (1 - share))
    method: Any = fl.FedU(graph, strength=strength, lr=0.03, local_steps=5, allow_unstable=True)
    result = fl.fit(
        method, federation, fl.models.linear(), rounds=rounds, sample=share, evaluate_every=EVERY,
        score_training="always",
    )  # fmt: skip
    return np.array([score.train_loss for score in result.scores], dtype=float).round(4).tolist()


def compute() -> Facts:
    """Return the curves of all panels."""
    return {
        "gap": {str(limit): measure_gap(limit) for limit in LIMITS},
        "implicit": measure_gap(IMPLICIT, "implicit"),
        "growth": compute_growth(),
        "sampled": {str(product): measure_sampled(product) for product in SAMPLED},
    }


def draw(facts: Facts) -> Figure:
    """Draw the three panels."""
    figure = Figure((9.2, 3.1))
    left, middle, right = figure.subplots(1, 3)
    for limit, colour in zip(LIMITS, COLOURS, strict=True):
        values = facts["gap"][str(limit)]
        left.plot(range(1, len(values) + 1), values, color=colour, label=f"{limit:g} × limit")
    values = facts["implicit"]
    left.plot(
        range(1, len(values) + 1), values, color=GREY, linestyle="--", label=f"{IMPLICIT:g} × limit, implicit"
    )
    left.set(yscale="log", title="J − J*", xlabel="round", ylim=(3e-3, 1e11))
    left.legend(fontsize=7.5)
    styles = {"mixing alone": INK, "a round of FedU": BLUE, "implicit mixing": GREY}
    for name, colour in styles.items():
        middle.plot(
            PRODUCTS, facts["growth"][name], color=colour, label=name,
            linestyle="--" if name == "implicit mixing" else "-",
        )  # fmt: skip
    middle.axhline(1, color=FAINT, linewidth=1.0, zorder=0)
    middle.axvline(2, color=FAINT, linewidth=1.0, zorder=0)
    middle.set(title="growth per round", xlabel="μRηρ", ylim=(0.6, 2.0))
    middle.legend(fontsize=7.5)
    for product, colour in zip(SAMPLED, COLOURS, strict=False):
        values = facts["sampled"][str(product)]
        rounds = [EVERY * (place + 1) for place in range(len(values))]
        right.plot(rounds, values, color=colour, label=f"μRηd(1 − S/N) = {product:g}")
    right.set(title="training loss, S = 0.1 N", xlabel="round", ylim=(0, None))
    right.legend(fontsize=7.5)
    figure.subplots_adjust(wspace=0.25)
    return figure


def find_limit(facts: Facts) -> float:
    """Return the μRηρ at which a round of FedU begins to diverge, by interpolation."""
    growth = np.array(facts["growth"]["a round of FedU"])
    above = int(np.argmax(growth > 1))
    return float(np.interp(1, growth[above - 1 : above + 1], PRODUCTS[above - 1 : above + 1]))


def tables(facts: Facts) -> Tables:
    """Return the tables of the page."""
    rows = [
        [
            f"{limit:g} × limit",
            f"{2 * limit:g}",
            *(f"{facts['gap'][str(limit)][round - 1]:.3g}" for round in (1, 10, ROUNDS)),
        ]
        for limit in LIMITS
    ]
    rows.append([
        f"{IMPLICIT:g} × limit, implicit", f"{2 * IMPLICIT:g}",
        *(f"{facts['implicit'][round - 1]:.3g}" for round in (1, 10, ROUNDS)),
    ])  # fmt: skip
    headers = ["strength", "μRηρ", *(f"J − J*, round {round}" for round in (1, 10, ROUNDS))]
    return {(PAGE, "stability limits"): (headers, rows)}


if __name__ == "__main__":
    run_script(NAME, compute, draw, tables)
