"""Downloads: complete and right whatever goes wrong on the way, and only once, also by several processes."""

import io
import itertools
import os
import subprocess
import sys
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from disk import expect_error, folder_of
from downloads import CONTENT, HTML, OTHER, asked_for, closing, names_in, serving  # noqa: F401 — fixtures
from fedlap.data import cache, download
from fedlap.data.download import compute_sha256, fetch_file, find_file
from fedlap.storage.cache_folder import get_cache_folder

pytestmark = pytest.mark.usefixtures("alone")


def assert_whole(path, content=CONTENT):
    assert path == get_cache_folder() / "set" / "file.bin"
    assert path.read_bytes() == content
    assert names_in(path.parent) == {"file.bin"}


@pytest.mark.parametrize("length", [len, None], ids=["length", "no length"])
def test_a_download_is_whole_under_its_name_and_made_once(serve, length):
    server = serve(CONTENT, length=length)
    assert find_file("set", "file.bin") is None
    for _ in range(2):
        assert_whole(fetch_file("set", asked_for(server.address)))
    assert server.asked == [None]
    assert find_file("set", "file.bin") == get_cache_folder() / "set" / "file.bin"


@pytest.mark.parametrize("length", [len, None], ids=["length", "no length"])
def test_a_bar_moves_on_a_terminal(serve, monkeypatch, length):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert_whole(fetch_file("set", asked_for(serve(CONTENT, length=length).address)))
    assert "file.bin" in terminal.getvalue()
    assert "\n\n" not in terminal.getvalue()


def test_a_truncated_download_goes_on(serve):
    server = serve(CONTENT, [30_000, 40_000])
    assert_whole(fetch_file("set", asked_for(server.address)))
    assert server.asked == [None, "bytes=30000-", "bytes=70000-"]


def test_a_stalled_download_goes_on(serve, monkeypatch):
    monkeypatch.setattr(download, "SECONDS_WITHOUT_DATA", 0.5)
    server = serve(CONTENT, [30_000], stalls=True)
    assert_whole(fetch_file("set", asked_for(server.address)))
    assert server.asked == [None, "bytes=30000-"]


@pytest.mark.parametrize(
    ("cut", "ranges", "came"), [(0, True, 0), (1_000, True, 3_000), (1_000, False, 1_000)]
)
def test_what_came_of_a_download_that_breaks_off_is_gone_on_from_later(serve, cut, ranges, came):
    broken = serve(CONTENT, itertools.repeat(cut), ranges=ranges)
    with expect_error(broken.address, f"{came:,} of 100,003 bytes", str(get_cache_folder() / "set")):
        fetch_file("set", asked_for(broken.address))
    assert len(broken.asked) == 3
    folder = get_cache_folder() / "set"
    assert names_in(folder) == {"file.bin.part"}
    assert (folder / "file.bin.part").read_bytes() == CONTENT[:came]
    healthy = serve(CONTENT)
    assert_whole(fetch_file("set", asked_for(healthy.address)))
    assert healthy.asked == [f"bytes={came}-" if came else None]


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
@pytest.mark.parametrize(
    "part",
    [b"", CONTENT[:50], CONTENT, CONTENT + b"more", OTHER[:50], OTHER, OTHER + OTHER],
    ids=["empty", "beginning", "whole", "longer", "other shorter", "other", "other longer"],
)
def test_whatever_an_earlier_download_has_left_the_file_is_right(serve, ranges, part):
    (folder_of() / "file.bin.part").write_bytes(part)
    server = serve(CONTENT, ranges=ranges)
    assert_whole(fetch_file("set", asked_for(server.address)))
    assert server.asked[0] == (f"bytes={len(part)}-" if part else None)


def test_a_wrong_file_is_refused_and_does_not_stay(serve):
    wrong = serve(OTHER)
    with expect_error(
        wrong.address, "does not serve the official file", compute_sha256(OTHER), compute_sha256(CONTENT)
    ):
        fetch_file("set", asked_for(wrong.address))
    assert names_in(get_cache_folder() / "set") == set()


FAULTS = {
    "wrong": {"content": OTHER},
    "a page": {"content": HTML},
    "wrong and broken off": {"content": OTHER, "cuts": itertools.repeat(900)},
    "broken off": {"content": CONTENT, "cuts": itertools.repeat(900)},
    "broken off without length": {"content": CONTENT, "cuts": itertools.repeat(900), "length": None},
    "not found": {"content": CONTENT, "status": 404},
    "out of order": {"content": CONTENT, "status": 503},
    "hangs up": {"content": CONTENT, "status": None},
    "nonsense of a length": {"content": OTHER, "length": lambda body: "many"},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_after_a_bad_address_the_next_is_tried(serve, closed, fault):
    bad, good = serve(**fault), serve(CONTENT)
    assert_whole(fetch_file("set", asked_for(bad.address, closed, good.address)))
    assert bad.asked
    assert good.asked


def test_when_all_addresses_fail_each_is_named(serve, closed):
    bad = [serve(**FAULTS[name]) for name in ("wrong", "not found", "hangs up")]
    with expect_error(*(server.address for server in bad), closed, "Not Found", "refused", "copy it to"):
        fetch_file("set", asked_for(*(server.address for server in bad), closed))
    assert names_in(get_cache_folder() / "set") == set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_in_a_line(serve, monkeypatch):
    monkeypatch.setattr(download, "open_append", lambda path, truncate: FileIO("/dev/full", "w"))
    server = serve(CONTENT)
    with expect_error("file.bin.part", "No space left on device", "FEDLAP_DATA"):
        fetch_file("set", asked_for(server.address, server.address))
    assert server.asked == [None]  # another address would not help
    assert "file.bin" not in names_in(get_cache_folder() / "set")


# Several processes at once.

TOGETHER = """
import multiprocessing, sys

fork = multiprocessing.get_context("fork")
start = fork.Barrier(4)

def one():
    start.wait()
    work()

children = [fork.Process(target=one) for _ in range(4)]
for child in children:
    child.start()
for child in children:
    child.join()
sys.exit(sum(child.exitcode != 0 for child in children))
"""

OBTAINING = """
import sys
from fedlap.data.download import OfficialFile, compute_sha256, fetch_file, require_sha256

address, digest = sys.argv[1:]

def work():
    path = fetch_file("set", OfficialFile("file.bin", (address,), require_sha256(digest)))
    assert compute_sha256(path.read_bytes()) == digest
"""

MAKING = """
import time
import numpy as np
from fedlap.data.cache import load_cached_arrays

def make():
    time.sleep(0.1)
    return {"x": np.arange(300_000), "y": np.arange(7, dtype=np.uint8)}

def work():
    for _ in range(3):
        arrays = load_cached_arrays("made", make)
        assert all(np.array_equal(arrays[name], array) for name, array in make().items())
"""


def at_once(program, *words):
    """Standard error of four processes that do `work` of this program, which must succeed."""
    command = [sys.executable, "-c", program + TOGETHER, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_processes_that_want_the_same_file_download_it_once(serve):
    server = serve(CONTENT, pause=0.03)
    at_once(OBTAINING, server.address, compute_sha256(CONTENT))
    assert server.asked == [None]
    assert_whole(get_cache_folder() / "set" / "file.bin")


@needs_fork
def test_processes_that_make_the_same_cached_array_file_do_not_disturb_each_other():
    assert at_once(MAKING) == ""
    assert names_in(get_cache_folder() / "fast") == {"made.npz"}
    assert np.array_equal(cache.map_npz(cache.locate_cached_arrays("made"))["x"], np.arange(300_000))
