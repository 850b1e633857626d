"""Places of clients: they follow their clients, and wrong ones are refused."""

from dataclasses import replace

import numpy as np
import pytest

import fedlap as fl
from fedlap.data.places import Places
from fedlap.data.table import Table
from random_inputs import random_arrays
from table_rows import from_arrays

COLUMNS = ("lon", "lat")
PLACES = [(1.0, 50.0), (2.0, 51.0), (3.0, 52.0)]


def make_federation():
    federation = from_arrays(random_arrays([12, 15, 9]), test_share=0.25)
    return replace(federation, places=Places.of(COLUMNS, PLACES))


def test_places_follow_their_clients():
    federation = make_federation()
    assert federation.places.columns == COLUMNS
    assert federation.places.values.dtype == np.float64
    for other in (federation.fold(3, 0), federation.scarce(), federation.standardize("pooled")):
        assert np.array_equal(other.places.values, PLACES)
    turned = federation.reorder(["c", "a", "b"])
    assert np.array_equal(turned.places.values, [PLACES[2], PLACES[0], PLACES[1]])
    assert np.array_equal(turned.reorder(federation.clients).places.values, PLACES)
    assert federation.pool_clients().places is None


def test_natural_clients_of_a_table_retain_their_places():
    arrays = np.zeros((4, 2)), np.array([0, 1, 0, 1])
    table = replace(Table.of(arrays, ["a", "b", "a", "b"]), places=Places.of(COLUMNS, PLACES[:2]))
    assert np.array_equal(fl.Federation.from_table(table).places.values, PLACES[:2])
    assert fl.Federation.from_table(table, fl.partition.Iid(2)).places is None


def test_places_are_copied():
    values = np.array(PLACES)
    places = Places.of(COLUMNS, values)
    values[:] = 0
    assert np.array_equal(places.values, PLACES)


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        (("lon",), [[1.0]], "expected two or three different columns: longitude, latitude, height"),
        (("lon", "lon"), [[1.0, 2.0]], "expected two or three different columns"),
        (COLUMNS, [1.0, 2.0], r"places have shape \(2,\)"),
        (COLUMNS, [[1.0, 2.0, 3.0]], r"places have shape \(1, 3\)"),
        (COLUMNS, [[1.0, np.nan]], "NaN or infinite"),
        (COLUMNS, [["east", "north"]], "places are not numbers"),
        (("lat", "lon"), [[45.0, -93.0]], "column 'lon' of places is outside -90 to 90 degrees of latitude"),
        (COLUMNS, [[181.0, 0.0]], "column 'lon' of places is outside -180 to 180 degrees of longitude"),
    ],
)
def test_wrong_places_are_refused(columns, values, message):
    with pytest.raises(fl.InputError, match=message) as error:
        Places.of(columns, values)
    assert "\n" not in str(error.value)


def test_heights_have_no_limit():
    assert Places.of(("x", "y", "z"), [[-180.0, 90.0, 8_849.0]]).values.shape == (1, 3)


def test_a_federation_has_one_place_per_client():
    federation = make_federation()
    with pytest.raises(fl.InputError, match="2 places for 3 clients; pass one place per client"):
        replace(federation, places=Places.of(COLUMNS, PLACES[:2]))
