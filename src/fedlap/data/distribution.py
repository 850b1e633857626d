"""The official distribution of a data set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedlap.data.cache import Arrays, load_cached_arrays, locate_cached_arrays
from fedlap.data.download import OfficialFile, fetch_file, find_file, is_file
from fedlap.errors import InputError


@dataclass(frozen=True)
class Distribution:
    """The official files of a data set and how they are read.

    name: the set's name, and that of its folder.
    version: the version of `read`; arrays cached by another version are not used.
    official_files: the files to download.
    read: returns arrays by name from the files; raises InputError if their content is not the official one.
    unpacked: unpacked files, used instead of the official files if the folder has all of them.
    package: the package that `read` imports; the extra of the set's name installs it.
    """

    name: str
    version: int
    official_files: tuple[OfficialFile, ...]
    read: Callable[[Mapping[str, Path]], Arrays]
    unpacked: tuple[str, ...] = ()
    package: str = ""

    def load_arrays(self) -> Arrays:
        """Load the set from the cache, from a data folder, or from the official address."""
        return load_cached_arrays(self.cache_name, self._read_files)

    @property
    def cache_name(self) -> str:
        """The name of its cached arrays."""
        return f"{self.name}-{self.version}"

    def find_state(self) -> str:
        """Return "ready" if the set is cached, "here" if its files are on disk, else "to download"."""
        if is_file(locate_cached_arrays(self.cache_name)):
            return "ready"
        files = [find_file(self.name, official_file.name) for official_file in self.official_files]
        return "here" if self._find_unpacked_files() or all(files) else "to download"

    def _find_unpacked_files(self) -> dict[str, Path]:
        found = {name: path for name in self.unpacked if (path := find_file(self.name, name))}
        return found if len(found) == len(self.unpacked) else {}

    def _read_files(self) -> Arrays:
        if self.package and find_spec(self.package) is None:
            raise InputError(
                f"data {self.name!r} needs {self.package}; run pip install 'fedlap[{self.name}]'",
                field="data",
            )
        paths = self._find_unpacked_files() or {
            official_file.name: fetch_file(self.name, official_file) for official_file in self.official_files
        }
        try:
            return self.read(paths)
        except (InputError, OSError) as error:
            folders = ", ".join(dict.fromkeys(str(path.parent) for path in paths.values()))
            raise InputError(
                f"data {self.name!r} in {folders}: {error}; "
                f"delete the file and run `fedlap data get {self.name}`",
                field="data",
            ) from None
