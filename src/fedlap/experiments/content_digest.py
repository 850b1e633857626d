"""The digest of a federation's data."""

import hashlib
import json

import numpy as np
from torch import Tensor

from fedlap.data.federation import Federation


def digest_content(federation: Federation) -> str:
    """Return 32 hexadecimal digits that identify every client's rows, their order, labels and scaling."""
    total = hashlib.sha256(
        json.dumps([federation.clients, federation.labels, federation.scale.kind]).encode()
    )
    parts = federation.train, federation.test
    tensors: dict[int, Tensor] = {id(part.store): part.store for part in parts}
    for tensor in (
        *tensors.values(),
        *(tensor for part in parts for tensor in (part.row, part.y, part.count)),
        federation.scale.shift,
        federation.scale.factor,
    ):
        total.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8).data)
    return total.hexdigest()[:32]
