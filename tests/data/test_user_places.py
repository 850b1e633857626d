"""Columns of users' tables that hold the place of each client."""

import numpy as np
import pandas
import pytest

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from fedlap.graph import nearest
from graphs import matrix_of

PLACES = {"n": (10.0, 60.0, 100.0), "s": (11.0, 59.0, 200.0), "e": (30.0, 50.0, 0.0)}


def make_frame(rows=8):
    rng = np.random.default_rng(0)
    names = [name for name in PLACES for _ in range(rows)]
    columns = {"town": names, "x": rng.normal(size=len(names)), "y": rng.normal(size=len(names))}
    for place, column in enumerate(("lon", "lat", "height")):
        columns[column] = [PLACES[name][place] for name in names]
    return pandas.DataFrame(columns)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "towns.csv"
    make_frame().to_csv(path, index=False)
    return str(path)


def load(frame, places=("lon", "lat", "height"), **settings):
    return fl.Federation.from_dataframe(frame, "town", "y", places=places, **settings)


def test_columns_of_places_are_no_features_unless_listed():
    federation = load(make_frame())
    assert federation.features == ("x",)
    assert federation.places.columns == ("lon", "lat", "height")
    assert np.array_equal(federation.places.values, list(PLACES.values()))
    assert load(make_frame(), ("lon", "lat")).features == ("x", "height")
    both = load(make_frame(), features=["x", "lat"])
    assert (both.features, both.places.values.shape) == (("x", "lat"), (3, 3))
    assert load(make_frame(), ()).places is None


@pytest.mark.filterwarnings("ignore::fedlap.DataWarning")
def test_places_follow_clients_that_are_left_out_and_rows_that_are_dropped():
    frame = make_frame()
    frame.loc[frame["town"] == "s", "x"] = np.nan
    frame.loc[0, ["lon", "lat"]] = np.nan  # other rows of the client have its place
    federation = load(frame, missing="drop", skip_empty=True)
    assert federation.clients == ("n", "e")
    assert np.array_equal(federation.places.values, [PLACES["n"], PLACES["e"]])


def test_test_rows_need_no_places():
    frame = make_frame()
    federation = load(frame, test=frame[["town", "x", "y"]].iloc[::4])
    assert np.array_equal(federation.places.values, list(PLACES.values()))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("lat", 61.0, "client 'n' has several values in column 'lat' of places; use one place per client"),
        ("height", "high", "client 'n' has a cell in column 'height' of places that is not a number"),
        ("lon", 200.0, "client 'n' has several values"),
    ],
)
def test_a_client_is_at_one_place(column, value, message):
    frame = make_frame().astype({column: object})
    frame.loc[1, column] = value
    with pytest.raises(fl.InputError, match=message) as error:
        load(frame)
    assert "\n" not in str(error.value)


def test_a_client_without_a_place_is_named():
    frame = make_frame()
    frame.loc[frame["town"] == "e", "lat"] = np.nan
    with pytest.raises(fl.InputError, match="client 'e' has no value in column 'lat' of places; fill it in"):
        load(frame)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (("lon", "latt"), "unknown column of the data frame 'latt'; did you mean 'lat'"),
        (("lon",), "expected two or three different columns: longitude, latitude, height"),
        ("lon", r"places = 'lon'; expected a list, as in \['lon'\]"),
        (("height", "lat"), "'height' of places is outside -180 to 180 degrees of longitude"),
    ],
)
def test_columns_that_cannot_be_places(places, message):
    with pytest.raises(fl.InputError, match=message):
        load(make_frame(), places)


def test_places_need_clients():
    with pytest.raises(fl.InputError, match="places need a column of clients"):
        fl.Federation.from_dataframe(
            make_frame(), None, "y", places=["lon", "lat"], drop=["town"], partition=fl.partition.Iid(2)
        )


def test_a_file_and_the_command_line(file, call, tmp_path):
    shared = ["--data", file, "--client", "town", "--label", "y", "--graph", "nearest"]
    shared += ["--set", "graph.neighbours=1"]
    written = tmp_path / "near.csv"
    code, _, err = call(
        "graph", "make", str(written), *shared, "--set", "graph.places=lon,lat,height", out=False
    )
    assert code == 0, err
    assert {tuple(line.split(",")[:2]) for line in written.read_text().split()} == {("n", "s"), ("s", "e")}
    code, _, err = call("run", *shared, "--set", "graph.places=lon, lat", "--rounds", "1")
    assert code == 0, err
    code, _, err = call("run", *shared, "--set", "graph.by=places", "--rounds", "1")
    assert (code, err.count("\n")) == (2, 1)
    assert "the data have no places; set data.places" in err
    _, _, err = call("run", *shared, "--set", "graph.places=lon,latt")
    assert err.startswith("error: graph.places: unknown column of ")
    _, _, err = call("run", *shared, "--set", "data.places=lon,latt")
    assert err.startswith("error: data.places: unknown column of ")


def test_an_experiment_describes_its_places(file):
    data = {"name": "file", "path": file, "client": "town", "label": "y"}
    graph = {"name": "nearest", "by": "places", "neighbours": 1, "height_km": 0.0}
    experiment = Experiment.of({"data": {**data, "places": ["lon", "lat", "height"]}, "graph": graph})
    assert Experiment.of(experiment.describe()) == experiment
    assert "places" not in Experiment.of({"data": data}).data
    federation, known = experiment.load()
    built = experiment.build_graph(federation, known)
    assert np.array_equal(
        matrix_of(built), matrix_of(nearest(federation, "places", neighbours=1, height_km=0.0))
    )
