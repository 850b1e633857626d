"""The paper's four data sets, on their genuine files.

They are looked for in $FEDLAP_DATA; a test whose files are absent is skipped, and conftest counts how many.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.data import SOURCES
from fedlap.data.download import get_data_folders

GENUINE = get_data_folders()[:-1]  # those of $FEDLAP_DATA, without the cache folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder for this module alone, so that everything is read from the genuine files."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture
def genuine(cache):
    """Loads a set, or skips where its files are absent."""

    def load(name, seed=0, **settings):
        need(name)
        return fl.data.load(name, seed, **settings)

    return load


def need(name):
    distribution = SOURCES[name].distribution
    files = distribution.unpacked or tuple(original.name for original in distribution.official_files)
    if not all(any((folder / name / file).is_file() for folder in GENUINE) for file in files):
        pytest.skip(f"genuine files of {name} are absent; set FEDLAP_DATA")


def rows(federation):
    return (federation.train.count + federation.test.count).double()


def everything(federation):
    return torch.bincount(torch.cat([federation.train.y, federation.test.y]), minlength=federation.outputs)


@pytest.mark.parametrize(
    ("name", "clients", "total", "mean", "std", "inputs"),
    [
        ("har", 30, 10_299, 343.3, 35.1, (561,)),
        ("vehicle", 23, 48_303, 2_100.1, 380.58, (100,)),
    ],
)
def test_natural_federations_are_the_papers(name, clients, total, mean, std, inputs, genuine):
    federation = genuine(name)
    count = rows(federation)
    assert len(federation.clients) == clients
    assert int(count.sum()) == total
    assert float(count.mean()) == pytest.approx(mean, abs=0.05)
    assert float(count.std(correction=0)) == pytest.approx(std, abs=0.05 if name == "har" else 0.005)
    assert federation.inputs == inputs
    assert sorted(federation.clients, key=int) == list(federation.clients)
    share = federation.test.count / count
    assert bool(((share - 0.25).abs() <= 0.5 / count + 1e-9).all())


def test_human_activity_labels(genuine):
    federation = genuine("har")
    assert everything(federation).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert federation.labels == (
        "WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING",
    )  # fmt: skip


def test_human_activity_values_are_those_of_the_files(genuine):
    """The first row of person 1 in the official training file, and every value within its stated bounds."""
    genuine("har")
    table = SOURCES["har"].make()
    assert table.x[0, :3].tolist() == [2.8858451e-001, -2.0294171e-002, -1.3290514e-001]
    assert table.clients[int(table.owner[0])] == "1"
    assert table.labels[int(table.y[0])] == "STANDING"
    assert float(table.x.abs().max()) <= 1


def test_a_vehicle_is_known_by_what_is_heard_and_what_is_felt(genuine):
    federation = genuine("vehicle")
    assert federation.labels == ("aav", "dw")
    assert everything(federation).tolist() == [21_880, 26_423]
    table = SOURCES["vehicle"].make()
    path = next(folder / "vehicle" / "event.zip" for folder in GENUINE if (folder / "vehicle").is_dir())
    with zipfile.ZipFile(path) as archive:
        for folder, label, rows in (("aav10/n1", 0, slice(0, 167)), ("dw9/n61", 1, slice(-1, None))):
            run, node = folder.split("/n")
            heard, felt = (
                np.array(
                    [
                        line.split()[:50]
                        for line in archive.read(
                            f"events/runs/{folder}/{run}evfeat{node}_1_{channel}.txt"
                        ).splitlines()
                    ],
                    float,
                )
                for channel in (1, 2)
            )
            assert np.array_equal(table.x[rows].numpy(), np.hstack([heard, felt])[rows])
            assert set(table.y[rows].tolist()) == {label}
            assert {table.clients[k] for k in table.owner[rows].tolist()} == {node}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clients", "labels_per_client", "total", "mean", "std", "spread"),
    [("mnist", 100, 2, 61_866, 619, 343.8, 90.0), ("cifar10", 20, 3, 54_572, 2_729, 851.4, 550.0)],
)
def test_cut_federations_are_close_to_the_papers(
    name, clients, labels_per_client, total, mean, std, spread, genuine
):
    """Sizes are drawn, so that their deviation is the paper's on average and differs between seeds."""
    deviations = []
    for seed in range(5):
        federation = genuine(name, seed)
        count = rows(federation)
        assert len(federation.clients) == clients
        assert int(count.sum()) == total
        assert float(count.mean()) == pytest.approx(mean, abs=0.5)
        deviations.append(float(count.std(correction=0)))
        for part in (federation.train, federation.test):
            for k in range(clients):
                held = part.client(k)[1].unique().tolist()
                assert set(held) <= {(k + j) % 10 for j in range(labels_per_client)}
                assert len(held) == labels_per_client
    assert max(abs(deviation - std) for deviation in deviations) < spread
    assert np.mean(deviations) == pytest.approx(std, rel=0.15)


def test_mnist_files_are_the_official_ones(genuine):
    genuine("mnist")
    official = {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }
    for name, digest in official.items():
        path = next(folder / "mnist" / name for folder in GENUINE if (folder / "mnist" / name).is_file())
        assert hashlib.md5(path.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(
    ("name", "first", "counts", "mean", "std"),
    [
        (
            "mnist",
            [5, 0, 4, 1, 9],
            [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
            [0.1309],
            [0.3084],
        ),
        (
            "cifar10",
            [6, 9, 9, 4, 1],
            [6000] * 10,
            [0.4919, 0.4827, 0.4472],
            [0.2470, 0.2434, 0.2616],
        ),
    ],
)
def test_pictures_are_bytes_of_ten_labels(name, first, counts, mean, std, genuine):
    """Known moments of all pixels show that channels, rows and columns are where they belong."""
    genuine(name)
    table = SOURCES[name].make()
    assert table.x.dtype == torch.uint8
    assert table.y[:5].tolist() == first
    assert torch.bincount(table.y).tolist() == counts
    pixels = table.x[:: 1 if name == "mnist" else 4].float() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(mean, abs=2e-3)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(std, abs=2e-3)
    # Neighbouring pixels are alike, along both sides of a picture.
    sample = pixels[:500]
    for near in (sample[..., 1:] - sample[..., :-1], sample[..., 1:, :] - sample[..., :-1, :]):
        assert float(near.abs().mean()) < 0.5 * float((sample - sample.mean()).abs().mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["har", "vehicle", "mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_two_loads_are_bit_identical(name, genuine, tmp_path, monkeypatch):
    """From the cached arrays, and read again into another cache folder."""
    one = genuine(name, 3)
    again = fl.data.load(name, 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reloaded = fl.data.load(name, 3)
    for other in (again, reloaded):
        for part, same in zip((one.train, one.test), (other.train, other.test), strict=True):
            assert torch.equal(part.row, same.row)
            assert torch.equal(part.store, same.store)
            assert torch.equal(part.y, same.y)
        assert torch.equal(one.scale.shift, other.scale.shift)
        assert torch.equal(one.scale.factor, other.scale.factor)


LOADING = """
import fedlap as fl
fl.data.load("cifar10")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_cifar10_stays_small(genuine, cache):
    """Under a gigabyte, Python and PyTorch included, once cached; pictures are mapped, not read."""
    federation = genuine("cifar10")
    assert federation.train.store is federation.test.store
    program = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=True)
    assert int(program.stdout) < 1_000_000  # kB, at the peak


@pytest.mark.slow
def test_human_activity_through_the_command_line(genuine, tmp_path):
    """The paper's convex setting reaches 98.5 % with the defaults, and the time is printed."""
    need("har")
    words = [
        "run",
        "--data",
        "har",
        "--algorithm",
        "fedu",
        "--model",
        "linear",
        "--local-epochs",
        "5",
        "--rounds",
        "200",
        "--out",
    ]
    done = subprocess.run(  # by itself, where nothing checks shapes
        [sys.executable, "-m", "fedlap.cli", *words, str(tmp_path), "--set", "evaluate_every=50"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "s of training" in done.stdout
    folder = Path(done.stdout.split("Stored in ")[1].strip())
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] >= 0.985


def test_a_data_set_can_be_described(genuine, call):
    need("har")
    code, out, _ = call("data", "describe", "har", "--json")
    assert code == 0
    about = json.loads(out)
    assert (about["clients"], about["rows"], about["labels"]["WALKING"]) == (30, 10_299, 1722)
    assert "Anguita" in about["citation"]
    assert Path(about["picture"]).read_bytes().startswith(b"\x89PNG")
