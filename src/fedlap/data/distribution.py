"""A data set as its makers give it out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedlap.data.cache import Arrays, fast_form, kept
from fedlap.data.download import Original, is_file, located, obtained
from fedlap.errors import InputError


@dataclass(frozen=True)
class Distribution:
    """The official files of a data set and how they are read.

    name: the set's name, and that of its folder.
    version: of the reading; a new one is read anew.
    originals: the files as they are downloaded.
    read: arrays from these files, by name; raises InputError where their content is not the official one.
    unpacked: files that serve instead of the originals where all of them lie in the folder.
    """

    name: str
    version: int
    originals: tuple[Original, ...]
    read: Callable[[Mapping[str, Path]], Arrays]
    unpacked: tuple[str, ...] = ()

    def arrays(self) -> Arrays:
        """The set, from the cache, a folder that has it, or the official address."""
        return kept(self.kept_as, self._read)

    @property
    def kept_as(self) -> str:
        """The name of its fast form."""
        return f"{self.name}-{self.version}"

    def state(self) -> str:
        """What stands between asking for the set and having it."""
        if is_file(fast_form(self.kept_as)):
            return "ready"
        files = [located(self.name, original.name) for original in self.originals]
        return "here" if self._unpacked() or all(files) else "to download"

    def _unpacked(self) -> dict[str, Path]:
        found = {name: path for name in self.unpacked if (path := located(self.name, name))}
        return found if len(found) == len(self.unpacked) else {}

    def _read(self) -> Arrays:
        paths = self._unpacked() or {
            original.name: obtained(self.name, original) for original in self.originals
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
