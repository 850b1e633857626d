"""MNIST (LeCun and Cortes): 70,000 handwritten digits of 28×28 pixels, training and test images merged."""

import gzip
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from jaxtyping import UInt8

from fedlap.data.cache import Arrays
from fedlap.data.distribution import Distribution
from fedlap.data.download import OfficialFile, read_official, require_sha256
from fedlap.data.table import Table
from fedlap.errors import InputError

MNIST_SHA256: Final = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MNIST_MIRRORS: Final = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")


def load_mnist() -> Table:
    """Load handwritten digits of 28×28 pixels."""
    arrays = MNIST_DISTRIBUTION.load_arrays()
    labels = tuple(str(digit) for digit in range(10))
    return Table(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]), labels)


def _read_arrays(paths: Mapping[str, Path]) -> Arrays:
    images, labels = (
        np.concatenate([_parse_idx(paths[f"{split}-{kind}.gz"]) for split in ("train", "t10k")])
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    return {"x": images[:, None], "y": labels.astype(np.int64)}


def _parse_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Parse an array of bytes in the idx format: the number of dimensions, their sizes, the values."""
    try:
        content = gzip.decompress(read_official(path, MNIST_SHA256[path.name]))
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path.name} is not a complete gzip file ({error})") from error
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


MNIST_DISTRIBUTION: Final = Distribution(
    name="mnist",
    version=1,
    official_files=tuple(
        OfficialFile(name, tuple(mirror + name for mirror in MNIST_MIRRORS), require_sha256(digest))
        for name, digest in MNIST_SHA256.items()
    ),
    read=_read_arrays,
)
