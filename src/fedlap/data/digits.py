"""The 1,797 handwritten digits that scikit-learn ships, embedded here.

From the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, 1998; CC BY 4.0): 8×8 pixels of 0 to 16.
"""

from importlib.resources import files

import numpy as np
import torch

from fedlap.federation import Federation
from fedlap.partition import by_label


def digits(
    clients: int = 20,
    labels_per_client: int = 3,
    spread: float = 1.0,
    test_share: float = 0.25,
    seed: int = 0,
) -> Federation:
    """Digits cut into clients by label, some with little data.

    clients: how many.
    labels_per_client: client k holds the digits k, k + 1, … (mod 10), this many.
    spread: standard deviation of the logarithm of clients' shares.
    test_share: share of each client's rows kept for testing.
    seed: of the cut and the split.
    """
    with files("fedlap.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        labels = torch.from_numpy(arrays["labels"]).long()
    own = by_label(labels, clients, labels_per_client, spread, seed)
    rows = {str(k): (images[at], labels[at]) for k, at in enumerate(own)}
    return Federation.from_arrays(rows, test_share, seed, labels=10)
