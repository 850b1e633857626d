"""Coverage of 95 % intervals of coefficients, through `compute_coefficients`.

`python tests/personal/test_coverage.py` prints the table of docs/personal-models.md.
"""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.models import Model
from fedlap.personal.coefficients import compute_coefficients

# Graph, clients, fewest and most rows, and t: chosen so that differences are about as large as the noise.
CASES = {
    "ring, 40 clients, 4 to 24 rows": ("ring", 40, 4, 25, (0.3, 0.05)),
    "ring, 40 clients, 2 to 5 rows": ("ring", 40, 2, 6, (0.3, 0.05)),
    "4 neighbours, 40 clients, 4 to 24 rows": ("chords", 40, 4, 25, (0.3, 0.1)),
    "4 neighbours, 80 clients, 2 to 9 rows": ("chords", 80, 2, 10, (0.5, 0.2)),
    "4 neighbours, 20 clients, 3 to 7 rows": ("chords", 20, 3, 8, (0.5, 0.2)),
    "complete, 40 clients, 4 to 24 rows": ("complete", 40, 4, 25, (12.0, 4.0)),
    "ring, 5 clients, 8 to 19 rows": ("ring", 5, 8, 20, (0.3, 0.1)),
    "true models are equal": ("chords", 40, 4, 25, (0.0, 0.0)),
}
FACTORS = (0.2, 1.0, 5.0, 25.0)  # times σ²/(n t)


def build_graph(kind, clients):
    names = [f"c{k}" for k in range(clients)]
    if kind == "complete":
        return fl.Graph.complete(names)
    weights = np.zeros((clients, clients))
    for k in range(clients):
        for step in (1, 7) if kind == "chords" else (1,):
            weights[k, (k + step) % clients] = weights[(k + step) % clients, k] = 1
    return fl.Graph.from_matrix(weights, names)


def measure_coverage(case, factor, repeats, seed=0):
    """Return the share of true coefficients within 1.96 standard errors of the minimiser of J."""
    kind, clients, fewest, most, t = CASES[case]
    rng = np.random.default_rng(seed)
    graph = build_graph(kind, clients)
    weights = graph.weights.matrix().toarray()
    laplacian = np.diag(weights.sum(1)) - weights
    value, vector = np.linalg.eigh(laplacian)
    root = vector[:, 1:] / np.sqrt(value[1:])
    count = rng.integers(fewest, most, clients)
    strength = float(factor / (count.mean() * (np.mean(t) or 0.2)))
    inside = []
    for _ in range(repeats):
        true = root @ rng.normal(size=(clients - 1, 2)) * np.sqrt(t) + [1.0, -0.5]
        xs = [np.stack([rng.normal(size=n), np.ones(n)], 1) for n in count]
        ys = [x @ w + rng.normal(size=len(x)) for x, w in zip(xs, true, strict=True)]
        H = strength * np.kron(laplacian, np.eye(2))
        for k, x in enumerate(xs):
            H[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] += x.T @ x / len(x)
        moment = np.concatenate([x.T @ y / len(x) for x, y in zip(xs, ys, strict=True)])
        models = torch.from_numpy(np.linalg.solve(H, moment).reshape(clients, 2))
        arrays = {f"c{k}": (x[:, :1], y) for k, (x, y) in enumerate(zip(xs, ys, strict=True))}
        federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
        model = Model(fl.models.linear().build(federation.inputs, federation.outputs), federation.loss)
        method = fl.FedU(graph, strength=strength, lr=1e-9)
        found = compute_coefficients(federation, model, method, models)
        inside.append(((models - torch.from_numpy(true)).abs() <= 1.96 * found.errors).double().mean())
    return float(torch.stack(inside).mean())


@pytest.mark.slow
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("case", list(CASES))
def test_intervals_cover(case, factor):
    """Intervals are never too short; they are too long only if rows do not determine how models differ."""
    found = measure_coverage(case, factor, repeats=150 if CASES[case][1] < 10 else 30)
    assert found >= 0.92
    if case not in ("ring, 5 clients, 8 to 19 rows", "true models are equal"):
        assert found <= 0.98


if __name__ == "__main__":
    for name in CASES:
        values = [measure_coverage(name, factor, repeats=150) for factor in FACTORS]
        print(f"| {name} | " + " | ".join(f"{100 * value:.1f}" for value in values) + " |", flush=True)
