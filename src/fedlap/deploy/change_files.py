"""Changes that an operator asks for: commands write files, and the process of the run takes them."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fedlap.storage.files import parse_json, read_file, write_file

CHANGES_FOLDER: Final = "changes"


def write_change_file(folder: Path, values: Mapping[str, Any]) -> None:
    """Ask the process of a run to change its roster or its edges before the next round."""
    changes = folder / CHANGES_FOLDER
    changes.mkdir(mode=0o700, exist_ok=True)
    write_file(changes / f"{time.time_ns():020}-{values['kind']}.json", json.dumps(values).encode())


def take_change_files(folder: Path) -> Iterator[Any]:
    """Yield the values of each file, oldest first, and remove it; None for a file that cannot be read."""
    # The name of a file that is still being written begins with a dot.
    for path in sorted((folder / CHANGES_FOLDER).glob("[0-9]*.json")):
        try:
            values = parse_json(read_file(path))
        except ValueError:
            values = None
        yield values
        path.unlink()
