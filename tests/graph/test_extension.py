"""Extension of values along a graph: the conditional mean of a Gaussian field, in all its forms."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.graph import extension, weights
from fedlap.graph.extension import CompleteExtension, DenseExtension, SparseExtension, build_extension

N, P = 9, 4


def random_matrix(size=N, seed=5):
    rng = np.random.default_rng(seed)
    a = np.triu(rng.random((size, size)) * (rng.random((size, size)) < 0.5), 1)
    return a + a.T


def build_precision(a):
    """K = L + D/(N − 1), with ones for vertices without edges."""
    d = a.sum(1)
    return np.diag(np.where(d > 0, d * len(d) / (len(d) - 1), 1.0)) - a


def solve_plainly(a, scale, ids, values):
    """−Δ_U⁻¹ K_UU⁻¹ K_US Δ_S x_S at the other vertices, x_S at `ids`."""
    K, x = build_precision(a), np.zeros((len(a), values.shape[1]))
    rest = [k for k in range(len(a)) if k not in ids]
    known = K[np.ix_(rest, ids)] @ (scale[ids, None] * values)
    x[rest] = -np.linalg.solve(K[np.ix_(rest, rest)], known) / scale[rest, None]
    x[ids] = values
    return x


def exact_scale(a):
    return np.sqrt(np.diag(np.linalg.inv(build_precision(a))))


def values(rows, seed=0, columns=P):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES = {
    "complete": lambda: np.ones((N, N)) - np.eye(N),
    "random": random_matrix,
    "two components and an isolated vertex": lambda: np.block(
        [
            [random_matrix(4, 1) + 0.1 * (1 - np.eye(4)), np.zeros((4, 5))],
            [np.zeros((5, 4)), np.pad(np.ones((4, 4)) - np.eye(4), (0, 1))],
        ]
    ),
    "star": lambda: 1.0 * np.logical_xor.outer(np.arange(N) == 0, np.arange(N) == 0),
}  # fmt: skip


@pytest.mark.parametrize("ids", [[4], [7, 2, 5], list(range(N))], ids=["one", "some", "everyone"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_conditional_mean(case, ids):
    a = CASES[case]()
    x, chosen = values(len(ids)), torch.tensor(ids)
    found = build_extension(fl.Graph.from_matrix(a)).extend(chosen, x)
    assert np.abs(found.numpy() - solve_plainly(a, exact_scale(a), ids, x.numpy())).max() < 1e-12
    assert torch.equal(found[chosen], x)
    single = build_extension(fl.Graph.from_matrix(a)).extend(chosen, x.float())
    assert single.dtype == torch.float32
    assert (single - found).abs().max() < 1e-5


@pytest.mark.parametrize("weight", [0.3, 1.0, 0.0])
def test_the_complete_graph_has_a_closed_form(weight):
    names = [f"k{place}" for place in range(N)]
    ids, x = torch.tensor([7, 2, 5]), values(3)
    graph = fl.Graph.complete(names, weight)
    found = build_extension(graph)
    assert isinstance(found, CompleteExtension)
    dense = DenseExtension(fl.Graph.from_matrix(graph.weights.matrix()).weights)
    assert (found.extend(ids, x) - dense.extend(ids, x)).abs().max() < 1e-12
    assert (found.extend(ids, x)[0] - (x.sum(0) / 4 if weight else 0.0)).abs().max() < 1e-12


def approximate_scale(a):
    """√(1/d_k + N/Σd over the component of k), one without edges."""
    d, reached = a.sum(1), np.linalg.matrix_power(a + np.eye(len(a)), len(a)) > 0
    return np.array(
        [np.sqrt(1 / d[k] + len(a) / d[reached[k]].sum()) if d[k] else 1.0 for k in range(len(a))]
    )


def force_form(form, monkeypatch):
    """Treat small graphs as large ones, with a factorisation or iteratively."""
    monkeypatch.setattr(weights, "DENSE_UP_TO", 0)
    if form != "factorised":
        monkeypatch.setattr(extension, "FEW_ENTRIES", 0)
    if form == "inverted":
        monkeypatch.setattr(extension, "MOST_ENTRIES", 0)
    if form == "approximate":
        monkeypatch.setattr(extension, "MOST_BOUND", -1)
        monkeypatch.setattr(extension, "INVERT_UP_TO", 0)


@pytest.mark.parametrize("columns", [2, 30], ids=["few columns", "many columns"])
@pytest.mark.parametrize("ids", [[4], [7, 2, 5], list(range(N))], ids=["one", "some", "everyone"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["factorised", "iterative", "inverted", "approximate"])
def test_large_graphs_have_the_same_rule(form, case, ids, columns, monkeypatch):
    """In all forms but one, for which the stated approximation of Δ takes the place of Δ."""
    force_form(form, monkeypatch)
    a = CASES[case]()
    large = build_extension(fl.Graph.from_matrix(a))
    assert isinstance(large, SparseExtension)
    x = values(len(ids), columns=columns)
    x[:, 1] = 0.0  # a parameter without steps stays as it is
    scale = approximate_scale(a) if form == "approximate" else exact_scale(a)
    expected = solve_plainly(a, scale, ids, x.numpy())
    found = large.extend(torch.tensor(ids), x)
    assert np.abs(found.numpy() - expected).max() < 1e-10
    assert torch.equal(found, large.extend(torch.tensor(ids), x))
    single = large.extend(torch.tensor(ids), x.float())
    assert np.abs(single.numpy() - expected).max() < 1e-5


def test_graphs_with_few_edges_are_factorised_on_a_cpu(monkeypatch):
    """The numbers are those of R, which is not computed for 1,000 vertices and more."""
    graph = fl.Graph.ring([str(k) for k in range(1_000)], 2)
    few = build_extension(graph)
    assert isinstance(few, DenseExtension)
    ids, x = torch.arange(3, 1_000, 11), values(91)
    found, calls = few.extend(ids, x), []
    monkeypatch.setattr(DenseExtension, "correlation", property(calls.append))
    assert torch.equal(few.extend(ids, x), found)
    assert not calls
    monkeypatch.undo()
    monkeypatch.setattr(extension, "FACTORISE_FROM", 10_000)
    assert (DenseExtension(graph.weights).extend(ids, x) - found).abs().max() < 1e-10


@pytest.mark.parametrize("form", ["factorised", "iterative"])
def test_blocks_of_parameters_do_not_matter(form, monkeypatch):
    force_form(form, monkeypatch)
    large = build_extension(fl.Graph.from_matrix(random_matrix()))
    ids, x = torch.tensor([7, 2, 5]), values(3)
    whole = large.extend(ids, x)
    monkeypatch.setattr(extension, "EXTENSION_BLOCK", 2 * N)
    monkeypatch.setattr(extension, "DIRECT_BLOCK", 2 * N)
    assert (large.extend(ids, x) - whole).abs().max() < 1e-10


@pytest.mark.parametrize("form", ["factorised", "iterative"])
def test_the_accuracy_of_a_large_graph_is_as_stated(form, monkeypatch):
    """A ring of 3,000 clients with 30 known values, which are far apart: y_k = (y_k₋₁ + y_k₊₁)/(2 cosh θ)."""
    force_form(form, monkeypatch)
    graph = fl.Graph.ring([f"k{place}" for place in range(3_000)])
    large, ids = build_extension(graph), torch.arange(0, 3_000, 100)
    x = values(30, columns=2)
    found = large.extend(ids, x)  # a ring has equal degrees, so scales cancel
    K = graph.apply_laplacian(found) + 2 / 2_999 * found
    K[ids] = 0.0
    assert K.norm() < 1e-11 * x.norm()
    theta = np.arccosh(1 + 1 / 2_999)
    between = (x[0] + x[1]) / (2 * np.cosh(50 * theta))  # halfway between two known values
    assert (found[50] - between).abs().max() < 1e-8 * x.abs().max()
    assert (between - (x[0] + x[1]) / 2).abs().max() > 0.1 * between.abs().max()  # the leak counts


def few_edges(spread):
    """A graph of 200 vertices with six neighbours on average and weights exp(spread · normal)."""
    rng = np.random.default_rng(1)
    a = np.exp(spread * rng.normal(size=(200, 200))) * (rng.random((200, 200)) < 6 / 200)
    return np.triu(a, 1) + np.triu(a, 1).T


APPROXIMATED = {  # with the largest relative error that is stated
    "random": (lambda: few_edges(0), 0.05),
    "heavy tails": (lambda: few_edges(2), 0.2),
    "star": (lambda: 1.0 * np.logical_xor.outer(np.arange(200) == 0, np.arange(200) == 0), 0.005),
    "ring": (lambda: fl.Graph.ring([str(k) for k in range(200)]).weights.matrix().toarray(), 1e-9),
}


@pytest.mark.parametrize("name", APPROXIMATED)
def test_the_approximation_is_as_close_as_stated(name, monkeypatch):
    """20 of 200 values are known (docs/explanation/theory.md); on a ring all scales are equal."""
    build, bound = APPROXIMATED[name]
    ids, x = torch.arange(0, 200, 10), values(20)
    exact = build_extension(fl.Graph.from_matrix(build())).extend(ids, x)
    force_form("approximate", monkeypatch)
    error = build_extension(fl.Graph.from_matrix(build())).extend(ids, x) - exact
    others = np.delete(np.arange(200), ids)
    assert float(error.norm() / exact[others].norm()) < bound
    if name != "ring":
        assert float(error.norm() / exact[others].norm()) > bound / 10  # so that the bound says something


@pytest.mark.parametrize("seed", range(20))
def test_the_correlation_has_no_eigenvalue_below_one_over_n(seed):
    """R ⪰ I/N on every graph, also with weights over six orders of magnitude (docs/explanation/theory.md)."""
    rng = np.random.default_rng(seed)
    a = random_matrix(12, seed) * np.exp(rng.choice([0, 1, 3]) * rng.normal(size=(12, 12)))
    R = DenseExtension(fl.Graph.from_matrix(np.triu(a, 1) + np.triu(a, 1).T).weights).correlation
    assert torch.linalg.eigvalsh(R)[0] >= 1 / 12 - 1e-12
    assert (R.diagonal() - 1).abs().max() < 1e-12
    assert R.min() >= -1e-12
