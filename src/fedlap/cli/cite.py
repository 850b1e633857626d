"""The command that prints references: cite."""

import tomllib
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import console
from fedlap.cli.arguments import parse_algorithms
from fedlap.data import SOURCES
from fedlap.errors import InputError, unknown_name_error
from fedlap.storage.files import parse_json, read_file, read_text


def print_citations(folders: list[Path] | None, data: str, algorithms: str) -> None:
    """Print references for algorithms and data sets."""
    names = parse_algorithms(algorithms) if algorithms else []
    sources = [name.strip() for name in data.split(",") if name.strip()]
    for folder in folders or []:
        used = _read_names(folder)
        names += [name for name in used[0] if name in ALGORITHMS]
        sources += [name for name in used[1] if name in SOURCES]
    if not names and not sources:
        raise InputError("cite: nothing to cite; pass the folder of a run, --algorithms or --data")
    for source in sources:
        if source not in SOURCES:
            raise unknown_name_error("data set", source, SOURCES)
    texts = [ALGORITHMS[name].citation for name in names] + [SOURCES[name].citation for name in sources]
    for text in dict.fromkeys(text for text in texts if text):
        console.print_result(text)


def _read_names(folder: Path) -> tuple[list[str], list[str]]:
    """Return the algorithms and the data sets of a run, a comparison, a sweep or a tuning."""
    try:
        for file in (folder / name for name in ("comparison.json", "sweep.json", "tune.json")):
            if file.is_file():
                facts: dict[str, Any] = parse_json(read_file(file))
                return list(facts["algorithms"]), [facts["source"]]
        description = tomllib.loads(read_text(folder / "experiment.toml"))
        return [description["algorithm"]["name"]], [description["data"]["name"]]
    except (OSError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"cite: {str(folder)!r} is not the folder of a run ({error}); pass one with an experiment.toml"
        ) from error
