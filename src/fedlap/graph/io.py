"""Graphs from files and to files."""

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
from fedlap.graph.graph import Graph
from fedlap.graph.validate import MOST_WEIGHT, checked_names
from fedlap.storage.array_files import DAMAGED, array_in, arrays_in
from fedlap.storage.files import check_room, read_checked, reason, write_file

READ = (".csv", ".npz", ".mtx", ".npy")  # how the names of files end that graphs are read from
WRITTEN = (".csv", ".npz", ".mtx")
NAMES = "clients"  # the array of a .npz file that names them
ROW = 8  # bytes that a row of a sparse matrix takes without any entry
LONGEST_SIZES = 100  # bytes of the line of a .mtx file that has three numbers

Columns = tuple[list[str], list[str], list[float]]  # two clients and the weight between them


def from_file(clients: Sequence[str] | None, path: str, sha256: str = "") -> Graph:
    """A graph of these clients, from a file of edges or of a matrix.

    .csv: lines `client,client[,weight]`, each pair once; weight 0 names clients without joining them
    .npz: a sparse matrix (`scipy.sparse.save_npz`); an array `clients` beside it may name its rows
    .mtx: a matrix in the Matrix Market's format
    .npy: a matrix

    Rows of a matrix without names follow the order of `clients`; without `clients`, they are whom the file
    names. With `sha256`, only from a file with that content.
    """
    if not Path(path).exists() or Path(path).is_dir():
        raise InputError(f"there is no file {path!r}", scope="graph")
    content = read_checked("graph", path, sha256)
    try:
        return _read(Path(path).suffix.lower(), content, clients)
    except InputError as error:
        raise error.reword(f"{error.message} (in {path})", field=error.field, scope=error.scope) from error
    except (*DAMAGED, IndexError, csv.Error) as error:
        raise InputError(f"{path!r} cannot be read: {reason(error)}", scope="graph") from error


def to_file(graph: Graph, path: str | Path) -> None:
    """Write a graph such that `from_file` reads the same weights.

    .csv: edges by name, where a client without any has one of weight 0 (so a single client leaves nothing)
    .npz: a sparse matrix and an array of names, in order
    .mtx: a matrix alone, without names
    """
    file = Path(path)
    if graph.server:
        raise InputError(
            "a server's vertex cannot be kept in a file; make a star with server = true", scope="graph"
        )
    check_edges("it", graph.edges)
    matrix = coo_array(graph.weights.matrix())
    content = io.BytesIO()
    if file.suffix.lower() == ".csv":
        content.write(_lines(graph, matrix).encode("utf-8", "surrogatepass"))
    elif file.suffix.lower() == ".npz":
        save_npz(content, matrix.tocsr())
        if graph.clients is not None:
            with zipfile.ZipFile(content, "a") as archive, archive.open(f"{NAMES}.npy", "w") as names:
                np.save(names, np.array(graph.clients))
    elif file.suffix.lower() == ".mtx":
        mmwrite(content, matrix, symmetry="symmetric")
    else:
        raise InputError(f"it cannot be written to {str(path)!r}, but to {', '.join(WRITTEN)}", scope="graph")
    write_file(file, content.getvalue())


def _read(kind: str, content: bytes, clients: Sequence[str] | None) -> Graph:
    if kind == ".csv":
        return _joined(_columns(content), clients)
    if kind == ".mtx":
        _check_market(content)
        return Graph.from_matrix(mmread(io.BytesIO(content), spmatrix=False), clients)
    if kind not in READ:
        raise InputError(
            "it is neither a .csv file of edges nor a .npz, .mtx or .npy file of a matrix", scope="graph"
        )
    if kind == ".npy":
        return Graph.from_matrix(array_in(content), clients)
    arrays = arrays_in(bytearray(content))  # refuses headers that claim what is not there
    for claimed in np.atleast_1d(arrays["shape"]).tolist():
        check_room(ROW * int(claimed), len(content))
    matrix = load_npz(io.BytesIO(content))
    if matrix.format in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)  # a place outside would be read where nothing is
    names = [str(name) for name in np.atleast_1d(arrays[NAMES]).tolist()] if NAMES in arrays else None
    if names is None or clients is None:
        return Graph.from_matrix(matrix, clients if names is None else names)
    return Graph.from_matrix(matrix, names).aligned(clients)


def _check_market(content: bytes) -> None:
    """Raise ValueError where the sizes in a Matrix Market file's header need more than it can hold."""
    lines = io.BytesIO(content)
    dense = b"array" in lines.readline().lower()
    sizes = next((line for line in lines if line.strip() and not line.startswith(b"%")), b"")
    if len(sizes) > LONGEST_SIZES:
        raise ValueError("the line of its sizes is damaged")
    numbers = [int(word) for word in sizes.split()]
    for claimed in numbers[:2]:
        check_room(ROW * claimed, len(content))
    # An entry takes at least two bytes; of a symmetric matrix one of two entries is there.
    entries = math.prod(numbers) // 2 if dense else numbers[-1] if numbers else 0
    if entries * 2 > len(content) + ROW * sum(numbers[:2]):
        raise ValueError(f"it claims {entries:,} entries in {len(content):,} bytes")


def _columns(content: bytes) -> Columns:
    """Both ends and the weight of each line."""
    begin, end, weight = [], [], []
    with io.TextIOWrapper(io.BytesIO(content), newline="", encoding="utf-8-sig") as lines:
        for number, cells in enumerate(csv.reader(lines), 1):
            if not "".join(cells).strip():
                continue
            if len(cells) not in (2, 3):
                raise InputError(
                    f"line {number} has {len(cells)} columns; write client,client or client,client,weight",
                    scope="graph",
                )
            try:
                weight.append(float(cells[2]) if len(cells) == 3 else 1.0)
            except ValueError as error:
                raise InputError(
                    f"line {number} has the weight {cells[2].strip()!r}; it must be a number", scope="graph"
                ) from error
            begin.append(cells[0].strip())
            end.append(cells[1].strip())
    return begin, end, weight


def _joined(columns: Columns, clients: Sequence[str] | None) -> Graph:
    """All edges at once; only where something is wrong one after another, to say what."""
    begin, end, weight = columns
    listed = dict.fromkeys(name for pair in zip(begin, end, strict=True) for name in pair)
    names = checked_names(listed if clients is None else clients)
    size, at = len(names), {name: place for place, name in enumerate(names)}
    ends = np.array([[at.get(name, -1) for name in column] for column in (begin, end)], dtype=np.int64)
    values = np.array(weight)
    low, high = ends.min(0), ends.max(0)
    once = len(np.unique(low * size + high)) == len(values)
    sound = (low >= 0) & (low < high) & (values >= 0) & (values <= MOST_WEIGHT)
    if not (once and sound.all()):
        return Graph.from_edges(zip(begin, end, weight, strict=True), names)
    half = coo_array((values, (low, high)), shape=(size, size)).tocsr()
    return Graph.from_matrix(half + half.T, names)


def _lines(graph: Graph, matrix: coo_array) -> str:
    """Each pair once, and a pair of weight 0 for everybody who is in none."""
    names = graph.clients or tuple(str(place) for place in range(graph.size))
    for name in names:
        if name != name.strip():
            raise InputError(
                f"client {name!r} begins or ends with a blank, which a .csv file loses; use .npz",
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
