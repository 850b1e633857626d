"""Split radon into four regions, as if four authorities had its rows: a CSV file for each, and a plan."""

import csv
import sys
from pathlib import Path

import numpy as np

import fedlap as fl

REGIONS = ("northeast", "southeast", "southwest", "northwest")  # in a circle, as the plan's graph joins them
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


def split_radon(folder: Path) -> dict[str, Path]:
    """Write a CSV file per region and plan.toml into a folder; return the files by region.

    A region is a quarter of the map: counties north or south and east or west of the median house.
    """
    federation = fl.data.load("radon", features=["floor", "uranium"], test_share=0, scale="none")
    owner = federation.train.find_owners()
    place = federation.places.values[owner]  # longitude and latitude of each house
    is_east, is_north = (place >= np.median(place, 0)).T
    region = np.where(is_east, np.where(is_north, 0, 1), np.where(is_north, 3, 2))
    x, y = federation.train.x.tolist(), federation.train.y[:, 0].tolist()
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for number, name in enumerate(REGIONS):
        paths[name] = folder / f"{name}.csv"
        with paths[name].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for row in np.flatnonzero(region == number):
                writer.writerow([federation.clients[owner[row]], int(x[row][0]), x[row][1], y[row]])
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    return paths


def main() -> None:
    """Write the files into the folder of the first argument, or into radon-regions."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "radon-regions")
    for name, path in split_radon(folder).items():
        rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
        print(f"{path}: {rows} houses of the {name}")
    print(f"{folder / 'plan.toml'}: the plan of the server")


if __name__ == "__main__":
    main()
