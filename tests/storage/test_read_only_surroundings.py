"""Mutated files and command lines where everything but one folder is read-only, for the whole file system."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# The folder is mounted over itself, so that it stays writable when all that surrounds it no longer is.
MOUNTED = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'


def run_inside(folder, *words, env=None):
    """Run a program that can write into this folder alone."""
    command = ["unshare", "--mount", "sh", "-c", MOUNTED, str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, env=env)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("surrounded")
    if shutil.which("unshare") is None or run_inside(path, "true").returncode:
        pytest.skip("mounting needs root and unshare")
    return path


@pytest.mark.slow
def test_the_surrounding_is_read_only(folder):
    outside = folder.parent / "outside.txt"
    done = run_inside(folder, "sh", "-c", f"touch inside.txt {outside}; touch {folder}/inside.txt")
    assert "Read-only file system" in done.stderr
    assert not outside.exists()
    assert (folder / "inside.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["test_mutated_files.py", "test_command_lines.py"])
def test_nothing_is_written_outside(folder, subject):
    """The same tests, all of them, pass."""
    places = {
        "TMPDIR": str(folder),
        "HOME": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder}/{subject}.d")
    words = (sys.executable, "-m", "pytest", *options, str(TESTS / subject))
    done = run_inside(folder, *words, env=os.environ | places)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
