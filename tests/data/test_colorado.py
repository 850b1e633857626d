"""Climate of Colorado: read from its official file, drawn by seed and name, and worth its graph."""

from dataclasses import replace

import numpy as np
import pandas
import pytest
import rdata

import fedlap as fl
from disk import make_tar
from downloads import closing, naming, put, serving  # noqa: F401 — fixtures
from fedlap.data import SOURCES, colorado
from fedlap.data.colorado import COLORADO_DISTRIBUTION, load_colorado
from fedlap.data.download import compute_sha256, get_data_folders
from graphs import matrix_of

GENUINE = get_data_folders()[:-1]  # those of $FEDLAP_DATA, without the cache folder
STATIONS = 9


def make_rda(path):
    """Write a small copy of the official file: three years, nine stations, one with four months alone."""
    rng = np.random.default_rng(0)
    temperature = rng.normal(15, 10, size=(3, 12, STATIONS))
    temperature[:, :, 4] = np.nan
    temperature[1, :4, 4] = 20.0
    temperature[0, 0, 0] = np.nan
    objects = {
        "CO.tmax": temperature,
        "CO.loc": pandas.DataFrame({"lon": -105.0 - np.arange(STATIONS), "lat": np.full(STATIONS, 39.0)}),
        "CO.elev": np.full(STATIONS, 1_500.0),
        "CO.names": np.array([f"S{k}   " for k in range(STATIONS - 2)] + ["TWIN", "TWIN"]),
        "CO.id": np.array([f"05{k}" for k in range(STATIONS)]),
    }
    rdata.write_rda(path, objects)
    return path.read_bytes(), temperature


@pytest.fixture
def small(folders, tmp_path, monkeypatch):
    """Put a small copy into a data folder as the official file; return its temperatures."""
    content, temperature = make_rda(tmp_path / "made.rda")
    monkeypatch.setattr(colorado, "COLORADO_SHA256", {colorado.COLORADO_FILE: compute_sha256(content)})
    (folder,) = folders("own")
    put(folder, content, "colorado", colorado.COLORADO_FILE)
    return temperature


@pytest.mark.usefixtures("alone")
def test_rows_are_the_months_that_were_measured(small):
    connected = load_colorado(months=6, test_months=100)
    table = connected.table
    assert table.clients == ("S0", "S1", "S2", "S3", "S5", "S6", "TWIN 057", "TWIN 058")  # S4 has too few
    assert table.places.columns == ("longitude", "latitude", "height")
    assert table.places.values[4].tolist() == [-110.0, 39.0, 1_500.0]
    for k, station in enumerate([0, 1, 2, 3, 5, 6, 7, 8]):
        rows = table.owner == k
        values = small[:, :, station]
        angle = 2 * np.pi * np.tile(np.arange(12), 3)[np.isfinite(values).ravel()] / 12
        waves = [np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)]
        assert np.allclose(table.x[rows], np.column_stack(waves))
        assert np.array_equal(table.y[rows, 0], values[np.isfinite(values)])
        assert int((~table.test[rows]).sum()) == 6
    assert matrix_of(connected.graph)[0].tolist() == [0, 1, 1, 1, 1, 1, 0, 0]  # five nearest on a line


@pytest.mark.usefixtures("alone", "small")
def test_months_are_drawn_by_seed_and_name():
    one, again, other = (load_colorado(6, 10, seed).table for seed in (0, 0, 1))
    assert np.array_equal(one.y, again.y)
    assert not np.array_equal(one.y, other.y)
    assert [int((one.owner == k).sum()) for k in range(8)] == [16] * 8
    more = load_colorado(8, 10).table  # six of the eight are the training rows above
    assert set(one.y[~one.test].flatten().tolist()) < set(more.y[~more.test].flatten().tolist())


@pytest.mark.usefixtures("alone", "small")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"months": 0}, "colorado: months = 0; expected an integer of at least 1"),
        ({"test_months": 0}, "colorado: test_months = 0; expected an integer of at least 1"),
        ({"months": 36}, "months = 36, but no station has more than 36; use fewer"),
    ],
)
def test_months_that_cannot_be(settings, message):
    with pytest.raises(fl.InputError) as error:
        load_colorado(**settings)
    assert str(error.value) == message


@pytest.mark.usefixtures("alone", "small")
def test_it_is_drawn_already():
    with pytest.raises(fl.InputError, match="fixed clients and test rows; remove partition and test_share"):
        fl.data.load("colorado", test_share=0.5)


@pytest.mark.usefixtures("alone")
def test_the_package_of_r_is_downloaded_and_its_file_checked(serve, call, folders, tmp_path, monkeypatch):
    content, temperature = make_rda(tmp_path / "made.rda")
    monkeypatch.setattr(colorado, "COLORADO_SHA256", {colorado.COLORADO_FILE: compute_sha256(content)})
    folders("own")
    member = f"{colorado.COLORADO_FOLDER}{colorado.COLORADO_FILE}"
    wrong, right = (serve(make_tar({member: data})) for data in (b"other", content))
    (file,) = COLORADO_DISTRIBUTION.official_files
    moved = replace(file, addresses=(wrong.address, right.address))
    distribution = replace(COLORADO_DISTRIBUTION, official_files=(moved,))
    monkeypatch.setitem(SOURCES, "colorado", replace(SOURCES["colorado"], distribution=distribution))
    code, out, _ = call("data", "get", "colorado", out=False)
    assert (code, out) == (0, f"colorado: ready, {int(np.isfinite(temperature).sum())} rows\n")
    assert (tmp_path / "own" / "colorado" / colorado.COLORADO_ARCHIVE).is_file()


@pytest.mark.usefixtures("alone", "small")
def test_without_rdata_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("fedlap.data.distribution.find_spec", lambda name: None)
    with pytest.raises(fl.InputError, match=r"needs rdata; run pip install 'fedlap\[colorado\]'"):
        load_colorado()


@pytest.fixture
def genuine(tmp_path, monkeypatch):
    """Read the genuine file, into a cache of this test alone; skip where it is absent."""
    if not any((folder / "colorado" / colorado.COLORADO_FILE).is_file() for folder in GENUINE):
        pytest.skip("genuine files of colorado are absent; set FEDLAP_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("genuine")
def test_the_genuine_stations():
    connected = load_colorado()
    table = connected.table
    assert len(table.clients) == 375  # one of 376 has ten months
    arrays = COLORADO_DISTRIBUTION.load_arrays()
    assert (len(arrays["names"]), len(arrays["y"])) == (376, 178_337)
    counts = np.bincount(table.owner[~table.test])
    assert set(counts.tolist()) == {12}
    assert np.bincount(table.owner[table.test]).min() == 8
    boulder = table.clients.index("BOULDER")
    assert table.places.values[boulder] == pytest.approx([-105.27, 40.0, 1_672], abs=0.1)
    assert (connected.graph.edges, connected.graph.components) == (1_163, 1)
    january, july = (table.y[np.isclose(table.x[:, 0], wave)] for wave in (1, -1))
    assert float(july.mean()) == pytest.approx(30, abs=2)
    assert float(january.mean()) == pytest.approx(4, abs=2)


@pytest.mark.slow
@pytest.mark.usefixtures("genuine")
def test_nearby_stations_help():
    """Measured with η = 0.1, root mean squared error in °C: nearby 2.5, shuffled 3.2, alone 3.2, one 4.8."""
    errors = {name: [] for name in ("known", "shuffled", "complete", "local", "global")}
    for seed in range(5):
        federation, known = fl.data.load_with_graph("colorado", seed)
        mean_degree = 2 * known.edges / known.size
        graphs = {
            "known": known,
            "shuffled": known.shuffle(seed),
            "complete": fl.Graph.complete(federation.clients, mean_degree / known.size),
        }
        methods = {
            name: fl.FedU(graph, lr=0.1, strength=0.1, mixing="implicit") for name, graph in graphs.items()
        }
        for name, method in {**methods, "local": fl.Local(lr=0.1), "global": fl.Global(lr=0.1)}.items():
            result = fl.fit(
                method, federation, fl.models.linear(), rounds=150, batch="all", seed=seed, evaluate_every=150
            )
            errors[name].append(result.scores[-1].rmse)
    for name in ("shuffled", "complete", "local", "global"):
        gain = np.array(errors[name]) - errors["known"]
        assert gain.min() > 0.3, name
    assert np.mean(errors["known"]) == pytest.approx(2.5, abs=0.1)
