"""Vehicle events of the SensIT experiment (Duarte and Hu, JPDC 64(7), 2004): 23 sensors, 2 kinds of vehicle.

A row is 50 acoustic and 50 seismic features of what a sensor noticed; the label is the kind of vehicle. A
client is a sensor. A sensor's run counts only if its folder holds exactly two files of features, one of each
kind.
"""

import io
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from fedlap.data.archives import Members, from_zip
from fedlap.data.cache import Arrays
from fedlap.data.distribution import Distribution
from fedlap.data.download import Original, sha256
from fedlap.data.table import Table
from fedlap.errors import InputError

ARCHIVE: Final = "event.zip"
VEHICLES: Final = ("aav", "dw")
FEATURES: Final = 50  # the first columns of a file; the others mark the label

FEATURE_FILE: Final = re.compile(
    r"events/runs/(?P<run>(aav|dw)\d+)/n(?P<node>\d+)/(?P=run)evfeat\d+_\d+_(?P<channel>\d)\.txt"
)
# Of the lines "SHA-256, two spaces, name" of all files of features, sorted by name.
MANIFEST: Final = "73707db1399168e2687b512e900acbdf445ca803334717c8bb7acef378469f7a"


def vehicle() -> Table:
    """Two kinds of vehicle, heard and felt by 23 sensors; a client is a sensor."""
    arrays = DISTRIBUTION.arrays()
    return Table.numbered(arrays["x"], arrays["y"], VEHICLES, arrays["node"])


def _members(path: Path) -> Members:
    members = from_zip(path, lambda name: FEATURE_FILE.fullmatch(name) is not None, path.name)
    lines = "".join(f"{sha256(members[name])}  {name}\n" for name in sorted(members))
    if (found := sha256(lines.encode())) != MANIFEST:
        raise InputError(
            f"{path.name}: its {len(members)} files of features have the joint SHA-256 {found}, "
            f"the official ones {MANIFEST}"
        )
    return members


def _check(path: Path) -> None:
    _members(path)


def _read(paths: Mapping[str, Path]) -> Arrays:
    folders: dict[tuple[str, int], dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for name, content in sorted(_members(paths[ARCHIVE]).items()):
        found = FEATURE_FILE.fullmatch(name)
        assert found is not None  # by the choice of members
        folders[found["run"], int(found["node"])][found["channel"]].append(content)
    x, y, node = [], [], []
    for (run, sensor), channels in sorted(folders.items()):
        if sorted((channel, len(files)) for channel, files in channels.items()) != [("1", 1), ("2", 1)]:
            continue
        acoustic, seismic = (np.loadtxt(io.BytesIO(channels[channel][0]), ndmin=2) for channel in "12")
        x.append(np.hstack([acoustic[:, :FEATURES], seismic[:, :FEATURES]]))
        y += [VEHICLES.index(run.rstrip("0123456789"))] * len(acoustic)
        node += [sensor] * len(acoustic)
    return {"x": np.concatenate(x), "y": np.array(y), "node": np.array(node)}


DISTRIBUTION: Final = Distribution(
    name="vehicle",
    version=1,
    originals=(Original(ARCHIVE, ("http://www.ecs.umass.edu/~mduarte/images/event.zip",), _check),),
    read=_read,
)
