"""Tensors that are mapped from files if they are large, so that they need not fit into memory."""

import logging
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedlap.storage.files import describe_error

_LOG = logging.getLogger("fedlap")
MAPPED_BYTES: Final = 64_000_000  # A process needs several times as much memory anyway.


def allocate_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor without values; a large one is mapped from a file without a name.

    The file is in the folder for temporary files ($TMPDIR) and ends with the tensor. The system writes its
    pages to the disk when memory becomes short. Without room on that disk, the tensor is in memory.
    """
    empty = torch.empty(0, dtype=dtype)
    size = math.prod(shape) * empty.element_size()
    if size < MAPPED_BYTES:
        return torch.empty(shape, dtype=dtype)
    try:
        with tempfile.TemporaryFile() as file:
            # Without reserved blocks, a disk that fills up later would end the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_numpy(np.memmap(file, empty.numpy().dtype, "r+", shape=shape))
    except OSError as error:
        _LOG.warning(
            "%.3g GB of models stay in memory: %r has no room for them (%s); set TMPDIR to a larger disk",
            size / 1e9,
            tempfile.gettempdir(),
            describe_error(error),
        )
        return torch.empty(shape, dtype=dtype)


def reorder_rows(table: Tensor, order: Sequence[int]) -> Tensor:
    """Return the rows of a table in another order; a large result is mapped, as `allocate_tensor` does."""
    if table.device.type != "cpu" or table.nbytes < MAPPED_BYTES:
        return table[order]
    rows = allocate_tensor((len(order), *table.shape[1:]), table.dtype)
    at = torch.tensor(order)
    number = max(1, MAPPED_BYTES // table[:1].nbytes)
    for place in range(0, len(order), number):
        rows[place : place + number] = table.index_select(0, at[place : place + number])
    return rows


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Map the tensors of a safetensors file, copy on write; raise ValueError if it is damaged.

    Use it only for files that nobody overwrites in place: a mapping shows later changes of the file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, RuntimeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split()) or "its header is damaged") from error
