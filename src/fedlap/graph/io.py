"""Reading graphs from files and writing them."""

import csv
import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.io import mmread, mmwrite
from scipy.sparse import coo_array, load_npz, save_npz

from fedlap.errors import InputError
from fedlap.graph.builders import check_edges
from fedlap.graph.edge_lists import EdgeColumns, parse_edges
from fedlap.graph.graph import Graph
from fedlap.graph.validate import LARGEST_WEIGHT, validate_names
from fedlap.storage.array_files import DAMAGED_FILE_ERRORS, parse_npy, parse_npz
from fedlap.storage.files import check_claimed_size, describe_error, read_user_file, write_file

READABLE_EXTENSIONS = (".csv", ".npz", ".mtx", ".npy")
WRITABLE_EXTENSIONS = (".csv", ".npz", ".mtx")
NAMES_ARRAY = "clients"  # the array of a .npz file that names the rows
BYTES_PER_ROW = 8  # bytes that an empty row of a sparse matrix takes
LONGEST_SIZE_LINE = 100  # bytes of the line of a .mtx file with its two or three sizes


def from_file(clients: Sequence[str] | None, path: str, sha256: str = "") -> Graph:
    """Read a graph of `clients` from a file with edges or a matrix.

    .csv: lines `client,client[,weight]`, each pair once; weight 0 lists clients without joining them. A first
        line of column names may give another order, as in `weight,from,to` (see `edge_lists.HEADER_WORDS`)
    .npz: a sparse matrix (`scipy.sparse.save_npz`); an additional array `clients` may name its rows
    .mtx: a matrix in Matrix Market format
    .npy: a matrix

    Rows of a matrix without names follow the order of `clients`. If `clients` is None, the file names them.

    path: the file.
    sha256: digest of the file; other content is refused.
    """
    if not Path(path).exists() or Path(path).is_dir():
        raise InputError(f"no file {path!r}; set path to an existing file", scope="graph")
    content = read_user_file("graph", path, sha256)
    try:
        return _parse_graph(Path(path).suffix.lower(), content, clients)
    except InputError as error:
        raise error.reword(f"{error.message} (in {path})", field=error.field, scope=error.scope) from error
    except (*DAMAGED_FILE_ERRORS, IndexError, csv.Error) as error:
        raise InputError(f"{path!r} cannot be read: {describe_error(error)}", scope="graph") from error


def to_file(graph: Graph, path: str | Path) -> None:
    """Write a graph; `from_file` reads the same weights.

    .csv: edges by name; a client without edges gets an edge with weight 0 (a single client: an empty file)
    .npz: a sparse matrix and an array of names, in order
    .mtx: a matrix without names
    """
    file = Path(path)
    if graph.server:
        raise InputError(
            "a graph with a server vertex cannot be written; use graph star with server = true instead",
            scope="graph",
        )
    check_edges("the graph", graph.edges)
    matrix = coo_array(graph.weights.matrix())
    content = io.BytesIO()
    if file.suffix.lower() == ".csv":
        content.write(_format_csv(graph, matrix).encode("utf-8", "surrogatepass"))
    elif file.suffix.lower() == ".npz":
        save_npz(content, matrix.tocsr())
        if graph.clients is not None:
            with zipfile.ZipFile(content, "a") as archive, archive.open(f"{NAMES_ARRAY}.npy", "w") as names:
                np.save(names, np.array(graph.clients))
    elif file.suffix.lower() == ".mtx":
        mmwrite(content, matrix, symmetry="symmetric")
    else:
        raise InputError(
            f"unsupported extension in {str(path)!r}; use {', '.join(WRITABLE_EXTENSIONS)}", scope="graph"
        )
    write_file(file, content.getvalue())


def _parse_graph(kind: str, content: bytes, clients: Sequence[str] | None) -> Graph:
    if kind == ".csv":
        return _connect_edges(parse_edges(content, clients), clients)
    if kind == ".mtx":
        _check_matrix_market(content)
        return Graph.from_matrix(mmread(io.BytesIO(content), spmatrix=False), clients)
    if kind not in READABLE_EXTENSIONS:
        raise InputError(
            f"unsupported extension {kind!r}; use .csv for edges, or .npz, .mtx or .npy for a matrix",
            scope="graph",
        )
    if kind == ".npy":
        return Graph.from_matrix(parse_npy(content), clients)
    arrays = parse_npz(bytearray(content))  # raises if a header claims more than the file holds
    for claimed in np.atleast_1d(arrays["shape"]).tolist():
        check_claimed_size(BYTES_PER_ROW * int(claimed), len(content))
    matrix = load_npz(io.BytesIO(content))
    if matrix.format in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)  # an index out of range would read foreign memory
    names = (
        [str(name) for name in np.atleast_1d(arrays[NAMES_ARRAY]).tolist()] if NAMES_ARRAY in arrays else None
    )
    if names is None or clients is None:
        return Graph.from_matrix(matrix, clients if names is None else names)
    return Graph.from_matrix(matrix, names).align(clients)


def _check_matrix_market(content: bytes) -> None:
    """Raise ValueError if the sizes in the header of a Matrix Market file exceed what the file can hold."""
    lines = io.BytesIO(content)
    dense = b"array" in lines.readline().lower()
    sizes = next((line for line in lines if line.strip() and not line.startswith(b"%")), b"")
    if len(sizes) > LONGEST_SIZE_LINE:
        raise ValueError("the size line of the header is damaged")
    numbers = [int(word) for word in sizes.split()]
    for claimed in numbers[:2]:
        check_claimed_size(BYTES_PER_ROW * claimed, len(content))
    # An entry takes at least two bytes; a symmetric matrix stores one of two entries.
    entries = math.prod(numbers) // 2 if dense else numbers[-1] if numbers else 0
    if entries * 2 > len(content) + BYTES_PER_ROW * sum(numbers[:2]):
        raise ValueError(f"its header claims {entries:,} entries in {len(content):,} bytes")


def _connect_edges(columns: EdgeColumns, clients: Sequence[str] | None) -> Graph:
    """Build a graph from all edges at once; on an error, edge by edge, to name the first invalid edge."""
    begin, end, weight = columns
    listed = dict.fromkeys(name for pair in zip(begin, end, strict=True) for name in pair)
    names = validate_names(listed if clients is None else clients)
    size, index = len(names), {name: place for place, name in enumerate(names)}
    ends = np.array([[index.get(name, -1) for name in column] for column in (begin, end)], dtype=np.int64)
    values = np.array(weight)
    low, high = ends.min(0), ends.max(0)
    distinct = len(np.unique(low * size + high)) == len(values)
    valid = (low >= 0) & (low < high) & (values >= 0) & (values <= LARGEST_WEIGHT)
    if not (distinct and valid.all()):
        return Graph.from_edges(zip(begin, end, weight, strict=True), names)
    half = coo_array((values, (low, high)), shape=(size, size)).tocsr()
    return Graph.from_matrix(half + half.T, names)


def _format_csv(graph: Graph, matrix: coo_array) -> str:
    """Format each pair once, and a pair with weight 0 for each client without edges."""
    names = graph.clients or tuple(str(place) for place in range(graph.size))
    for name in names:
        if name != name.strip():
            raise InputError(
                f"client {name!r} begins or ends with a space, which a .csv file loses; use .npz",
                scope="graph",
            )
    upper = matrix.row < matrix.col
    alone = np.setdiff1d(np.arange(graph.size), matrix.row) if graph.size > 1 else np.array([], dtype=int)
    pairs = np.unique(np.stack([np.minimum(alone, alone == 0), np.maximum(alone, alone == 0)]), axis=1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(
        (names[k], names[other], weight)
        for k, other, weight in zip(
            [*matrix.row[upper].tolist(), *pairs[0].tolist()],
            [*matrix.col[upper].tolist(), *pairs[1].tolist()],
            [*matrix.data[upper].tolist(), *[0.0] * pairs.shape[1]],
            strict=True,
        )
    )
    return text.getvalue()
