"""The library of `cpp/`, compiled for this machine where it has a compiler, and cached on disk.

A cached library is loaded only if nobody else can have written it: its folder and file belong to this user
or to root, neither can be written by the group or by others, and the content has the SHA-256 in the file's
name. Any other file is removed and compiled again. If the folder itself belongs to another user, or to root
and others can write to it, fedlap warns once and trains without the library.
"""

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedlap.storage.files import sha256_of

FILES = [Path(__file__).with_name("cpp") / name for name in ("steps.cpp", "layers.hpp", "dual.hpp")]
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
MORE_FLAGS = "FEDLAP_CXXFLAGS"  # names further flags, for sanitizers above all
PATIENCE = 120  # seconds that a compiler may take
BUILD, STALE = "build-", 3600  # name and age in seconds of folders that a killed process has left
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Built:
    """A compiled library, and the first line of its compiler's version."""

    path: Path
    compiler: str


def build_library(*options: str) -> Built | None:
    """The library for these options, from the cache folder or compiled now; None where that cannot be."""
    compiler = _compiler()
    version = None if compiler is None else _version(tuple(compiler))
    if compiler is None or version is None:
        return None
    command = [*compiler, *FLAGS, *options, *shlex.split(os.environ.get(MORE_FLAGS, ""))]
    sources = b"".join(each.read_bytes() for each in FILES)
    key = hashlib.sha256(sources + repr((command, version, _processor())).encode()).hexdigest()[:16]
    folder = _folder()
    if not _is_safe(folder.stat()):
        warnings.warn(
            f"kernel: the folder {str(folder)!r} is another user's or writable by others, so training runs "
            "without the compiled kernel; remove the folder, or set XDG_CACHE_HOME to one of your own",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    path = _find(folder, f"steps-{key}-") or _compile(command, folder, f"steps-{key}-")
    return Built(path, version.partition("\n")[0])


def _find(folder: Path, prefix: str) -> Path | None:
    """The library of this key; damaged files and those that others could have written are removed."""
    for path in folder.glob(f"{prefix}*.so"):
        with suppress(FileNotFoundError):  # another process has removed it meanwhile
            about = path.lstat()
            own = stat.S_ISREG(about.st_mode) and _is_safe(about)
            if own and path.name == f"{prefix}{sha256_of(path)}.so":
                return path
        path.unlink(missing_ok=True)
    return None


def _compile(command: list[str], folder: Path, prefix: str) -> Path:
    """Compile it into a folder of a random name, and rename it when it is complete."""
    for left in folder.glob(f"{BUILD}*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=BUILD, dir=folder) as place:
        made = Path(place) / "steps.so"
        command = [*command, "-o", str(made), str(FILES[0])]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        made.chmod(0o755)
        return made.replace(folder / f"{prefix}{sha256_of(made)}.so")


def _is_safe(about: os.stat_result) -> bool:
    """Return whether only this user or root can have written the file."""
    if os.name != "posix":
        return True
    return about.st_uid in (os.getuid(), 0) and not about.st_mode & WRITABLE_BY_OTHERS


def _folder() -> Path:
    """The folder for libraries, closed to others where it is this user's."""
    from fedlap.storage.cache_folder import cache_folder

    folder = cache_folder() / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if os.name == "posix" and about.st_uid == os.getuid() and about.st_mode & WRITABLE_BY_OTHERS:
        folder.chmod(stat.S_IMODE(about.st_mode) & ~WRITABLE_BY_OTHERS)
    return folder


def _compiler() -> list[str] | None:
    """$CXX or the system's; none where $CXX is empty."""
    named = os.environ.get("CXX")
    if named is not None:
        words = shlex.split(named)
        return words if words and shutil.which(words[0]) else None
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return [found] if found else None


@cache
def _version(compiler: tuple[str, ...]) -> str | None:
    """The version that the compiler prints; None where it cannot be run."""
    command, plain = [*compiler, "--version"], {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, env=plain)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _processor() -> str:
    """The processor that the code is compiled for, since machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    about = {line.split(":")[0].strip(): line for line in lines}
    return (
        platform.machine()
        + platform.processor()
        + "".join(about.get(key, "") for key in ("model name", "flags", "Features"))
    )
