"""The folder of a comparison, a sweep or a tuning, whose runs are in the same folder as it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlap.errors import InputError
from fedlap.storage.files import describe_error, parse_json, read_file

# Result file and name of the results of each command.
RESULT_FILES = {"compare": "comparison.json", "sweep": "sweep.json", "tune": "tune.json"}
RESULT_NAMES = {"compare": "comparison", "sweep": "sweep", "tune": "tuning"}


@dataclass(frozen=True)
class GroupFolder:
    """A folder with the results of a command that trained several runs."""

    folder: Path
    command: str

    @staticmethod
    def find(folder: Path) -> "GroupFolder | None":
        """Return the group that has this folder; None if the folder is none of a group."""
        for command, file in RESULT_FILES.items():
            if (folder / file).is_file():
                return GroupFolder(folder, command)
        return None

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def file(self) -> Path:
        """File with the results."""
        return self.folder / RESULT_FILES[self.command]

    def read_facts(self) -> dict[str, Any]:
        """Return the results as plain values; raise InputError if their file is damaged."""
        try:
            facts = parse_json(read_file(self.file))
            list_member_names(facts)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{str(self.file)!r} is damaged ({describe_error(error)}); run `fedlap {self.command}` again"
            ) from error
        return dict(facts)

    def build_run_error(self) -> InputError:
        """Return the error for a group that was passed as a run; it names one of the runs."""
        rows = list_run_names(self.read_facts())
        runs = dict.fromkeys(name for names in rows.values() for name in names)
        row, names = next(iter(rows.items()))
        return InputError(
            f"{str(self.folder)!r} is a {RESULT_NAMES[self.command]} of {len(runs)} runs; pass one of them, "
            f"e.g. {names[0]} (the first of {row}); `fedlap runs --all` lists them"
        )


def list_run_names(facts: Any) -> dict[str, list[str]]:
    """Return the names of run folders per row of the results; raise ValueError for other values."""
    rows = facts.get("kept", {}) if isinstance(facts, Mapping) else None
    if not isinstance(rows, dict) or not all(isinstance(names, list) and names for names in rows.values()):
        raise ValueError("it does not list its runs")
    for name in (name for names in rows.values() for name in names):
        if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
            raise ValueError("a run is not in the parent folder")
    return rows


def list_member_names(facts: Any) -> list[str]:
    """Return the names of all runs behind the results, also those of the tuning before a comparison."""
    rows, tuning = list_run_names(facts), facts.get("tuning", {})
    folds = list_run_names({"kept": tuning.get("runs", {})} if isinstance(tuning, Mapping) else None)
    return list(dict.fromkeys(name for names in (*rows.values(), *folds.values()) for name in names))
