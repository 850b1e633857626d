"""Small copies of the official data sets: downloaded, checked and ready, or refused by name."""

import gzip
import struct
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from disk import expect_error, make_tar, make_zip, tree
from downloads import HTML, closing, naming, put, serving  # noqa: F401 — fixtures
from fedlap.data import SOURCES, har, mnist
from fedlap.data.download import compute_sha256
from fedlap.storage.cache_folder import get_cache_folder

pytestmark = pytest.mark.usefixtures("alone")

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
    for module, name, files in ((har, "HAR_SHA256", MEMBERS), (mnist, "MNIST_SHA256", DIGITS)):
        digests = {file: compute_sha256(content) for file, content in files.items()}
        monkeypatch.setattr(module, name, digests)


def har_zip(nested=False, **changed):
    """The archive with these changes: None leaves a member out."""
    members = {name: content for name, content in {**MEMBERS, **changed}.items() if content is not None}
    inner = make_zip({f"{har.HAR_FOLDER}{name}": content for name, content in members.items()})
    return make_zip({har.HAR_ARCHIVE: inner, "readme.txt": b"see inside"}) if nested else inner


@pytest.fixture
def official_at(monkeypatch):
    """Changes where the files of a set officially are."""

    def change(name, *addresses):
        source = SOURCES[name]
        official_files = tuple(
            replace(file, addresses=addresses) for file in source.distribution.official_files
        )
        distribution = replace(source.distribution, official_files=official_files)
        monkeypatch.setitem(SOURCES, name, replace(source, distribution=distribution))
        return distribution

    return change


@pytest.mark.parametrize("nested", [False, True])
def test_a_set_is_downloaded_checked_and_ready(serve, call, official_at, nested):
    wrong, right = serve(har_zip(nested, **{"test/y_test.txt": b"1\n"})), serve(har_zip(nested))
    distribution = official_at("har", wrong.address, right.address)
    assert distribution.find_state() == "to download"
    for times in (1, 2):
        code, out, err = call("data", "get", "har", out=False)
        assert (code, out) == (0, "har: ready, 4 rows\n")
        assert err.count("downloading UCI HAR Dataset.zip") == (2 if times == 1 else 0)
    assert right.asked == [None]
    assert distribution.find_state() == "ready"
    arrays = distribution.load_arrays()
    assert arrays["x"].tolist() == [[0.5, 0.25], [-1e-3, 0], [1, 2], [3, 4]]
    assert arrays["y"].tolist() == [0, 1, 1, 0]
    assert arrays["person"].tolist() == [7, 9, 8, 8]
    assert arrays["labels"].tolist() == ["WALKING", "LAYING"]


def test_a_set_in_a_folder_needs_no_download(folders, call, official_at, closed):
    one, two = folders("one", "two")
    for place, (file, content) in enumerate(DIGITS.items()):
        put((one, two)[place % 2], content, "mnist", file)
    before = tree(one), tree(two)
    assert official_at("mnist", closed).find_state() == "here"
    assert call("data", "get", "mnist", out=False) == (0, "mnist: ready, 3 rows\n", "")
    assert (tree(one), tree(two)) == before
    arrays = SOURCES["mnist"].distribution.load_arrays()
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


@pytest.mark.parametrize("name", ["har", "vehicle", "mnist", "cifar10", "colorado"])
def test_without_a_network_a_set_is_one_line(call, official_at, closed, name):
    distribution = official_at(name, closed, closed.replace("file", "mirror"))
    code, out, err = call("data", "get", name, out=False)
    assert (code, out, err.count("\n")) == (2, "", 1)
    words = [
        closed,
        "/mirror",
        "refused",
        distribution.official_files[0].name,
        str(get_cache_folder() / name),
    ]
    assert [word for word in words if word not in err] == []
    assert distribution.find_state() == "to download"


@contextmanager
def set_refused(name, *words):
    """The set is refused, the error says what to do, and no arrays are cached."""
    with expect_error(f"data {name!r}", "delete the file", f"fedlap data get {name}", *words):
        yield
    assert not (get_cache_folder() / "fast").exists()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_changed_member_is_named(folders, member, nested):
    (folder,) = folders("own")
    for content, word in ((MEMBERS[member] + b"\n", "SHA-256"), (None, "missing")):
        put(folder, har_zip(nested, **{member: content}), "har", har.HAR_ARCHIVE)
        with set_refused("har", str(folder / "har"), har.HAR_ARCHIVE, repr(member), word):
            SOURCES["har"].distribution.load_arrays()


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("file", DIGITS)
def test_a_changed_file_is_named_with_its_folder(folders, call, file, apart):
    one, two = folders("one", "two")
    bad = two if apart else one
    for name, content in DIGITS.items():
        put(bad if name == file else one, content[:-1] + b"?" if name == file else content, "mnist", name)
    with set_refused("mnist", str(bad / "mnist"), file, "SHA-256"):
        SOURCES["mnist"].distribution.load_arrays()
    code, out, err = call("data", "get", "mnist", out=False)
    assert (code, out, err.count("\n")) == (2, "", 1)


UNPACKED = SOURCES["cifar10"].distribution.unpacked


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("har", {har.HAR_ARCHIVE: HTML}, ["not a complete zip file"]),
        ("har", {har.HAR_ARCHIVE: har_zip()[:-40]}, ["not a complete zip file"]),
        ("har", {har.HAR_ARCHIVE: make_zip({har.HAR_ARCHIVE: har_zip()[:-40]})}, ["not a complete zip file"]),
        ("har", {har.HAR_ARCHIVE: make_zip({"../UCI HAR Dataset/evil": b""})}, ["missing"]),
        ("vehicle", {"event.zip": make_zip({"events/runs/aav3/n1/x.txt": b"1 2"})}, ["0 files of features"]),
        ("vehicle", {"event.zip": HTML}, ["not a complete zip file"]),
        ("cifar10", {"cifar-10-binary.tar.gz": HTML}, ["not a complete tar.gz file"]),
        (
            "cifar10",
            {"cifar-10-binary.tar.gz": make_tar({"cifar-10-batches-bin/data_batch_1.bin": "/etc/passwd"})},
            ["'data_batch_1.bin' is missing"],
        ),
        ("cifar10", dict.fromkeys(UNPACKED, HTML), ["'data_batch_1.bin' has SHA-256"]),
        ("colorado", {"COmonthlyMet.rda": HTML}, ["'COmonthlyMet.rda' has SHA-256"]),
        ("colorado", {"fields_14.1.tar.gz": make_tar({"fields/x": b""})}, ["'COmonthlyMet.rda' is missing"]),
    ],
    ids=[
        "har page", "har cut", "har cut inside", "har evil", "vehicle other", "vehicle page", "cifar page",
        "cifar link", "cifar other", "colorado page", "colorado other",
    ],
)  # fmt: skip
def test_official_files_that_are_not_are_refused(folders, tmp_path, name, files, words):
    (folder,) = folders("own")
    for file, content in files.items():
        put(folder, content, name, file)
    before = tree(tmp_path)
    with set_refused(name, str(folder / name), *words):
        SOURCES[name].distribution.load_arrays()
    assert tree(tmp_path) == before


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read, for root too"
)
@pytest.mark.parametrize("name", ["har", "vehicle", "mnist", "cifar10", "colorado"])
def test_an_official_file_that_cannot_be_read_is_refused(folders, name):
    (folder,) = folders("own")
    (folder / name).mkdir(parents=True)
    for original in SOURCES[name].distribution.official_files:
        (folder / name / original.name).symlink_to("/proc/self/mem")
    with expect_error(name, SOURCES[name].distribution.official_files[0].name, str(folder)):
        SOURCES[name].distribution.load_arrays()
