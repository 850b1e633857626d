"""The compiled library in the cache folder is loaded only if it is intact and of this user or root."""

import ctypes
import os
import shlex
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
import torch

from fedlap.kernels import cpp_compiler, cpp_library

pytestmark = [
    pytest.mark.skipif(cpp_compiler._find_compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(os.name != "posix", reason="owners and permissions as POSIX has them"),
]
as_root = pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can give files away")
STRANGER = 54321
SOURCE = """
extern "C" long long steps() { return 7; }
extern "C" long long tally() { return 7; }
"""


@pytest.fixture
def folder(alone, monkeypatch, tmp_path):
    """The folder of libraries, and a source that is compiled at once."""
    source = tmp_path / "steps.cpp"
    source.write_text(SOURCE)
    monkeypatch.setattr(cpp_compiler, "CPP_SOURCES", [source])
    monkeypatch.setattr(cpp_compiler, "CPP_FLAGS", ("-O0", "-shared", "-fPIC"))
    monkeypatch.delenv(cpp_compiler.EXTRA_FLAGS_VARIABLE, raising=False)
    cpp_compiler._read_version.cache_clear()
    cpp_library.load_library.cache_clear()
    yield tmp_path / "cache" / "fedlap" / "kernels"
    cpp_compiler._read_version.cache_clear()
    cpp_library.load_library.cache_clear()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def works(path):
    """Return True if a copy of the library loads and runs; this process may hold the library already."""
    copy = path.with_suffix(f".{time.monotonic_ns()}")
    shutil.copy(path, copy)
    try:
        return ctypes.CDLL(str(copy)).steps() == 7
    finally:
        copy.unlink()


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "half zero": lambda path: path.write_bytes(
        path.read_bytes()[: path.stat().st_size // 2] + bytes(path.stat().st_size // 2)
    ),
    "empty": lambda path: path.write_bytes(b""),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "for the group": lambda path: path.chmod(0o775),
    "for all": lambda path: path.chmod(0o777),
    "a link": lambda path: path.symlink_to(path.rename(path.parent.parent / "elsewhere.so")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_library_is_compiled_again(damage, folder):
    first = cpp_compiler.build_library().path
    whole = first.read_bytes()
    damage(first)
    again = cpp_compiler.build_library().path
    assert works(again)
    assert again.read_bytes() == whole
    assert stat.S_IMODE(again.lstat().st_mode) == 0o755
    assert names(folder) == [again.name]


def test_an_intact_library_is_loaded_as_it_is(folder, monkeypatch):
    first = cpp_compiler.build_library().path
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: pytest.fail("compiled again"))
    assert cpp_compiler.build_library().path == first
    assert cpp_compiler.hash_file(first) in first.name


@as_root
def test_a_library_of_another_user_is_compiled_again(folder):
    first = cpp_compiler.build_library().path
    os.chown(first, STRANGER, STRANGER)
    again = cpp_compiler.build_library().path
    assert again.stat().st_uid == 0
    assert works(again)


@as_root
def test_the_folder_of_another_user_is_not_used(folder):
    cpp_compiler.build_library()
    os.chown(folder, STRANGER, STRANGER)
    with pytest.warns(RuntimeWarning, match=r"is another user's.*without the compiled kernel; remove"):
        assert cpp_library.load_library(torch.float32) is None
    assert cpp_library.identify_kernel(torch.float32) is None  # and no second warning


@pytest.mark.parametrize(
    ("owner", "mode", "safe"),
    [
        (os.getuid(), 0o700, True),
        (os.getuid(), 0o755, True),
        (0, 0o755, True),
        (os.getuid(), 0o770, False),
        (os.getuid(), 0o707, False),
        (0, 0o777, False),
        (STRANGER, 0o700, False),
    ],
)
def test_only_this_user_and_root_may_write(owner, mode, safe):
    about = os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))
    assert cpp_compiler._is_safe(about) == safe


def test_a_folder_of_one_s_own_is_closed_to_others(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert works(cpp_compiler.build_library().path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_new_folder_is_for_its_owner_alone(folder):
    cpp_compiler.build_library()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_version_of_the_compiler_compiles_again(folder, monkeypatch, tmp_path):
    compiler = tmp_path / "compiler"
    real = shlex.join(cpp_compiler._find_compiler())
    compiler.write_text(
        f'#!/bin/sh\ncase "$1" in --version) echo "$MADE_UP"; echo;; *) exec {real} "$@";; esac\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    paths = {}
    for version in ("c++ 1.0", "c++ 2.0", "c++ 1.0"):
        monkeypatch.setenv("MADE_UP", version)
        cpp_compiler._read_version.cache_clear()
        built = cpp_compiler.build_library()
        assert built.compiler == version
        paths.setdefault(version, built.path)
        assert paths[version] == built.path
    assert len(set(paths.values())) == 2


def test_other_flags_compile_again(folder, monkeypatch):
    first = cpp_compiler.build_library()
    assert cpp_compiler.build_library("-DMORE=1").path != first.path
    monkeypatch.setenv(cpp_compiler.EXTRA_FLAGS_VARIABLE, "-O1 -g")
    assert cpp_compiler.build_library().path != first.path


def test_other_sources_compile_again(folder):
    first = cpp_compiler.build_library()
    cpp_compiler.CPP_SOURCES[0].write_text(SOURCE + "// more\n")
    assert cpp_compiler.build_library().path != first.path


def test_nothing_is_left_of_a_build(folder, monkeypatch):
    """Neither of one that fails; what killed processes have left is removed after an hour."""
    folder.mkdir(parents=True)
    old, new = folder / "build-old", folder / "build-new"
    for cache_folder in (old, new):
        cache_folder.mkdir()
    os.utime(old, (1, 1))
    first = cpp_compiler.build_library().path
    assert names(folder) == ["build-new", first.name]
    cpp_compiler.CPP_SOURCES[0].write_text("not C++")
    with pytest.raises(subprocess.CalledProcessError):
        cpp_compiler.build_library()
    assert cpp_library.load_library(torch.float32) is None
    assert names(folder) == ["build-new", first.name]


def test_the_place_of_a_build_cannot_be_foreseen(folder, monkeypatch):
    places, run = [], subprocess.run

    def record_place(command, **more):
        if "-o" in command:
            place = Path(command[command.index("-o") + 1]).parent
            places.append((place, stat.S_IMODE(place.stat().st_mode)))
        return run(command, **more)

    monkeypatch.setattr(subprocess, "run", record_place)
    for _ in range(2):
        cpp_compiler.build_library().path.unlink()
    (one, mode), (other, _) = places
    assert one != other
    assert (one.parent, mode) == (folder, 0o700)


def test_the_kernel_is_identified_by_its_compiler(folder, monkeypatch):
    wanted = subprocess.run(
        [*cpp_compiler._find_compiler(), "--version"], capture_output=True, text=True
    ).stdout
    assert cpp_library.identify_kernel(torch.float64) == wanted.splitlines()[0]
    assert cpp_library.identify_kernel(torch.float16) is None
    monkeypatch.setenv("CXX", "")
    cpp_library.load_library.cache_clear()
    assert cpp_library.identify_kernel(torch.float64) is None
