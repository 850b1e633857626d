"""CIFAR-10 (Krizhevsky, 2009): 60,000 images of 32×32 pixels, 10 labels, training and test images merged.

The official binary version is read: a record is one byte for the label and 3,072 for red, green and blue.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch

from fedlap.data.archives import Members, check_members, read_tar
from fedlap.data.cache import Arrays
from fedlap.data.distribution import Distribution
from fedlap.data.download import OfficialFile
from fedlap.data.table import Table

CIFAR10_ARCHIVE: Final = "cifar-10-binary.tar.gz"
CIFAR10_FOLDER: Final = "cifar-10-batches-bin/"
CIFAR10_RECORD_BYTES: Final = 1 + 3 * 32 * 32
CIFAR10_LABELS: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

CIFAR10_SHA256: Final = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def load_cifar10() -> Table:
    """Load small colour images of ten classes."""
    arrays = CIFAR10_DISTRIBUTION.load_arrays()
    return Table(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]), CIFAR10_LABELS)


def _read_members(paths: Mapping[str, Path]) -> Members:
    if CIFAR10_ARCHIVE in paths:
        packed = read_tar(
            paths[CIFAR10_ARCHIVE], lambda name: name.removeprefix(CIFAR10_FOLDER) in CIFAR10_SHA256
        )
        members = {name.removeprefix(CIFAR10_FOLDER): content for name, content in packed.items()}
    else:
        members = {name: path.read_bytes() for name, path in paths.items()}
    check_members(
        members,
        CIFAR10_SHA256,
        next(iter(paths.values())).name if CIFAR10_ARCHIVE in paths else "the binary version",
    )
    return members


def _check_archive(path: Path) -> None:
    _read_members({CIFAR10_ARCHIVE: path})


def _read_arrays(paths: Mapping[str, Path]) -> Arrays:
    members = _read_members(paths)
    records = np.concatenate([np.frombuffer(members[name], np.uint8) for name in CIFAR10_SHA256]).reshape(
        -1, CIFAR10_RECORD_BYTES
    )
    return {"x": records[:, 1:].reshape(-1, 3, 32, 32), "y": records[:, 0].astype(np.int64)}


CIFAR10_DISTRIBUTION: Final = Distribution(
    name="cifar10",
    version=1,
    official_files=(
        OfficialFile(
            CIFAR10_ARCHIVE, ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), _check_archive
        ),
    ),
    read=_read_arrays,
    unpacked=tuple(CIFAR10_SHA256),
)
