"""Changes that an operator asks for: commands write files, and the process of the run takes them."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fedlap.storage.files import parse_json, read_file, write_file

CHANGES_FOLDER: Final = "changes"
# Numbers give the order. The random part separates files that are written at the same moment.
CHANGE_FILE: Final = re.compile(r"([0-9]{1,20})-.+\.json")


def write_change_file(folder: Path, values: Mapping[str, Any]) -> None:
    """Ask the process of a run to change its roster or its edges before the next round."""
    changes = folder / CHANGES_FOLDER
    changes.mkdir(mode=0o700, exist_ok=True)
    number = max((number for number, _ in _list_files(changes)), default=0) + 1
    name = f"{number:020}-{values['kind']}-{secrets.token_hex(4)}.json"
    write_file(changes / name, json.dumps(values).encode(), private=True)


def take_change_files(folder: Path) -> Iterator[Any]:
    """Yield the values of each file, oldest first, and remove it; None for a file that cannot be read."""
    changes = folder / CHANGES_FOLDER
    with suppress(OSError):  # A full disk has no changes either.
        changes.mkdir(mode=0o700, exist_ok=True)  # A folder of another user's command could not be read.
    for _, path in _list_files(changes):
        try:
            values = parse_json(read_file(path))
        except (OSError, ValueError):
            values = None
        yield values
        path.unlink()


def _list_files(changes: Path) -> list[tuple[int, Path]]:
    """Return the files with their numbers, oldest first; the name of an unfinished file begins with a dot."""
    found = [(CHANGE_FILE.fullmatch(path.name), path) for path in changes.glob("*.json")]
    return sorted((int(match[1]), path) for match, path in found if match is not None)
