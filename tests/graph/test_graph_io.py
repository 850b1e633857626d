"""Graphs from files, to files, and by way of NetworkX."""

import networkx
import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csc_array, csr_array, save_npz

import fedlap as fl
from fedlap.graph import Graph, from_file, from_networkx, to_file, to_networkx
from fedlap.graph.weights import SparseWeights
from graphs import matrix_of
from property_settings import short_law as law
from random_inputs import random_weights

ABC = ("a", "b", "c")
kinds = pytest.mark.parametrize("kind", ["csv", "npz", "mtx"])
# Names of all sorts, but for blanks around them, which .csv files do not keep.
clients = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4).filter(
        lambda name: name == name.strip() and name[0] != "\ufeff"
    ),
    min_size=2,
    max_size=8,
    unique=True,
)


def test_edges_from_a_file(tmp_path):
    file = tmp_path / "edges.csv"
    file.write_text("a, b\n\nc,b,0.5\n", encoding="utf-8")
    graph = from_file(ABC, str(file))
    assert graph.clients == ABC
    assert np.array_equal(matrix_of(graph), [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]])


@pytest.mark.parametrize(
    "content",
    [
        "client,neighbour,weight\na,b,1\nc,b,0.5\n",
        "from,to,weight\na,b,1\nc,b,0.5\n",
        "Weight,Source,Target\n1,a,b\n0.5,c,b\n",
        "\nclient_1, weight, client_2\na,1,b\n\nc,0.5,b\n",
        "county,neighbour,weight\na,b,1\nc,b,0.5\n",
    ],
)
def test_a_header_names_the_columns(tmp_path, content):
    file = tmp_path / "edges.csv"
    file.write_text(content, encoding="utf-8")
    assert np.array_equal(matrix_of(from_file(ABC, str(file))), [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]])
    assert from_file(None, str(file)).clients == ABC


def test_a_first_line_with_a_client_or_a_number_is_an_edge(tmp_path):
    file = tmp_path / "edges.csv"
    file.write_text("from,to\nto,b\n", encoding="utf-8")
    assert from_file(("from", "to", "b"), str(file)).edges == 2
    assert from_file(None, str(file)).edges == 1  # without clients, the words are a header
    file.write_text("from,to,2\n", encoding="utf-8")
    assert from_file(None, str(file)).clients == ("from", "to")


def test_a_client_in_another_case_is_suggested(tmp_path):
    federation, borders = fl.data.load_with_graph("radon")
    for kind in ("csv", "npz"):
        file = tmp_path / f"borders.{kind}"
        to_file(Graph(tuple(name.upper() for name in federation.clients), borders.weights), file)
        with pytest.raises(fl.InputError, match=r"did you mean '(Aitkin|AITKIN)'\?") as error:
            from_file(federation.clients, str(file))
        assert "\n" not in str(error.value)


def test_vertices_without_edges_are_counted():
    assert Graph.empty(ABC).count_isolated() == 3
    assert Graph.from_edges([("a", "b")], ABC).count_isolated() == 1
    assert Graph.complete(ABC).count_isolated() == 0
    assert fl.graph.erdos_renyi([str(k) for k in range(3_000)], 0.0).count_isolated() == 3_000


def test_a_matrix_from_a_file(tmp_path):
    file = tmp_path / "weights.npy"
    a = random_weights(ABC)
    np.save(file, a)
    graph = from_file(ABC, str(file))
    assert graph.clients == ABC
    assert np.array_equal(matrix_of(graph), a)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.csv", b"a\n", "line 1 has 1 columns"),
        ("e.csv", b"a,b\na,b,1,2\n", "line 2 has 4 columns"),
        ("e.csv", b"a,b\n\nb,c,heavy\n", "line 3 has the weight 'heavy'; expected a number"),
        ("e.csv", b"a,bb\n", r"unknown client in graph's edges 'bb'.*\(in .*e.csv\)"),
        ("e.csv", b"from,to,distance\na,b,1\n", "line 1 names the columns from, to, distance; expected two"),
        ("e.csv", b"from,to\na,b\na,b,1\n", "line 3 has 3 columns; expected 2 as in the header"),
        ("e.csv", b"from,to,weight\na,b,heavy\n", "line 2 has the weight 'heavy'; expected a number"),
        ("e.csv", b"a,b,heavy\n", "line 1 has the weight 'heavy'; expected a number"),
        ("e.csv", b"a,b,-1\n", r"weight -1.0.*\(in .*e.csv\)"),
        ("e.csv", b"a,b,nan\n", "weight nan"),
        ("e.csv", b"a,b\nb,a\n", "listed twice"),
        ("e.csv", b"\xff\xfe\x00", "cannot be read"),
        ("m.npy", b"not numpy", "cannot be read"),
        ("m.npz", b"not numpy", "cannot be read"),
        ("m.mtx", b"not a matrix", "cannot be read"),
        ("m.mtx", b"%%MatrixMarket matrix coordinate real general\n2 2 1\n5 1 1.0\n", "cannot be read"),
        (
            "m.txt",
            b"a,b\n",
            "unsupported extension '.txt'; use .csv for edges, or .npz, .mtx or .npy for a matrix",
        ),
    ],
)
def test_files_that_cannot_be(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(fl.InputError, match=message) as error:
        from_file(ABC, str(file))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 1], [2, 0]], r"\('a', 'b'\) and its mirror differ.*\(in .*m.npy\)"),
        (np.zeros((2, 3)), "expected a square matrix"),
        (np.zeros((3, 3)), "3×3 matrix for 2 clients"),
        ([["x", "y"], ["y", "x"]], "expected a matrix of real numbers"),
        (np.array([[{}]], dtype=object), "cannot be read"),
    ],
    ids=["asymmetric", "oblong", "size", "text", "pickled"],
)
def test_matrices_in_files_that_cannot_be(tmp_path, matrix, message):
    file = tmp_path / "m.npy"
    np.save(file, np.array(matrix), allow_pickle=True)
    with pytest.raises(fl.InputError, match=message):
        from_file(("a", "b"), str(file))


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(fl.InputError, match=r"no file '.*'; set path to an existing file"):
            from_file(ABC, str(path))


@kinds
@law
@given(clients, st.integers(0, 1000), st.sampled_from([0.0, 0.2, 1.0]))
def test_there_and_back(tmp_path_factory, kind, names, seed, density):
    """The same weights to the last bit, and clients without edges too."""
    file = tmp_path_factory.mktemp("graph") / f"graph.{kind}"
    graph = Graph.from_matrix(random_weights(names, seed, density), names)
    to_file(graph, file)
    again = from_file(tuple(names), str(file))
    assert again.clients == tuple(names)
    assert np.array_equal(matrix_of(again), matrix_of(graph))
    if kind == "csv":  # everybody is named, if in another order
        alone = from_file(None, str(file))
        assert np.array_equal(matrix_of(alone.align(names)), matrix_of(graph))
    if kind == "npz":
        assert from_file(None, str(file)).clients == graph.clients
        turned = from_file(names[::-1], str(file))
        assert np.array_equal(matrix_of(turned), matrix_of(graph)[::-1, ::-1])


@kinds
def test_a_large_graph_there_and_back(tmp_path, kind):
    names = tuple(f"client {k}" for k in range(2_500))
    graph, file = fl.graph.erdos_renyi(names, 0.004), tmp_path / f"graph.{kind}"
    to_file(graph, file)
    again = from_file(names, str(file))
    assert isinstance(again.weights, SparseWeights)
    assert (again.weights.matrix() != graph.weights.matrix()).nnz == 0


@kinds
def test_a_graph_without_names(tmp_path, kind):
    graph, file = Graph.from_matrix(random_weights(ABC)), tmp_path / f"graph.{kind}"
    to_file(graph, file)
    again = from_file(None, str(file))
    assert (sorted(again.clients) == ["0", "1", "2"]) if kind == "csv" else (again.clients is None)
    assert np.array_equal(matrix_of(from_file(("0", "1", "2"), str(file))), matrix_of(graph))


def test_what_is_written_others_read(tmp_path):
    graph = Graph.from_edges([("b", "a", 0.5)], ABC)
    for kind in ("csv", "npz", "mtx"):
        to_file(graph, tmp_path / f"graph.{kind}")
    assert (tmp_path / "graph.csv").read_text(encoding="utf-8") == "a,b,0.5\na,c,0.0\n"
    assert np.array_equal(scipy.sparse.load_npz(tmp_path / "graph.npz").toarray(), matrix_of(graph))
    assert np.array_equal(scipy.io.mmread(tmp_path / "graph.mtx").toarray(), matrix_of(graph))
    with np.load(tmp_path / "graph.npz") as arrays:
        assert arrays["clients"].tolist() == list(ABC)


@pytest.mark.parametrize("kind", [csr_array, csc_array, coo_array])
def test_what_others_write_is_read(tmp_path, kind):
    a = random_weights(ABC)
    save_npz(tmp_path / "m.npz", kind(a))
    for symmetry in ("general", "symmetric"):
        scipy.io.mmwrite(tmp_path / "m.mtx", kind(a), symmetry=symmetry)
        scipy.io.mmwrite(tmp_path / "dense.mtx", a, symmetry=symmetry)
        for name in ("m.npz", "m.mtx", "dense.mtx"):
            graph = from_file(ABC, str(tmp_path / name))
            assert graph.clients == ABC
            assert np.array_equal(matrix_of(graph), a)


def test_a_sparse_file_with_a_place_outside(tmp_path):
    file = tmp_path / "m.npz"
    broken = {"format": b"csr", "shape": (2, 2), "data": [1.0, 1.0], "indptr": [0, 1, 2]}
    for indices in ([1, 70_000_000], [1, -5]):
        np.savez(file, indices=indices, **broken)
        with pytest.raises(fl.InputError, match="cannot be read") as error:
            from_file(("a", "b"), str(file))
        assert "\n" not in str(error.value)
    np.savez(file, weights=np.eye(2))
    with pytest.raises(fl.InputError, match="cannot be read"):
        from_file(("a", "b"), str(file))


def test_names_in_a_file_must_be_the_clients(tmp_path):
    to_file(Graph.path(ABC), tmp_path / "g.npz")
    with pytest.raises(fl.InputError, match=r"client 'd' of the data is not in the graph.*\(in .*g.npz\)"):
        from_file(("a", "b", "d"), str(tmp_path / "g.npz"))


@pytest.mark.parametrize(
    ("graph", "name", "message"),
    [
        (
            Graph.star(ABC, server=True),
            "g.csv",
            "a graph with a server vertex cannot be written; use graph star",
        ),
        (Graph.path(ABC), "g.txt", "unsupported extension in .*; use .csv, .npz, .mtx"),
        (Graph.path((" a", "b")), "g.csv", "client ' a' begins or ends with a space"),
        (Graph.complete([str(k) for k in range(10_000)]), "g.npz", "the graph has about 5e.07 edges"),
    ],
    ids=["server", "kind", "blank", "size"],
)
def test_what_cannot_be_written(tmp_path, graph, name, message):
    with pytest.raises(fl.InputError, match=message):
        to_file(graph, tmp_path / name)
    assert not list(tmp_path.iterdir())


@law
@given(clients, st.integers(0, 1000), st.sampled_from([0.0, 0.2, 1.0]))
def test_networkx_and_back(names, seed, density):
    graph = Graph.from_matrix(random_weights(names, seed, density), names)
    network = to_networkx(graph)
    assert list(network) == list(names)
    assert np.array_equal(networkx.to_numpy_array(network), matrix_of(graph))
    again = from_networkx(network)
    assert again.clients == graph.clients
    assert np.array_equal(matrix_of(again), matrix_of(graph))
    turned = from_networkx(network, names[::-1])
    assert np.array_equal(matrix_of(turned), matrix_of(graph)[::-1, ::-1])


def test_networks_of_networkx():
    karate = from_networkx(networkx.karate_club_graph())
    assert (karate.size, karate.edges, karate.components) == (34, 78, 1)
    # Others know its eigenvalues too.
    values = networkx.laplacian_spectrum(networkx.karate_club_graph())
    assert (karate.lambda2, karate.rho) == pytest.approx((values[1], values[-1]))
    ring = from_networkx(networkx.cycle_graph(6), [str(k) for k in range(6)])
    assert np.array_equal(matrix_of(ring), matrix_of(Graph.ring("012345")))
    assert from_networkx(networkx.path_graph(["a", "b"]), ABC).components == 2
    star = to_networkx(Graph.star(ABC, server=True))
    assert dict(star["server"]) == {name: {"weight": 1.0} for name in ABC}
    assert list(to_networkx(Graph.from_matrix(random_weights(ABC)))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (networkx.DiGraph([("a", "b")]), "the network is directed"),
        (networkx.Graph([("a", "a")]), "client 'a' is joined to itself"),
        (networkx.MultiGraph([("a", "b"), ("b", "a")]), "listed twice"),
        (networkx.Graph([("a", "bb")]), "unknown client in the network 'bb'"),
        (networkx.Graph([("a", "b", {"weight": -1.0})]), "weight -1.0; expected a finite number"),
        (networkx.Graph([(1, "1")]), "two nodes of the network have equal names as text"),
    ],
    ids=["directed", "loop", "twice", "stranger", "negative", "name"],
)
def test_networks_that_cannot_be(network, message):
    with pytest.raises(fl.InputError, match=message):
        from_networkx(network, ("a", "b", "1"))
