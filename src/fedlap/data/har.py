"""Human Activity Recognition Using Smartphones (Anguita et al., ESANN 2013): 30 people, 6 activities.

A row is 561 features of a window of 2.56 s. A client is a person; the official training and test rows, which
have different people, are merged.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from fedlap.data.archives import Members, check_members, read_zip
from fedlap.data.cache import Array, Arrays
from fedlap.data.distribution import Distribution
from fedlap.data.download import OfficialFile
from fedlap.data.table import Table

HAR_ARCHIVE: Final = "UCI HAR Dataset.zip"
HAR_FOLDER: Final = "UCI HAR Dataset/"

HAR_SHA256: Final = {
    "activity_labels.txt": "f6e6b292704438261f0283b2a82659ab0661447dc16520938bdf379ed1bf8de0",
    "train/X_train.txt": "9c1246099c8d5463779eec5a3845cc3898df9d8c715441ab2a1232d4421fc42f",
    "train/y_train.txt": "415b3357e2e2d5e70a45c781947c6bdd80e0410a579d862eedcd6bbce3c694ef",
    "train/subject_train.txt": "66e1e2fbe9b396fa5155f531dc3348c803f503be663e2318772d49947db9153a",
    "test/X_test.txt": "99035209add50d17650e847d8a4658d784a5707466ebb7c2deb97c28e5250a78",
    "test/y_test.txt": "2a94cb53ca46b956c1b2aebd4a09a72badd8a8e9ea9cdfe9f31b3306a08666bb",
    "test/subject_test.txt": "63b8c577f4a85431c06bd87f6384608c90a9f72f05c7956dd21255dc63515c07",
}


def load_har() -> Table:
    """Load activities of 30 people, from their phones' sensors; a client is a person."""
    arrays = HAR_DISTRIBUTION.load_arrays()
    return Table.of_numbered_clients(
        arrays["x"], arrays["y"], tuple(arrays["labels"].tolist()), arrays["person"]
    )


def _read_members(path: Path) -> Members:
    """Read the members from the archive or from the archive inside it, as the repository packs it."""
    members = read_zip(
        path, lambda name: name == HAR_ARCHIVE or name.removeprefix(HAR_FOLDER) in HAR_SHA256, path.name
    )
    if HAR_ARCHIVE in members:
        inner = io.BytesIO(members[HAR_ARCHIVE])
        members = read_zip(inner, lambda name: name.removeprefix(HAR_FOLDER) in HAR_SHA256, HAR_ARCHIVE)
    members = {name.removeprefix(HAR_FOLDER): content for name, content in members.items()}
    check_members(members, HAR_SHA256, path.name)
    return members


def _check_archive(path: Path) -> None:
    _read_members(path)


def _read_arrays(paths: Mapping[str, Path]) -> Arrays:
    members = _read_members(paths[HAR_ARCHIVE])

    def read_numbers(kind: str, dtype: type) -> Array:
        contents = (members[f"{split}/{kind}_{split}.txt"] for split in ("train", "test"))
        return np.concatenate([np.loadtxt(io.BytesIO(content), dtype) for content in contents])

    labels = [line.split()[1] for line in members["activity_labels.txt"].decode().splitlines()]
    return {
        "x": read_numbers("X", np.float64),
        "y": read_numbers("y", np.int64) - 1,
        "person": read_numbers("subject", np.int64),
        "labels": np.array(labels),
    }


HAR_DISTRIBUTION: Final = Distribution(
    name="har",
    version=1,
    official_files=(
        OfficialFile(
            HAR_ARCHIVE,
            (
                "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
            ),
            _check_archive,
        ),
    ),
    read=_read_arrays,
)
