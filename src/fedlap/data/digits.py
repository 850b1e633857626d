"""The 1,797 handwritten digits that scikit-learn ships, embedded here.

From the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, 1998; CC BY 4.0): 8×8 pixels of 0 to 16.
"""

from importlib.resources import files

import numpy as np

from fedlap.data.table import Table


def load_digits() -> Table:
    """Load small images of handwritten digits."""
    with files("fedlap.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        return Table.of((arrays["images"][:, None], arrays["labels"].astype(np.int64)), labels=10)
