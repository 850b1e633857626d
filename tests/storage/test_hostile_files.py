"""Files that are not what they seem: wrong types under a good checksum, huge claims, FIFOs, deep nesting."""

import inspect
import io
import json
import os
import signal
import zipfile
from contextlib import contextmanager, nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import coo_array, save_npz

import fedlap as fl
from disk import expect_error
from fedlap.data.prediction_rows import read_prediction_rows
from fedlap.experiments import checkpoints
from fedlap.experiments.checkpoints import Owner, UnusableCheckpointError
from fedlap.experiments.run_folder import RunFolder, read_experiment
from fedlap.models import MODELS, dense
from fedlap.personal import Personals
from fedlap.personal.models import Personal
from fedlap.reproduce.cell_results import ResultFolder
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import RECIPE_FOLDER, Recipe
from fedlap.storage import array_files, files
from fedlap.training.result import Progress

DEEP = "[" * 100_000 + "]" * 100_000
WRONG = (None, 7, -1, 1.5, "x", [], {}, [[]], [None], True, 10**30, float("nan"))


@contextmanager
def within(seconds):
    """Fail where something waits, as on a FIFO whose other end nobody opens."""

    def late(*_):
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def rewrite_field(path, field, value):
    """Replace a field and write a valid checksum."""
    facts = json.loads(path.read_bytes())
    facts.pop("signature", None)
    facts[field] = value
    path.write_bytes(files.encode_with_checksum(facts))


def progress():
    return Progress(1, torch.arange(6.0).reshape(2, 3), (None, torch.ones(2)), (1, 2), 0.5, [])


@pytest.fixture
def models(tmp_path, federation, graph):
    result = fl.fit(fl.FedU(graph), federation.standardize("client"), fl.models.mlp(3), rounds=1)
    result.personals.save(tmp_path / "models")
    result.personals.of_client("a").save(tmp_path / "a.safetensors")
    return tmp_path


FACTS = ("format", "architecture", "inputs", "outputs", "labels", "features", "target", "pictures", "scale",
         "clients", "client", "sha256")  # fmt: skip
# Values, as JSON, that are as good as those that were written; the last one is of a user's own module.
FINE = {"labels": ["null"], "features": ["null"], "target": ["null", '"x"'], "client": ['"x"'],
        "pictures": ["true"], "architecture in about.json": ["null"]}  # fmt: skip


@pytest.mark.parametrize("field", FACTS)
def test_models_under_a_good_checksum(field, models):
    for path, load in (
        (models / "models" / "about.json", lambda: Personals.load(models / "models")),
        (models / "a.json", lambda: Personal.load(models / "a.safetensors")),
    ):
        whole = path.read_bytes()
        if field not in json.loads(whole):
            continue
        fine = [*FINE.get(field, []), *FINE.get(f"{field} in {path.name}", [])]
        for value in WRONG:
            rewrite_field(path, field, value)
            with nullcontext() if json.dumps(value) in fine else expect_error(str(models)):
                load()
        path.write_bytes(whole)
        load()


@pytest.mark.parametrize(
    "architecture",
    [{"name": "mlp", "hidden": [10**12]}, {"name": "mlp", "hidden": "x"}, {"name": "linear"}, {"name": []},
     {"name": "mlp", "hidden": [3], "depth": 4}, {"name": "cnn"}, {"name": "mlp", "hidden": [3], "l2": "x"}],
    ids=str,
)  # fmt: skip
def test_architectures_that_are_not_those_of_the_tensors(architecture, models, monkeypatch):
    # The checks of types that are on in tests would come before those of fedlap.
    monkeypatch.setitem(MODELS, "mlp", inspect.unwrap(dense.mlp))
    monkeypatch.setattr(dense.Dense, "__init__", inspect.unwrap(dense.Dense.__init__))
    monkeypatch.setattr(dense, "check_l2", inspect.unwrap(dense.check_l2))
    rewrite_field(models / "models" / "about.json", "architecture", architecture)
    with expect_error(str(models)):
        Personals.load(models / "models").of_client("a").predict(np.zeros((1, 4)))


def test_damaged_tensors_under_a_good_checksum(models):
    path = models / "models" / "models.safetensors"
    for content in (
        b"",
        b"x",
        bytes(8),
        b"\xff" * 64,
        path.read_bytes()[:-1],
        (10**15).to_bytes(8, "little"),
    ):
        path.write_bytes(content)
        rewrite_field(models / "models" / "about.json", "sha256", files.hash_file(path))
        with expect_error("models.safetensors"):
            Personals.load(models / "models")


@pytest.mark.parametrize(
    "field", ["format", "experiment", "stack", "round", "sent", "seconds", "state", "bytes", "sha256"]
)
def test_checkpoints_under_a_good_checksum(field, tmp_path):
    checkpoints.write_checkpoint(tmp_path, progress(), Owner("e", ("e",)))
    for value in WRONG:
        rewrite_field(tmp_path / "round-00000001" / "manifest.json", field, value)
        if (field, value) in [("seconds", 7), ("seconds", 1.5), ("seconds", 10**30)]:
            checkpoints.read_checkpoint(tmp_path, 1, "e").load_progress([])
        else:
            with pytest.raises(UnusableCheckpointError):
                checkpoints.read_checkpoint(tmp_path, 1, "e")


@pytest.mark.parametrize("state", [7, "none", {}, ["server", 7], [["private.1"], ["x"]]], ids=str)
def test_a_state_that_names_what_is_not_there(state, tmp_path):
    checkpoints.write_checkpoint(tmp_path, progress(), Owner("e", ("e",)))
    rewrite_field(tmp_path / "round-00000001" / "manifest.json", "state", {"server": state, "private": None})
    with expect_error("is damaged", "--again"):
        checkpoints.read_checkpoint(tmp_path, 1, "e").load_progress([])


def test_deep_nesting(tmp_path, models):
    assert files.decode_with_checksum(DEEP.encode()) is None
    (tmp_path / "cell-reading.json").write_text(DEEP)
    with expect_error("nested too deeply"):
        ResultFolder(tmp_path).read("", "cell", "reading")
    (tmp_path / "ledger").write_text(DEEP + "\n")
    with expect_error("line 1 is damaged"):
        Ledger(tmp_path / "ledger")
    (tmp_path / "recipe.toml").write_text(f"x = {DEEP}")
    with expect_error("is not a TOML file"):
        Recipe.read(tmp_path / "recipe.toml")
    (models / "models" / "about.json").write_text(DEEP)
    with expect_error("about.json"):
        Personals.load(models / "models")


# Sizes that files claim.


def header(shape, kind="<f8"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": kind, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def archive(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def sparse(shape):
    buffer = io.BytesIO()
    save_npz(buffer, coo_array(([1.0], ([0], [1])), shape=shape))
    return buffer.getvalue()


MARKET = "%%MatrixMarket matrix {} real {}\n% a comment\n{}\n1 2 1.0\n"
HUGE_GRAPHS = {
    "huge.npy": header((10**6, 10**6)) + bytes(80),
    "negative.npy": header((-1, 5)) + bytes(80),
    "huge.npz": archive(data=header((10**12,)), shape=header((2,))),
    "vertices.npz": sparse((10**11, 10**11)),
    "vertices.mtx": MARKET.format("coordinate", "general", "100000000000 100000000000 1").encode(),
    "entries.mtx": MARKET.format("coordinate", "symmetric", "5 5 1000000000000").encode(),
    "dense.mtx": MARKET.format("array", "general", "1000000 1000000").encode(),
    "digits.mtx": MARKET.format("coordinate", "general", "9" * 5000 + " 5 1").encode(),
    "negative.mtx": MARKET.format("coordinate", "general", "-5 -5 1").encode(),
}


@pytest.mark.parametrize("name", HUGE_GRAPHS)
def test_graphs_that_claim_huge_sizes(name, tmp_path):
    (tmp_path / name).write_bytes(HUGE_GRAPHS[name])
    with within(20), expect_error(name):
        fl.graph.from_file(None, str(tmp_path / name))


def test_arrays_that_claim_huge_sizes(tmp_path):
    for content in (archive(x=header((10**9, 10**3)), y=header((1,)) + bytes(8)), header((10**12,))):
        (tmp_path / "my.npz").write_bytes(content)
        with expect_error("my.npz"):
            fl.data.load("file", path=str(tmp_path / "my.npz"))
        with expect_error("my.npz"):
            read_prediction_rows(str(tmp_path / "my.npz"), (2,), None)


def test_an_archive_that_needs_far_more_memory_than_its_file(tmp_path, monkeypatch):
    """As 3.9 MB for 4 GB; here with a smaller bound, so that the test makes no such file."""
    monkeypatch.setattr(files, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    rows = 1 << 19
    np.savez_compressed(tmp_path / "my.npz", x=np.zeros((rows, 4)), y=np.zeros(rows, int))
    assert (tmp_path / "my.npz").stat().st_size < 100_000
    with expect_error("my.npz", "claims", "save it uncompressed"):
        fl.data.load("file", path=str(tmp_path / "my.npz"))
    np.savez(tmp_path / "my.npz", x=np.zeros((rows, 4)), y=np.zeros(rows, int), client=np.arange(rows) % 2)
    assert len(fl.data.load("file", path=str(tmp_path / "my.npz")).clients) == 2
    pd.DataFrame({"x": np.zeros(rows), "y": np.zeros(rows, int)}).to_parquet(tmp_path / "my.parquet")
    assert (tmp_path / "my.parquet").stat().st_size < 40_000
    with expect_error("my.parquet", "claims"):
        fl.data.load("file", path=str(tmp_path / "my.parquet"), label="y")


def test_more_than_the_free_memory(tmp_path, monkeypatch):
    np.savez(tmp_path / "my.npz", x=np.zeros((8, 2)), y=np.arange(8) % 2)
    monkeypatch.setattr(files, "measure_free_memory", lambda: 100)
    with expect_error("more than the free memory"):
        fl.data.load("file", path=str(tmp_path / "my.npz"))


def test_held_content_reads_as_a_file_does():
    content = bytes(range(256))
    one, other = array_files._MemoryFile(content), io.BytesIO(content)
    for offset, whence, size in ((3, 0, 5), (-7, 2, 20), (2, 1, 1), (300, 0, 4), (0, 0, -1)):
        assert one.seek(offset, whence) == other.seek(offset, whence)
        assert one.read(size) == other.read(size)
        assert one.tell() == other.tell()
    with pytest.raises(OSError, match="cannot seek to"):
        one.seek(-1)


# What is no regular file.


READERS = {
    "my.csv": lambda path: fl.data.load("file", path=path, label="y"),
    "my.parquet": lambda path: fl.data.load("file", path=path, label="y"),
    "my.npz": lambda path: fl.data.load("file", path=path),
    "rows.csv": lambda path: read_prediction_rows(path, (2,), None),
    "graph.csv": lambda path: fl.graph.from_file(None, path),
    "graph.mtx": lambda path: fl.graph.from_file(None, path),
    "recipe.toml": lambda path: Recipe.read(RECIPE_FOLDER / path),
    "experiment.toml": lambda path: read_experiment(RECIPE_FOLDER / path),
    "ledger.jsonl": lambda path: Ledger(RECIPE_FOLDER / path),
    "a-b.json": lambda path: ResultFolder((RECIPE_FOLDER / path).parents[1]).read(
        (RECIPE_FOLDER / path).parent.name, "a", "b"
    ),
    "rounds.jsonl": lambda path: RunFolder((RECIPE_FOLDER / path).parent).read_scores(),
    "diverged.json": lambda path: RunFolder((RECIPE_FOLDER / path).parent).read_failure(),
    "about.json": lambda path: Personals.load((RECIPE_FOLDER / path).parent),
}  # `FOLDER /` makes a path of an absolute name


@pytest.mark.parametrize("name", READERS)
def test_fifos_and_devices_and_folders_are_refused(name, tmp_path):
    path = tmp_path / name
    (tmp_path / "models.safetensors").write_bytes(b"")
    os.mkfifo(path)
    with within(5), expect_error(name):
        READERS[name](str(path))
    path.unlink()
    path.mkdir()
    with expect_error(name):
        READERS[name](str(path))
    path.rmdir()
    path.symlink_to("/dev/zero")
    with within(5), expect_error(name):
        READERS[name](str(path))


def test_a_fifo_is_not_appended_to(tmp_path):
    os.mkfifo(tmp_path / "rounds.jsonl")
    with within(5), pytest.raises(OSError, match="FIFO"):
        files.open_append(tmp_path / "rounds.jsonl")


# Weights.


@pytest.mark.parametrize("weight", [1e308, 1e31, float("inf"), float("nan")])
def test_weights_beyond_reason(weight, tmp_path):
    path = tmp_path / "graph.csv"
    path.write_text(f"a,b,{weight}\nb,c,1\n")
    matrix = np.array([[0, weight], [weight, 0]])
    for make in (
        lambda: fl.graph.from_file(None, str(path)),
        lambda: fl.Graph.from_edges([("a", "b", weight)]),
        lambda: fl.Graph.from_matrix(matrix),
        lambda: fl.Graph.complete("abc", weight),
        lambda: fl.Graph.ring("abc", weight),
        lambda: fl.Graph.star("abc", weight, server=True),
    ):
        with expect_error("weight"):
            make()


def test_the_largest_weight_is_used():
    graph = fl.Graph.complete([str(k) for k in range(100)], 1e30)
    assert 0 < graph.rho < np.inf
    assert bool(graph.apply_laplacian(torch.randn(100, 2)).isfinite().all())
