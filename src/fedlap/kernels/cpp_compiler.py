"""Compilation of the library in `cpp/` for this machine, if it has a compiler, with a cache on disk.

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

from fedlap.storage.files import hash_file

CPP_SOURCES = [Path(__file__).with_name("cpp") / name for name in ("steps.cpp", "layers.hpp", "dual.hpp")]
CPP_FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
EXTRA_FLAGS_VARIABLE = "FEDLAP_CXXFLAGS"  # environment variable with further flags, as for sanitizers
COMPILER_TIMEOUT = 120  # seconds
BUILD_PREFIX, STALE_SECONDS = "build-", 3600  # folders of killed processes: their name and least age
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class CompiledLibrary:
    """A compiled library, and the first line of its compiler's version."""

    path: Path
    compiler: str


def build_library(*options: str) -> CompiledLibrary | None:
    """Return the library for these options, cached or compiled now; None without compiler or safe folder."""
    compiler = _find_compiler()
    version = None if compiler is None else _read_version(tuple(compiler))
    if compiler is None or version is None:
        return None
    command = [*compiler, *CPP_FLAGS, *options, *shlex.split(os.environ.get(EXTRA_FLAGS_VARIABLE, ""))]
    sources = b"".join(path.read_bytes() for path in CPP_SOURCES)
    key = hashlib.sha256(sources + repr((command, version, _identify_processor())).encode()).hexdigest()[:16]
    folder = _prepare_folder()
    if not _is_safe(folder.stat()):
        warnings.warn(
            f"kernel: the folder {str(folder)!r} is another user's or writable by others, so training runs "
            "without the compiled kernel; remove the folder, or set XDG_CACHE_HOME to a private folder",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    path = _find_cached(folder, f"steps-{key}-") or _compile(command, folder, f"steps-{key}-")
    return CompiledLibrary(path, version.partition("\n")[0])


def _find_cached(folder: Path, prefix: str) -> Path | None:
    """Return the cached library; remove damaged files and files that others could have written."""
    for path in folder.glob(f"{prefix}*.so"):
        with suppress(FileNotFoundError):  # another process may have removed it
            status = path.lstat()
            safe = stat.S_ISREG(status.st_mode) and _is_safe(status)
            if safe and path.name == f"{prefix}{hash_file(path)}.so":
                return path
        path.unlink(missing_ok=True)
    return None


def _compile(command: list[str], folder: Path, prefix: str) -> Path:
    """Compile the library in a temporary folder and rename it when it is complete."""
    for stale in folder.glob(f"{BUILD_PREFIX}*"):
        with suppress(FileNotFoundError):
            if time.time() - stale.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=BUILD_PREFIX, dir=folder) as build:
        library = Path(build) / "steps.so"
        command = [*command, "-o", str(library), str(CPP_SOURCES[0])]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILER_TIMEOUT)
        library.chmod(0o755)
        return library.replace(folder / f"{prefix}{hash_file(library)}.so")


def _is_safe(status: os.stat_result) -> bool:
    """Return whether only this user or root can have written the file."""
    if os.name != "posix":
        return True
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & WRITABLE_BY_OTHERS


def _prepare_folder() -> Path:
    """Create the folder for libraries, or return it after making this user's folder private."""
    from fedlap.storage.cache_folder import get_cache_folder

    folder = get_cache_folder() / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if os.name == "posix" and status.st_uid == os.getuid() and status.st_mode & WRITABLE_BY_OTHERS:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~WRITABLE_BY_OTHERS)
    return folder


def _find_compiler() -> list[str] | None:
    """Return the command of $CXX, or the system's compiler; None if $CXX is empty."""
    variable = os.environ.get("CXX")
    if variable is not None:
        words = shlex.split(variable)
        return words if words and shutil.which(words[0]) else None
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return [found] if found else None


@cache
def _read_version(compiler: tuple[str, ...]) -> str | None:
    """Return the version that the compiler prints; None if it cannot be run."""
    command, environment = [*compiler, "--version"], {**os.environ, "LC_ALL": "C"}
    try:
        completed = subprocess.run(
            command, check=True, capture_output=True, timeout=COMPILER_TIMEOUT, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.decode("utf-8", "replace")


def _identify_processor() -> str:
    """Return a description of the processor, since machines with different ones may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    lines_by_key = {line.split(":")[0].strip(): line for line in lines}
    return (
        platform.machine()
        + platform.processor()
        + "".join(lines_by_key.get(key, "") for key in ("model name", "flags", "Features"))
    )
