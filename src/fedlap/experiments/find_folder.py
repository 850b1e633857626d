"""Search for stored runs and groups by path, by name, or by the first digits of their digest."""

import re
from pathlib import Path

from fedlap.errors import InputError
from fedlap.experiments.group_folder import GroupFolder
from fedlap.experiments.run_folder import RunFolder, find_description

SHORT_DIGEST = re.compile(r"[0-9a-f]{4,16}")


def find_folder(path: Path, out: Path) -> Path:
    """Return the folder of a run or group, from its path, its name in `out`, or its first digits.

    A path that does not exist is returned unchanged. Digits that two folders share raise InputError.
    """
    if path.exists():
        return path
    if (out / path).exists():
        return out / path
    digits = str(path)
    if not SHORT_DIGEST.fullmatch(digits):
        return path
    found = sorted(entry for entry in out.glob(f"*-{digits}*") if read_digest(entry.name).startswith(digits))
    if len(found) > 1:
        names = ", ".join(entry.name for entry in found[:3]) + (", …" if len(found) > 3 else "")
        raise InputError(
            f"{len(found)} folders in {str(out)!r} have digits {digits!r} ({names}); pass more digits"
        )
    return found[0] if found else path


def find_run(path: Path, out: Path) -> RunFolder:
    """Open a run, given as for `find_folder`; the error for a group names one of its runs."""
    folder = find_folder(path, out)
    group = GroupFolder.find(folder) if find_description(folder) is None else None
    if group is not None:
        raise group.build_run_error()
    return RunFolder.open(folder)


def read_digest(name: str) -> str:
    """Return the digest at the end of a folder's name."""
    return name.rpartition("-")[2]
