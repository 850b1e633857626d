"""File systems of a test alone, in a private mount namespace: small, full or read-only, gone at its end."""

import errno
import os
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

NAMESPACES = (["--mount"], ["--user", "--map-root-user", "--mount"])  # as root, or as anybody
PAGE = os.sysconf("SC_PAGE_SIZE")
BALLAST = "ballast"


@cache
def find_mounting_problem():
    """Return why this system permits no private mounts; an empty text if it does."""
    try:
        with PrivateMounts() as mounts:
            mounts.mount(tempfile.gettempdir(), "size=64k")
            mounts.remount(tempfile.gettempdir(), "ro")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"no private mounts here: {error}"
    return ""


class PrivateMounts:
    """A mount namespace, held by a process; the host does not see its file systems.

    `show` is the path under which processes outside the namespace reach a path inside it.
    """

    def __enter__(self):
        problems = []
        for kinds in NAMESPACES:
            holder = subprocess.Popen(
                ["unshare", *kinds, "sh", "-c", "echo ready; exec cat"], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            if holder.stdout.readline():
                self._holder = holder
                spaces = [kind for kind in kinds if kind != "--map-root-user"]
                self.enter = ["nsenter", f"--target={holder.pid}", "--preserve-credentials", *spaces]
                return self
            problems.append(holder.communicate()[1].strip())
        raise RuntimeError("; ".join(problems))

    def __exit__(self, *_):
        self._holder.communicate()

    def show(self, path):
        """Return the path of a path inside the namespace."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def mount(self, folder, options):
        """Mount a file system in memory, such as one of "size=64k"."""
        self._call("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)

    def remount(self, folder, options):
        """Change the options of a file system; "ro" needs that no file is open for writing."""
        self._call("mount", "--options-mode=ignore", "-o", f"remount,{options}", folder)

    def cover(self, path):
        """Make a folder or file read-only for every name that is looked up from now on.

        Files that are open stay writable, so that this can be done under a running process.
        """
        # Prepared elsewhere: a file that is opened for writing under `path` meanwhile would refuse read-only.
        with tempfile.TemporaryDirectory() as elsewhere:
            prepared = Path(elsewhere) / "prepared"
            prepared.mkdir() if self.show(path).is_dir() else prepared.touch()
            self._call("mount", "--bind", path, prepared)
            self._call("mount", "-o", "remount,bind,ro", prepared)
            self._call("mount", "--move", prepared, path)

    def uncover(self, path):
        """Undo `cover`."""
        self._call("umount", path)

    def _call(self, *words):
        done = subprocess.run([*self.enter, *map(str, words)], capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise RuntimeError(f"{words}: {done.stderr.strip()}")


def fill(folder, pages=0):
    """Fill the file system of a folder, but for this number of pages."""
    with (folder / BALLAST).open("wb") as file:
        size = 0
        while (free := measure_free_pages(folder) - pages) > 0:
            try:
                os.posix_fallocate(file.fileno(), size, free * PAGE)
            except OSError as error:
                if (
                    error.errno != errno.ENOSPC
                ):  # else a process has written since the free pages were counted
                    raise
            else:
                size += free * PAGE


def measure_free_pages(folder):
    """Return the pages that are free in the file system of a folder."""
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize // PAGE


def make_room(folder):
    """Undo `fill`."""
    with suppress(FileNotFoundError):
        (folder / BALLAST).unlink()


def list_unfinished(folder):
    """Return the temporary files that a folder has."""
    return [path.name for path in folder.rglob(".fedlap-*")]
