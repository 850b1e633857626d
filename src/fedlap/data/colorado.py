"""Monthly climate of Colorado, 1895 to 1997, from the R package fields: 376 stations.

A row is a month at a station: the mean daily maximum temperature in °C, to be predicted from the time of the
year. Few rows of a station are for training, drawn by the seed, so that its neighbours can help. Two stations
are joined if either is among the five nearest of the other, by place and height.
"""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from jaxtyping import Float64, Int64

from fedlap.data.archives import Members, check_members, read_tar
from fedlap.data.cache import Arrays
from fedlap.data.client_rows import concatenate_ranges
from fedlap.data.connected_table import ConnectedTable
from fedlap.data.distribution import Distribution
from fedlap.data.download import OfficialFile
from fedlap.data.places import Places
from fedlap.data.table import Table
from fedlap.errors import InputError, check_integer
from fedlap.graph.similarity import connect_nearest
from fedlap.randomness import digest_names, draws

COLORADO_ARCHIVE: Final = "fields_14.1.tar.gz"
COLORADO_FOLDER: Final = "fields/data/"
COLORADO_FILE: Final = "COmonthlyMet.rda"
COLORADO_SHA256: Final = {COLORADO_FILE: "5bcdd004aa8db0430fac663e992af2e33dbf63e72c3f206f999866e3f4c346e5"}
COLORADO_FEATURES: Final = ("cos_year", "sin_year", "cos_half_year", "sin_half_year")
COLORADO_PLACES: Final = ("longitude", "latitude", "height")
COLORADO_NEIGHBOURS: Final = 5


def load_colorado(months: int = 12, test_months: int = 48, seed: int = 0) -> ConnectedTable:
    """Load maximum temperatures of months; a client is a weather station, joined to those nearby.

    The features are the cosine and sine of the time of the year, with one and with two periods per year.

    months: number of training rows of each station; stations with no further month are left out.
    test_months: number of test rows of each station, at most; fewer if the station has fewer months.
    seed: seed of the draw of months.
    """
    check_integer("months", months, 1, scope="colorado")
    check_integer("test_months", test_months, 1, scope="colorado")
    arrays = COLORADO_DISTRIBUTION.load_arrays()
    count = np.bincount(arrays["station"], minlength=len(arrays["names"]))
    is_used = count > months
    if not is_used.any():
        raise InputError(
            f"months = {months}, but no station has more than {count.max()}; use fewer", field="months"
        )
    names = tuple(arrays["names"][is_used].tolist())
    chosen = is_used[arrays["station"]]
    place = _draw_positions(names, count[is_used], seed)
    chosen[chosen] = place < months + test_months
    is_test = torch.from_numpy(place[place < months + test_months] >= months)
    x = _compute_waves(arrays["month"][chosen])
    table = Table.of((x, arrays["y"][chosen]), test=is_test)
    station = (np.cumsum(is_used) - 1)[arrays["station"][chosen]]
    places = Places.of(COLORADO_PLACES, arrays["places"][is_used])
    table = replace(
        table,
        clients=names,
        owner=torch.from_numpy(station),
        features=COLORADO_FEATURES,
        target="tmax",
        places=places,
    )
    return ConnectedTable(table, connect_nearest(names, places.to_points(), COLORADO_NEIGHBOURS))


def _draw_positions(
    names: tuple[str, ...], count: Int64[np.ndarray, "client"], seed: int
) -> Int64[np.ndarray, "row"]:
    """Return the position of each row in a random order of its station's rows, drawn by seed and name."""
    counts = torch.from_numpy(count)
    order = draws(seed, "split").permutations(digest_names(names), 0, counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    position = torch.empty_like(order)
    position[first + order] = concatenate_ranges(torch.zeros_like(counts), counts)
    return np.asarray(position.numpy())


def _compute_waves(month: Int64[np.ndarray, "row"]) -> Float64[np.ndarray, "row feature"]:
    """Compute the features of months 0 to 11."""
    angle = 2 * np.pi * month / 12
    return np.column_stack([np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)])


def _read_members(paths: Mapping[str, Path]) -> Members:
    if COLORADO_ARCHIVE in paths:
        packed = read_tar(
            paths[COLORADO_ARCHIVE], lambda name: name.removeprefix(COLORADO_FOLDER) in COLORADO_SHA256
        )
        members = {name.removeprefix(COLORADO_FOLDER): content for name, content in packed.items()}
    else:
        members = {name: path.read_bytes() for name, path in paths.items()}
    check_members(members, COLORADO_SHA256, next(iter(paths.values())).name)
    return members


def _check_archive(path: Path) -> None:
    _read_members({COLORADO_ARCHIVE: path})


def _read_arrays(paths: Mapping[str, Path]) -> Arrays:
    import rdata  # an extra

    objects = rdata.read_rda(io.BytesIO(_read_members(paths)[COLORADO_FILE]))
    temperature = np.asarray(objects["CO.tmax"], dtype=np.float64).transpose(2, 0, 1)
    station, year, month = (axis.astype(np.int64) for axis in np.nonzero(np.isfinite(temperature)))
    coordinates = np.asarray(objects["CO.loc"], dtype=np.float64)
    names = [str(name).strip() for name in objects["CO.names"]]
    times = Counter(names)
    # Names of stations are cut off after twelve characters, so that some need their number too.
    unique = [
        f"{name} {number}" if times[name] > 1 else name
        for name, number in zip(names, objects["CO.id"], strict=True)
    ]
    return {
        "y": temperature[station, year, month],
        "station": station,
        "month": month,
        "places": np.column_stack([coordinates, np.asarray(objects["CO.elev"], dtype=np.float64)]),
        "names": np.array(unique),
    }


COLORADO_DISTRIBUTION: Final = Distribution(
    name="colorado",
    version=1,
    official_files=(
        OfficialFile(
            COLORADO_ARCHIVE,
            (f"https://cran.r-project.org/src/contrib/Archive/fields/{COLORADO_ARCHIVE}",),
            _check_archive,
        ),
    ),
    read=_read_arrays,
    unpacked=tuple(COLORADO_SHA256),
    package="rdata",
)
