"""The folder of a federation's rows, which other processes can read by themselves."""

from dataclasses import dataclass
from pathlib import Path

from fedlap.data.client_rows import ClientRows


@dataclass(frozen=True, eq=False)
class StoredRows:
    """The folder that rows were mapped from, and the rows as they were mapped."""

    path: Path
    train: ClientRows
    test: ClientRows

    def find_folder(self, train: ClientRows, test: ClientRows) -> Path | None:
        """Return the folder; None if the rows were changed since they were mapped."""
        return self.path if self.train is train and self.test is test else None
