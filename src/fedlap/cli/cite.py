"""The command that prints references: cite."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS, FEDU_CITATION
from fedlap.cli import console
from fedlap.cli.arguments import parse_algorithms, split_names
from fedlap.cli.bibtex import describe_software, format_bibtex
from fedlap.data import SOURCES
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.find_folder import find_folder
from fedlap.experiments.run_folder import EXPERIMENT_FILE, find_description
from fedlap.storage.files import parse_json, read_file, read_text


def print_citations(words: Sequence[str], data: str, algorithms: str, as_text: bool, out: Path) -> None:
    """Print references of fedlap, of its paper, and of algorithms and data sets.

    words: algorithms, data sets, and runs or groups, as paths, names in `out` or first digits.
    """
    names = parse_algorithms(algorithms) if algorithms else []
    sources = split_names([data])
    for word in words:
        if word in ALGORITHMS:
            names.append(word)
        elif word in SOURCES:
            sources.append(word)
        elif (folder := find_folder(Path(word), out)).exists():
            used = _read_names(folder)
            names += [name for name in used[0] if name in ALGORITHMS]
            sources += [name for name in used[1] if name in SOURCES]
        else:
            raise unknown_name_error("algorithm, data set or run", word, [*ALGORITHMS, *SOURCES])
    for source in sources:
        if source not in SOURCES:
            raise unknown_name_error("data set", source, SOURCES)
    texts = [FEDU_CITATION, *(ALGORITHMS[name].citation for name in names)]
    texts += [SOURCES[name].citation for name in sources]
    references = list(dict.fromkeys(text for text in texts if text))
    if as_text:
        for text in references:
            console.print_result(text)
        return
    entries = [describe_software(), *(entry for text in references for entry in format_bibtex(text))]
    console.print_raw("\n\n".join(dict.fromkeys(entries)) + "\n")


def _read_names(folder: Path) -> tuple[list[str], list[str]]:
    """Return the algorithms and the data sets of a run, a comparison, a sweep or a tuning."""
    try:
        for file in (folder / name for name in ("comparison.json", "sweep.json", "tune.json")):
            if file.is_file():
                facts: dict[str, Any] = parse_json(read_file(file))
                return list(facts["algorithms"]), [facts["source"]]
        description = tomllib.loads(read_text(folder / (find_description(folder) or EXPERIMENT_FILE)))
        algorithm, source = description["algorithm"]["name"], description["data"].get("name", "")
        names = [name for name, method in ALGORITHMS.items() if algorithm in (name, method.__name__)]
        return names, [source]
    except (OSError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"cite: {str(folder)!r} is not the folder of a run ({error}); pass one with an {EXPERIMENT_FILE}"
        ) from error
