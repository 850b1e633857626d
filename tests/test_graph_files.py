"""Graphs from files."""

import numpy as np
import pytest

import fedlap as fl
from conftest import random_weights
from fedlap.graph import from_file

ABC = ("a", "b", "c")


def matrix_of(graph):
    return graph.weights.matrix().toarray()


def test_edges_from_a_file(tmp_path):
    file = tmp_path / "edges.csv"
    file.write_text("a, b\n\nc,b,0.5\n", encoding="utf-8")
    graph = from_file(ABC, str(file))
    assert graph.clients == ABC
    assert np.array_equal(matrix_of(graph), [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]])


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
        ("e.csv", b"a,b\n\nb,c,heavy\n", "line 3 has the weight 'heavy'; it must be a number"),
        ("e.csv", b"a,bb\n", r"unknown client in graph's edges 'bb'.*\(in .*e.csv\)"),
        ("e.csv", b"a,b,-1\n", r"weight -1.0.*\(in .*e.csv\)"),
        ("e.csv", b"a,b,nan\n", "weight nan"),
        ("e.csv", b"a,b\nb,a\n", "given twice"),
        ("e.csv", b"\xff\xfe\x00", "cannot be read"),
        ("m.npy", b"not numpy", "cannot be read"),
        ("m.txt", b"a,b\n", "neither a .csv file of edges nor a .npy file"),
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
        (np.zeros((2, 3)), "must be square"),
        (np.zeros((3, 3)), "3×3 matrix for 2 clients"),
        ([["x", "y"], ["y", "x"]], "not a matrix of numbers"),
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
        with pytest.raises(fl.InputError, match="there is no file"):
            from_file(ABC, str(path))
