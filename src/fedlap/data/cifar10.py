"""CIFAR-10 (Krizhevsky, 2009): 60,000 pictures of 32×32 pixels, 10 labels, training and test together.

Read from the official binary version: a record is a byte for the label and 3,072 for red, green and blue.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch

from fedlap.data.archives import Members, check_members, from_tar
from fedlap.data.cache import Arrays
from fedlap.data.distribution import Distribution
from fedlap.data.download import Original
from fedlap.data.table import Table

ARCHIVE: Final = "cifar-10-binary.tar.gz"
ROOT: Final = "cifar-10-batches-bin/"
RECORD: Final = 1 + 3 * 32 * 32
LABELS: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

SHA256: Final = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def cifar10() -> Table:
    """Small colour pictures of ten kinds of things."""
    arrays = DISTRIBUTION.arrays()
    return Table(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]), LABELS)


def _members(paths: Mapping[str, Path]) -> Members:
    if ARCHIVE in paths:
        packed = from_tar(paths[ARCHIVE], lambda name: name.removeprefix(ROOT) in SHA256)
        members = {name.removeprefix(ROOT): content for name, content in packed.items()}
    else:
        members = {name: path.read_bytes() for name, path in paths.items()}
    check_members(
        members, SHA256, next(iter(paths.values())).name if ARCHIVE in paths else "the binary version"
    )
    return members


def _check(path: Path) -> None:
    _members({ARCHIVE: path})


def _read(paths: Mapping[str, Path]) -> Arrays:
    members = _members(paths)
    records = np.concatenate([np.frombuffer(members[name], np.uint8) for name in SHA256]).reshape(-1, RECORD)
    return {"x": records[:, 1:].reshape(-1, 3, 32, 32), "y": records[:, 0].astype(np.int64)}


DISTRIBUTION: Final = Distribution(
    name="cifar10",
    version=1,
    originals=(Original(ARCHIVE, ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), _check),),
    read=_read,
    unpacked=tuple(SHA256),
)
