"""Files of data: brought, checked, kept and found again, whatever goes wrong on the way."""

import gzip
import io
import itertools
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from disk import folder_of, refused, tarred, tree, zipped
from fedlap.data import SOURCES, fast, storage
from fedlap.data.storage import Original, cache_folder, located, obtained, official, sha256

pytestmark = pytest.mark.usefixtures("alone")

har, mnist = (sys.modules[f"fedlap.data.{name}"] for name in ("har", "mnist"))  # the functions hide them

CONTENT = np.random.default_rng(0).bytes(100_003)
OTHER = np.random.default_rng(1).bytes(100_003)
HTML = b"<!DOCTYPE html>\n<html><body>Please log in.</body></html>\n"
TOO_LONG = "n" * 300  # no system has folders of such names: asking for one is an error other than "not there"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers["Range"]
        server.asked.append(asked)
        if server.status is None:
            return  # hangs up without a word
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if server.status != 200 or start > len(server.content) - 1:
            self.send_error(server.status if server.status != 200 else 416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if server.length:
            self.send_header("Content-Length", str(server.length(body)))
        self.end_headers()
        cut = next(server.cuts, None)
        for place in range(0, len(body[:cut]), 10_000):
            self.wfile.write(body[:cut][place : place + 10_000])
            time.sleep(server.pause)
        if cut is not None and server.stalls:
            server.ended.wait(10)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """Gives out `content`, of each answer at most as many bytes as the next of `cuts`; `asked` are ranges."""

    daemon_threads = False

    def __init__(self, content, cuts=(), *, ranges=True, status=200, length=len, pause=0.0, stalls=False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cuts, self.ranges, self.status = content, iter(cuts), ranges, status
        self.length, self.pause, self.stalls = length, pause, stalls
        self.asked, self.ended = [], threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/file"

    def handle_error(self, *_):
        pass  # who asked has gone away


@pytest.fixture
def serve():
    running = []

    def start(*given, **settings):
        server = Server(*given, **settings)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def closed():
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/file"


def asked_for(*addresses, content=CONTENT):
    return Original("file.bin", addresses, official(sha256(content)))


def names_in(folder):
    return {path.name for path in folder.iterdir() if path.name != ".file.bin.lock"}


def assert_whole(path, content=CONTENT):
    assert path == cache_folder() / "set" / "file.bin"
    assert path.read_bytes() == content
    assert names_in(path.parent) == {"file.bin"}


# Downloads.


@pytest.mark.parametrize("length", [len, None], ids=["length", "no length"])
def test_a_download_is_whole_under_its_name_and_made_once(serve, length):
    server = serve(CONTENT, length=length)
    assert located("set", "file.bin") is None
    for _ in range(2):
        assert_whole(obtained("set", asked_for(server.address)))
    assert server.asked == [None]
    assert located("set", "file.bin") == cache_folder() / "set" / "file.bin"


@pytest.mark.parametrize("length", [len, None], ids=["length", "no length"])
def test_a_bar_moves_on_a_terminal(serve, monkeypatch, length):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert_whole(obtained("set", asked_for(serve(CONTENT, length=length).address)))
    assert "file.bin" in terminal.getvalue()
    assert "\n\n" not in terminal.getvalue()


def test_a_truncated_download_goes_on(serve):
    server = serve(CONTENT, [30_000, 40_000])
    assert_whole(obtained("set", asked_for(server.address)))
    assert server.asked == [None, "bytes=30000-", "bytes=70000-"]


def test_a_stalled_download_goes_on(serve, monkeypatch):
    monkeypatch.setattr(storage, "TIMEOUT", 0.5)
    server = serve(CONTENT, [30_000], stalls=True)
    assert_whole(obtained("set", asked_for(server.address)))
    assert server.asked == [None, "bytes=30000-"]


@pytest.mark.parametrize(
    ("cut", "ranges", "came"), [(0, True, 0), (1_000, True, 3_000), (1_000, False, 1_000)]
)
def test_what_came_of_a_download_that_breaks_off_is_gone_on_from_later(serve, cut, ranges, came):
    broken = serve(CONTENT, itertools.repeat(cut), ranges=ranges)
    with refused(broken.address, f"{came:,} of 100,003 bytes", str(cache_folder() / "set")):
        obtained("set", asked_for(broken.address))
    assert len(broken.asked) == 3
    folder = cache_folder() / "set"
    assert names_in(folder) == {"file.bin.part"}
    assert (folder / "file.bin.part").read_bytes() == CONTENT[:came]
    healthy = serve(CONTENT)
    assert_whole(obtained("set", asked_for(healthy.address)))
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
    assert_whole(obtained("set", asked_for(server.address)))
    assert server.asked[0] == (f"bytes={len(part)}-" if part else None)


def test_a_wrong_file_is_refused_and_does_not_stay(serve):
    wrong = serve(OTHER)
    with refused(wrong.address, "does not give the official file", sha256(OTHER), sha256(CONTENT)):
        obtained("set", asked_for(wrong.address))
    assert names_in(cache_folder() / "set") == set()


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
    assert_whole(obtained("set", asked_for(bad.address, closed, good.address)))
    assert bad.asked
    assert good.asked


def test_when_all_addresses_fail_each_is_named(serve, closed):
    bad = [serve(**FAULTS[name]) for name in ("wrong", "not found", "hangs up")]
    with refused(*(server.address for server in bad), closed, "Not Found", "refused", "put it into"):
        obtained("set", asked_for(*(server.address for server in bad), closed))
    assert names_in(cache_folder() / "set") == set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_in_a_line(serve):
    (folder_of() / "file.bin.part").symlink_to("/dev/full")
    server = serve(CONTENT)
    with refused("file.bin.part", "No space left on device", "FEDLAP_DATA"):
        obtained("set", asked_for(server.address, server.address))
    assert server.asked == [None]  # another address would not help
    assert "file.bin" not in names_in(cache_folder() / "set")


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
from fedlap.data.storage import Original, obtained, official, sha256

address, digest = sys.argv[1:]

def work():
    path = obtained("set", Original("file.bin", (address,), official(digest)))
    assert sha256(path.read_bytes()) == digest
"""

MAKING = """
import time
import numpy as np
from fedlap.data.fast import kept

def make():
    time.sleep(0.1)
    return {"x": np.arange(300_000), "y": np.arange(7, dtype=np.uint8)}

def work():
    for _ in range(3):
        arrays = kept("made", make)
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
    at_once(OBTAINING, server.address, sha256(CONTENT))
    assert server.asked == [None]
    assert_whole(cache_folder() / "set" / "file.bin")


@needs_fork
def test_processes_that_make_the_same_fast_form_do_not_disturb_each_other():
    assert at_once(MAKING) == ""
    assert names_in(cache_folder() / "fast") == {"made.npz"}
    assert np.array_equal(fast.mapped(fast.fast_form("made"))["x"], np.arange(300_000))


# Folders.


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """Sets $FEDLAP_DATA to these names below a folder for this test, and gives their paths."""

    def name(*names):
        paths = [tmp_path / name for name in names]
        monkeypatch.setenv("FEDLAP_DATA", os.pathsep.join(map(str, paths)))
        return paths

    return name


def put(folder, content=CONTENT, name="set", file="file.bin"):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / file).write_bytes(content)


def test_folders_are_searched_in_order_and_the_cache_last(folders, closed):
    named = folders("a", "b")
    os.environ["FEDLAP_DATA"] += os.pathsep * 2  # an empty name is none
    places = [*named, cache_folder()]
    assert storage.data_folders() == places
    (places[0] / "set" / "file.bin").mkdir(parents=True)  # not a file
    for place in reversed(places[1:]):
        put(place)
        assert located("set", "file.bin") == place / "set" / "file.bin"
    before = [tree(place) for place in places]
    assert obtained("set", asked_for(closed)) == places[1] / "set" / "file.bin"
    assert [tree(place) for place in places] == before  # nothing is written where nothing is needed


def test_a_home_folder_is_understood(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDLAP_DATA", "~/data")
    assert storage.data_folders()[0] == tmp_path / "data"


def test_downloads_go_to_the_first_folder_that_can_be_written(folders, serve, tmp_path):
    (tmp_path / "file").write_bytes(b"as it was")
    _, good, later = folders("file/below", "good", "later")
    server = serve(CONTENT)
    assert obtained("set", asked_for(server.address)) == good / "set" / "file.bin"
    assert names_in(good / "set") == {"file.bin"}
    assert (tmp_path / "file").read_bytes() == b"as it was"
    assert not later.exists()
    assert not cache_folder().exists()


def test_without_a_folder_to_write_to_each_is_named(folders, tmp_path, closed):
    for name in ("file", "cache"):
        (tmp_path / name).write_bytes(b"")
    (below,) = folders("file/below")
    with refused(str(below / "set"), str(cache_folder() / "set"), "Not a directory", "FEDLAP_DATA"):
        obtained("set", asked_for(closed))


@pytest.mark.parametrize("name", [TOO_LONG, "~nobody-of-this-name/data"], ids=["too long", "of nobody"])
def test_a_folder_that_cannot_be_looked_into_is_passed_over(monkeypatch, serve, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLAP_DATA", os.pathsep.join([name, str(tmp_path / "good")]))
    server = serve(CONTENT)
    path = obtained("set", asked_for(server.address))
    assert path.read_bytes() == CONTENT


# The official sets, made small.

MEMBERS = {
    "activity_labels.txt": b"1 WALKING\n2 LAYING\n",
    "train/X_train.txt": b"0.5 0.25\n-1e-3 0\n",
    "train/y_train.txt": b"1\n2\n",
    "train/subject_train.txt": b"7\n9\n",
    "test/X_test.txt": b"1 2\n3 4\n",
    "test/y_test.txt": b"2\n1\n",
    "test/subject_test.txt": b"8\n8\n",
}


def pictures(count):
    return gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, count, 2, 2) + bytes(range(4 * count)), mtime=0)


def digits(*labels):
    return gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, len(labels)) + bytes(labels), mtime=0)


DIGITS = {
    "train-images-idx3-ubyte.gz": pictures(2),
    "train-labels-idx1-ubyte.gz": digits(3, 1),
    "t10k-images-idx3-ubyte.gz": pictures(1),
    "t10k-labels-idx1-ubyte.gz": digits(4),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """As if these were the official contents."""
    for module, files in ((har, MEMBERS), (mnist, DIGITS)):
        monkeypatch.setattr(module, "SHA256", {name: sha256(content) for name, content in files.items()})


def har_zip(nested=False, **changed):
    """The archive with these changes: None leaves a member out."""
    members = {name: content for name, content in {**MEMBERS, **changed}.items() if content is not None}
    inner = zipped({f"{har.ROOT}{name}": content for name, content in members.items()})
    return zipped({har.ARCHIVE: inner, "readme.txt": b"see inside"}) if nested else inner


@pytest.fixture
def official_at(monkeypatch):
    """Changes where the files of a set officially are."""

    def change(name, *addresses):
        source = SOURCES[name]
        originals = tuple(replace(each, addresses=addresses) for each in source.distribution.originals)
        distribution = replace(source.distribution, originals=originals)
        monkeypatch.setitem(SOURCES, name, replace(source, distribution=distribution))
        return distribution

    return change


@pytest.mark.parametrize("nested", [False, True])
def test_a_set_is_downloaded_checked_and_ready(serve, call, official_at, nested):
    wrong, right = serve(har_zip(nested, **{"test/y_test.txt": b"1\n"})), serve(har_zip(nested))
    distribution = official_at("har", wrong.address, right.address)
    assert distribution.state() == "to download"
    for times in (1, 2):
        code, out, err = call("data", "get", "har", out=False)
        assert (code, out) == (0, "har: ready, 4 rows\n")
        assert err.count("downloading UCI HAR Dataset.zip") == (2 if times == 1 else 0)
    assert right.asked == [None]
    assert distribution.state() == "ready"
    arrays = distribution.arrays()
    assert arrays["x"].tolist() == [[0.5, 0.25], [-1e-3, 0], [1, 2], [3, 4]]
    assert arrays["y"].tolist() == [0, 1, 1, 0]
    assert arrays["person"].tolist() == [7, 9, 8, 8]
    assert arrays["labels"].tolist() == ["WALKING", "LAYING"]


def test_a_set_in_a_folder_needs_no_download(folders, call, official_at, closed):
    one, two = folders("one", "two")
    for place, (file, content) in enumerate(DIGITS.items()):
        put((one, two)[place % 2], content, "mnist", file)
    before = tree(one), tree(two)
    assert official_at("mnist", closed).state() == "here"
    assert call("data", "get", "mnist", out=False) == (0, "mnist: ready, 3 rows\n", "")
    assert (tree(one), tree(two)) == before
    arrays = SOURCES["mnist"].distribution.arrays()
    assert arrays["x"].shape == (3, 1, 2, 2)
    assert arrays["y"].tolist() == [3, 1, 4]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hra", ["'hra'", "did you mean 'har'?"]),
        ("digits", ["'digits'", "needs no download"]),
        ("file", ["'file'", "needs no download"]),
    ],
)
def test_an_unknown_name_is_one_line(call, name, words):
    code, out, err = call("data", "get", name, out=False)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [word for word in words if word not in err] == []


@pytest.mark.parametrize("name", ["har", "vehicle", "mnist", "cifar10"])
def test_without_a_network_a_set_is_one_line(call, official_at, closed, name):
    distribution = official_at(name, closed, closed.replace("file", "mirror"))
    code, out, err = call("data", "get", name, out=False)
    assert (code, out, err.count("\n")) == (2, "", 1)
    words = [closed, "/mirror", "refused", distribution.originals[0].name, str(cache_folder() / name)]
    assert [word for word in words if word not in err] == []
    assert distribution.state() == "to download"


@contextmanager
def set_refused(name, *words):
    """The set is refused, says how to go on, and no fast form is made of it."""
    with refused(f"data {name!r}", "delete the file", f"fedlap data get {name}", *words):
        yield
    assert not (cache_folder() / "fast").exists()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_changed_member_is_named(folders, member, nested):
    (folder,) = folders("own")
    for content, word in ((MEMBERS[member] + b"\n", "SHA-256"), (None, "missing")):
        put(folder, har_zip(nested, **{member: content}), "har", har.ARCHIVE)
        with set_refused("har", str(folder / "har"), har.ARCHIVE, repr(member), word):
            SOURCES["har"].distribution.arrays()


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("file", DIGITS)
def test_a_changed_file_is_named_with_its_folder(folders, call, file, apart):
    one, two = folders("one", "two")
    bad = two if apart else one
    for name, content in DIGITS.items():
        put(bad if name == file else one, content[:-1] + b"?" if name == file else content, "mnist", name)
    with set_refused("mnist", str(bad / "mnist"), file, "SHA-256"):
        SOURCES["mnist"].distribution.arrays()
    code, out, err = call("data", "get", "mnist", out=False)
    assert (code, out, err.count("\n")) == (2, "", 1)


UNPACKED = SOURCES["cifar10"].distribution.unpacked


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("har", {har.ARCHIVE: HTML}, ["not a whole zip file"]),
        ("har", {har.ARCHIVE: har_zip()[:-40]}, ["not a whole zip file"]),
        ("har", {har.ARCHIVE: zipped({har.ARCHIVE: har_zip()[:-40]})}, ["not a whole zip file"]),
        ("har", {har.ARCHIVE: zipped({"../UCI HAR Dataset/evil": b""})}, ["missing"]),
        ("vehicle", {"event.zip": zipped({"events/runs/aav3/n1/x.txt": b"1 2"})}, ["0 files of features"]),
        ("vehicle", {"event.zip": HTML}, ["not a whole zip file"]),
        ("cifar10", {"cifar-10-binary.tar.gz": HTML}, ["not a whole tar.gz file"]),
        (
            "cifar10",
            {"cifar-10-binary.tar.gz": tarred({"cifar-10-batches-bin/data_batch_1.bin": "/etc/passwd"})},
            ["'data_batch_1.bin' is missing"],
        ),
        ("cifar10", dict.fromkeys(UNPACKED, HTML), ["'data_batch_1.bin' has SHA-256"]),
    ],
    ids=[
        "har page", "har cut", "har cut inside", "har evil", "vehicle other", "vehicle page", "cifar page",
        "cifar link", "cifar other",
    ],
)  # fmt: skip
def test_official_files_that_are_not_are_refused(folders, tmp_path, name, files, words):
    (folder,) = folders("own")
    for file, content in files.items():
        put(folder, content, name, file)
    before = tree(tmp_path)
    with set_refused(name, str(folder / name), *words):
        SOURCES[name].distribution.arrays()
    assert tree(tmp_path) == before


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read, for root too"
)
@pytest.mark.parametrize("name", ["har", "vehicle", "mnist", "cifar10"])
def test_an_official_file_that_cannot_be_read_is_refused(folders, name):
    (folder,) = folders("own")
    (folder / name).mkdir(parents=True)
    for original in SOURCES[name].distribution.originals:
        (folder / name / original.name).symlink_to("/proc/self/mem")
    with refused(name, SOURCES[name].distribution.originals[0].name, str(folder)):
        SOURCES[name].distribution.arrays()
