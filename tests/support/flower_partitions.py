"""The documented interface of Flower Datasets' partitioners, over nine rows."""

import numpy as np
from PIL import Image

from table_rows import LABELS, PIXELS, REALS


class Partition:
    """A partition as Flower Datasets' `load_partition` returns it: columns by name."""

    def __init__(self, columns, classes):
        self.columns, self.column_names = columns, list(columns)
        self.features = dict.fromkeys(columns) | {"label": classes}

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, column):
        return self.columns[column]


class Partitioner:
    """Flower Datasets' interface of partitioners, as far as it is documented, over rows in turn."""

    def __init__(self, columns, sizes=(4, 3, 2), names=None):
        self.columns, self.ends = columns, np.cumsum([0, *sizes])
        self.classes = None if names is None else type("ClassLabel", (), {"names": names})()

    @property
    def num_partitions(self):
        return len(self.ends) - 1

    def load_partition(self, k):
        rows = slice(self.ends[k], self.ends[k + 1])
        return Partition({name: values[rows] for name, values in self.columns.items()}, self.classes)


STAMPS = np.arange(9) + 1_700_000_000  # whole numbers of more digits than single precision has
COLUMNS = {
    "image": [Image.fromarray(pixels) for pixels in PIXELS],
    "vector": REALS.tolist(),
    "height": REALS[:, 0].tolist(),
    "time": STAMPS.tolist(),
    "text": ["x"] * 9,
    "hole": [None] * 9,
    "ragged": [[0.0] * (1 + k % 2) for k in range(9)],
    "label": LABELS.tolist(),
    "target": REALS[:, 1].tolist(),
}
