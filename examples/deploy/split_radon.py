"""Split radon into regions, as if four or eight authorities had its rows: a CSV file for each, and plans."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import fedlap as fl

REGIONS = ("northeast", "southeast", "southwest", "northwest")  # in a circle, as the plan's graph joins them
POINTS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
COLUMNS = ("county", "floor", "uranium", "log_radon")
PLAN = """\
name = "radon"
clients = ["northeast", "southeast", "southwest", "northwest"]
rounds = 50
seed = 0
batch = 20
evaluate_every = 10

[algorithm]
name = "fedu"
lr = 0.03

[model]
name = "linear"

[graph]
name = "ring"            # every region borders on two others

[data]
label = "log_radon"
features = ["floor", "uranium"]
task = "regression"
missing = "refuse"
scale = "pooled"
test_share = 0.25
"""
PEERS = """
[peers.addresses]        # on one machine, so that each peer has a port
northeast = "127.0.0.1:7451"
southeast = "127.0.0.1:7452"
southwest = "127.0.0.1:7453"
northwest = "127.0.0.1:7454"
"""


def split_radon(folder: Path) -> dict[str, Path]:
    """Write a CSV file per region, plan.toml and peers.toml into a folder; return the files by region.

    A region is a quarter of the map: counties north or south and east or west of the median house.
    """
    federation, place = load_houses()
    is_east, is_north = (place >= np.median(place, 0)).T
    region = np.where(is_east, np.where(is_north, 0, 1), np.where(is_north, 3, 2))
    paths = write_regions(folder, REGIONS, region, federation)
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    (folder / "peers.toml").write_text(PLAN.replace('"fedu"', '"dfedu"') + PEERS, encoding="utf-8")
    return paths


def split_compass(folder: Path) -> dict[str, Path]:
    """Write a CSV file per point of the compass, as seen from the median house; return the files by point."""
    federation, place = load_houses()
    centre = np.median(place, 0)
    east, north = ((place - centre) * (np.cos(np.radians(centre[1])), 1.0)).T
    sector = np.floor(np.degrees(np.arctan2(east, north)) / 45 + 0.5).astype(int) % len(POINTS)
    return write_regions(folder, POINTS, sector, federation)


def load_houses() -> tuple[fl.Federation, np.ndarray]:
    """Load radon, and longitude and latitude of every house, which are those of its county."""
    federation = fl.data.load("radon", features=["floor", "uranium"], test_share=0, scale="none")
    assert federation.places is not None
    return federation, federation.places.values[federation.train.find_owners()]


def write_regions(
    folder: Path, names: Sequence[str], region: np.ndarray, federation: fl.Federation
) -> dict[str, Path]:
    """Write the houses of each region into a CSV file; region: the number of each house's region."""
    owner = federation.train.find_owners()
    x, y = federation.train.x.tolist(), federation.train.y[:, 0].tolist()
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for number, name in enumerate(names):
        paths[name] = folder / f"{name}.csv"
        with paths[name].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for row in np.flatnonzero(region == number):
                writer.writerow([federation.clients[owner[row]], int(x[row][0]), x[row][1], y[row]])
    return paths


def main() -> None:
    """Write the files into the folder of the first argument, or into radon-regions."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "radon-regions")
    for name, path in split_radon(folder).items():
        rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
        print(f"{path}: {rows} houses of the {name}")
    print(f"{folder / 'plan.toml'}: the plan of a run with a server")
    print(f"{folder / 'peers.toml'}: the plan of a run without a server")


if __name__ == "__main__":
    main()
