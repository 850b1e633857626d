"""Graphs from places: neighbours by great circle, and by height if places have one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.data.places import EARTH_RADIUS_KM, Places
from fedlap.graph import kernel, nearest
from graphs import edges_of, matrix_of
from property_settings import short_law as law
from random_inputs import random_arrays

CITIES = {"Oslo": (10.75, 59.91), "Bergen": (5.32, 60.39), "Tokyo": (139.69, 35.68), "Suva": (178.44, -18.14)}


def place(values, columns=("longitude", "latitude")):
    """Build a federation whose clients are at these places."""
    federation = fl.Federation.from_arrays(random_arrays([3] * len(values)), test_share=0.0)
    return replace(federation, places=Places.of(columns, values))


def compute_great_circle(a, b):
    """Distance by the haversine formula."""
    (lon, lat), (lon2, lat2) = np.radians(a), np.radians(b)
    h = np.sin((lat2 - lat) / 2) ** 2 + np.cos(lat) * np.cos(lat2) * np.sin((lon2 - lon) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(h))


def test_distances_of_cities():
    oslo, bergen, *_ = Places.of(("lon", "lat"), list(CITIES.values())).to_points()
    apart = np.linalg.norm(oslo - bergen)
    assert apart == pytest.approx(305, abs=1)  # kilometres
    assert apart == pytest.approx(compute_great_circle(CITIES["Oslo"], CITIES["Bergen"]), rel=1e-3)


@law
@given(st.integers(3, 25), st.integers(1, 4), st.integers(0, 10_000))
def test_neighbours_are_those_by_great_circle(size, k, seed):
    values = np.random.default_rng(seed).uniform([-180, -85], [180, 85], size=(size, 2))
    distance = np.array([[compute_great_circle(a, b) for b in values] for a in values])
    np.fill_diagonal(distance, np.inf)
    k = min(k, size - 1)
    wanted = np.zeros((size, size))
    np.put_along_axis(wanted, np.argsort(distance, 1)[:, :k], 1.0, axis=1)
    graph = nearest(place(values), "places", neighbours=k)
    assert np.array_equal(matrix_of(graph), np.maximum(wanted, wanted.T))


def test_the_date_line_does_not_part_neighbours():
    federation = place([(179.9, 0.0), (-179.9, 0.0), (170.0, 0.0), (-170.0, 1.0)])
    assert (0, 1) in edges_of(nearest(federation, "places", neighbours=1))


def test_height_counts_as_asked():
    """Two stations below, two above; 20 km from valley to summit, 300 km from valley to valley."""
    values = [(0.0, 45.0, 500.0), (0.25, 45.0, 3_500.0), (4.0, 45.0, 500.0), (4.25, 45.0, 3_500.0)]
    federation = place(values, ("lon", "lat", "height"))

    def join(height_km):
        return edges_of(nearest(federation, "places", neighbours=1, height_km=height_km))

    assert join(0.0) == {(0, 1), (2, 3)}
    assert join(1.0) == {(0, 1), (2, 3)}
    assert join(150.0) == {(0, 2), (1, 3)}
    points = federation.places.to_points(100.0)
    assert points[1, 3] - points[0, 3] == pytest.approx(300.0)
    assert np.array_equal(federation.places.to_points(), points)


def test_weights_fall_with_kilometres():
    federation = place([(0.0, 0.0), (1.0, 0.0), (3.0, 0.0)])
    degree = 2 * EARTH_RADIUS_KM * np.sin(np.radians(1) / 2)
    weights = matrix_of(kernel(federation, "places", bandwidth=degree))
    assert weights[0, 1] == pytest.approx(np.exp(-0.5))
    near = nearest(federation, "places", neighbours=1, weights="gaussian", bandwidth=degree)
    assert matrix_of(near)[0, 1] == pytest.approx(np.exp(-0.5))


def test_radon_and_its_places():
    federation, borders = fl.data.load_with_graph("radon")
    near = nearest(federation, "places", neighbours=3)
    both = matrix_of(near) * matrix_of(borders)
    assert both.sum() > 0.9 * matrix_of(near).sum()  # nearly all of the nearest counties share a border


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nearest(fl.Federation.from_arrays(random_arrays([3, 3])), "places"),
            "graph: by = 'places', but the data have no places; set data.places",
        ),
        (
            lambda: nearest(place([(0.0, 0.0), (1.0, 1.0)]), "places", height_km=5.0),
            "graph: height_km = 5.0, but places have no height; name a third column",
        ),
        (
            lambda: nearest(place([(0.0, 0.0), (1.0, 1.0)]), "labels", height_km=5.0),
            "graph: height_km = 5.0 with by = 'labels'; remove height_km, or set by = 'places'",
        ),
        (
            lambda: nearest(place([(0.0, 0.0, 1.0)], ("a", "b", "c")), "places", height_km=-1.0),
            "graph: height_km = -1.0; expected a finite number of at least zero",
        ),
    ],
)
def test_what_places_cannot_give(call, message):
    with pytest.raises(fl.InputError) as error:
        call()
    assert str(error.value).startswith(message)
