"""Removal of stored runs and groups: known files only, never through a link, never outside their folder."""

import fnmatch
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from fedlap.errors import InputError
from fedlap.experiments.checkpoints import MANIFEST_FILE, STATE_FILE
from fedlap.experiments.find_folder import find_folder
from fedlap.experiments.group_folder import RESULT_FILES, GroupFolder, list_member_names
from fedlap.experiments.run_folder import (
    CHECKPOINT_FOLDER,
    DESCRIPTION_FILES,
    ENVIRONMENT_FILE,
    FAILURE_FILE,
    MODELS_FOLDER,
    find_description,
)
from fedlap.experiments.score_log import SCORE_LOG_FILE
from fedlap.personal.models import METADATA_FILE, MODELS_FILE
from fedlap.storage.files import TEMPORARY_NAME, refuse_link, unwritable_error
from fedlap.storage.locks import CLAIM_FILE, LOCK_FILE, lock_folders

# Files that fedlap writes into the folder of a run or a group; `*` stands for any name without a slash.
KNOWN_FILES = (
    *DESCRIPTION_FILES, ENVIRONMENT_FILE, SCORE_LOG_FILE, FAILURE_FILE, LOCK_FILE, CLAIM_FILE, "bound.png",
    f"{CHECKPOINT_FOLDER}/round-*/{STATE_FILE}", f"{CHECKPOINT_FOLDER}/round-*/{MANIFEST_FILE}",
    f"{MODELS_FOLDER}/{MODELS_FILE}", f"{MODELS_FOLDER}/{METADATA_FILE}",
    "tensorboard/events.out.tfevents.*", "mlflow.db", "mlflow-run",
    *RESULT_FILES.values(), "table.md", "curves.png", "sweep.png", "tuned.toml",
    "report/page.html", "report/tables/*.md", "report/tables/*.csv", "report/tables/*.tex",
    "report/figures/*.png", "report/figures/*.pdf",
)  # fmt: skip
# Removed last: until then the folder is a run or a group, and an interrupted removal can be repeated.
DESCRIPTIONS = (*DESCRIPTION_FILES, *RESULT_FILES.values())


@dataclass(frozen=True)
class RemovalPlan:
    """Folders to remove, their size, and the runs that stay because another group uses them."""

    runs: tuple[Path, ...]
    groups: tuple[Path, ...]
    size: int  # bytes of known files
    shared: tuple[str, ...]
    users: tuple[str, ...]  # groups that stay without some of their runs

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders to remove."""
        return *self.groups, *self.runs

    @staticmethod
    def of(paths: Sequence[Path], out: Path) -> "RemovalPlan":
        """Find runs and groups by path, name or digits; raise InputError for anything else."""
        chosen = dict.fromkeys(_find_target(path, out) for path in paths)
        groups = [folder for folder in chosen if find_description(folder) is None]
        runs = [folder for folder in chosen if folder not in groups]
        others = _read_other_groups(out, groups)
        used = {name for names in others.values() for name in names}
        shared: list[str] = []
        for folder in groups:
            for name in _list_runs(folder):
                run = out / name
                if name in used and run not in runs:
                    shared.append(name)
                elif find_description(run) is not None and run not in runs:
                    runs.append(_check_target(run, out))
        gone = {run.name for run in runs}
        users = [group for group, names in others.items() if gone & set(names)]
        size = sum(_measure(folder) for folder in (*groups, *runs))
        return RemovalPlan(tuple(runs), tuple(groups), size, tuple(dict.fromkeys(shared)), tuple(users))

    def remove(self) -> list[str]:
        """Remove all folders and return the paths that stay, since fedlap did not write them.

        Raise InputError, before anything is removed, if another process is training one of the runs.
        """
        remaining: list[str] = []
        with ExitStack() as until_end:
            if self.runs:
                until_end.enter_context(lock_folders(self.runs))
            for folder in self.folders:
                remaining += remove_known_files(folder)
        return remaining


def _find_target(path: Path, out: Path) -> Path:
    """Return the folder of a run or group inside `out`."""
    folder = out / path if len(path.parts) == 1 and (out / path).exists() else find_folder(path, out)
    if not folder.name or folder.name == ".." or folder.parent.resolve() != out.resolve():
        raise InputError(
            f"{str(path)!r} is not in {str(out)!r}; pass a run or group that `fedlap runs` lists, or the "
            "folder that contains it with --out"
        )
    return _check_target(out / folder.name, out)


def _check_target(folder: Path, out: Path) -> Path:
    """Return a folder of a run or group; raise InputError for other folders and for links in it."""
    refuse_link(folder)
    if not folder.is_dir():
        raise InputError(f"no run or group {folder.name!r} in {str(out)!r}; `fedlap runs` lists all")
    if find_description(folder) is None and GroupFolder.find(folder) is None:
        raise InputError(
            f"{str(folder)!r} is neither a run nor a comparison, sweep or tuning; remove it by other means"
        )
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            refuse_link(Path(parent, name))
    return folder


def _list_runs(folder: Path) -> list[str]:
    """Return the names of a group's runs; none if its file is damaged, so that it can be removed."""
    group = GroupFolder.find(folder)
    try:
        return [] if group is None else list_member_names(group.read_facts())
    except InputError:
        return []


def _read_other_groups(out: Path, removed: Sequence[Path]) -> dict[str, list[str]]:
    """Return the runs of every group that stays; raise InputError if one of them cannot be read."""
    others: dict[str, list[str]] = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir() and path not in removed):
        group = GroupFolder.find(folder) if find_description(folder) is None else None
        if group is not None:
            others[group.name] = list_member_names(group.read_facts())
    return others


def is_known_file(path: str) -> bool:
    """Return whether fedlap writes a file of this path, relative to the folder of a run or group."""
    parts = path.split("/")
    if any(TEMPORARY_NAME.match(part) for part in parts):
        return True
    patterns = (pattern.split("/") for pattern in KNOWN_FILES)
    return any(
        len(pattern) == len(parts) and all(map(fnmatch.fnmatchcase, parts, pattern)) for pattern in patterns
    )


def _measure(folder: Path) -> int:
    """Return the bytes of the known files in a folder."""
    return sum(
        Path(parent, name).lstat().st_size
        for parent, _, files in os.walk(folder)
        for name in files
        if is_known_file(Path(parent, name).relative_to(folder).as_posix())
    )


def remove_known_files(folder: Path) -> list[str]:
    """Remove the known files of a folder and empty folders; return the paths of all other files.

    Folders are opened once and files are removed relative to them, so that a folder that is replaced by a
    link in the meantime leads nowhere.
    """
    remaining: list[str] = []
    try:
        for parent, folders, files, place in os.fwalk(folder, topdown=False, follow_symlinks=False):
            for name in sorted(files, key=lambda name: name in DESCRIPTIONS):
                path = Path(parent, name)
                is_regular = stat.S_ISREG(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
                if is_regular and is_known_file(path.relative_to(folder).as_posix()):
                    os.unlink(name, dir_fd=place)
                else:
                    remaining.append(str(path))
            for name in folders:
                with suppress(OSError):  # it is not empty, or is a link
                    os.rmdir(name, dir_fd=place)
        with suppress(OSError):
            folder.rmdir()
    except OSError as error:
        raise unwritable_error(folder, error) from error
    return remaining
