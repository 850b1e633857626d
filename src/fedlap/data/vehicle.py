"""Vehicle events of the SensIT experiment (Duarte and Hu, JPDC 64(7), 2004): 23 sensors, 2 kinds of vehicle.

A row is 50 acoustic and 50 seismic features of one event; the label is the kind of vehicle. A client is a
sensor. A sensor's run counts only if its folder has exactly two files of features, one acoustic, one seismic.
"""

import io
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from fedlap.data.archives import Members, read_zip
from fedlap.data.cache import Arrays
from fedlap.data.distribution import Distribution
from fedlap.data.download import OfficialFile, compute_sha256
from fedlap.data.table import Table
from fedlap.errors import InputError

VEHICLE_ARCHIVE: Final = "event.zip"
VEHICLE_LABELS: Final = ("aav", "dw")
VEHICLE_FEATURES_PER_CHANNEL: Final = 50  # These are the first columns of a file; the others mark the label.

VEHICLE_FEATURE_FILE: Final = re.compile(
    r"events/runs/(?P<run>(aav|dw)\d+)/n(?P<node>\d+)/(?P=run)evfeat\d+_\d+_(?P<channel>\d)\.txt"
)
# The SHA-256 of the lines "SHA-256, two spaces, name" of all files of features, sorted by name.
VEHICLE_MANIFEST_SHA256: Final = "73707db1399168e2687b512e900acbdf445ca803334717c8bb7acef378469f7a"


def load_vehicle() -> Table:
    """Load two kinds of vehicle, measured by 23 acoustic and seismic sensors; a client is a sensor."""
    arrays = VEHICLE_DISTRIBUTION.load_arrays()
    return Table.of_numbered_clients(arrays["x"], arrays["y"], VEHICLE_LABELS, arrays["node"])


def _read_members(path: Path) -> Members:
    members = read_zip(path, lambda name: VEHICLE_FEATURE_FILE.fullmatch(name) is not None, path.name)
    lines = "".join(f"{compute_sha256(members[name])}  {name}\n" for name in sorted(members))
    if (found := compute_sha256(lines.encode())) != VEHICLE_MANIFEST_SHA256:
        raise InputError(
            f"{path.name}: its {len(members)} files of features have the joint SHA-256 {found}, "
            f"expected {VEHICLE_MANIFEST_SHA256}"
        )
    return members


def _check_archive(path: Path) -> None:
    _read_members(path)


def _read_arrays(paths: Mapping[str, Path]) -> Arrays:
    folders: dict[tuple[str, int], dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for name, content in sorted(_read_members(paths[VEHICLE_ARCHIVE]).items()):
        found = VEHICLE_FEATURE_FILE.fullmatch(name)
        assert found is not None  # Only members that match were read.
        folders[found["run"], int(found["node"])][found["channel"]].append(content)
    x, y, node = [], [], []
    for (run, sensor), channels in sorted(folders.items()):
        if sorted((channel, len(files)) for channel, files in channels.items()) != [("1", 1), ("2", 1)]:
            continue
        acoustic, seismic = (np.loadtxt(io.BytesIO(channels[channel][0]), ndmin=2) for channel in "12")
        x.append(np.hstack([table[:, :VEHICLE_FEATURES_PER_CHANNEL] for table in (acoustic, seismic)]))
        y += [VEHICLE_LABELS.index(run.rstrip("0123456789"))] * len(acoustic)
        node += [sensor] * len(acoustic)
    return {"x": np.concatenate(x), "y": np.array(y), "node": np.array(node)}


VEHICLE_DISTRIBUTION: Final = Distribution(
    name="vehicle",
    version=1,
    official_files=(
        OfficialFile(
            VEHICLE_ARCHIVE, ("http://www.ecs.umass.edu/~mduarte/images/event.zip",), _check_archive
        ),
    ),
    read=_read_arrays,
)
