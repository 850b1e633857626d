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
    targets = federation.target_scale
    train_and_test = federation.train, federation.test
    tensors: dict[int, Tensor] = {id(rows.store): rows.store for rows in train_and_test}
    for tensor in (
        *tensors.values(),
        *(tensor for rows in train_and_test for tensor in (rows.row, rows.y, rows.count)),
        federation.scale.shift,
        federation.scale.factor,
        *(() if targets is None else (targets.mean, targets.deviation)),
        *(() if federation.train.weight is None else (federation.train.weight,)),
    ):
        total.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8).data)
    return total.hexdigest()[:32]
