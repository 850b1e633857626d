"""Arrays cached in a mapped file: written once, complete, or written again."""

import os
import signal
from contextlib import contextmanager

import numpy as np
import pytest

from disk import TOO_LONG, folder_of, tree
from downloads import HTML, OTHER
from fedlap.data import cache
from fedlap.storage.cache_folder import get_cache_folder

pytestmark = pytest.mark.usefixtures("alone")


def names_in(folder):
    return {path.name for path in folder.iterdir()}


ARRAYS = {
    "single": np.array(2.5),
    "single text": np.array("Ångström"),
    "empty": np.zeros(0, np.float32),
    "empty cube": np.zeros((3, 0, 2), np.int16),
    "column order": np.asfortranarray(np.arange(35.0).reshape(5, 7)),
    "every other": np.arange(20)[::2],
    "text": np.array(["a", "", "Ωmega"]),
    "bytes": np.array([b"a", b"bcd"]),
    "uint8": np.arange(256, dtype=np.uint8).reshape(4, 1, 64),
    "float16": np.linspace(0, 1, 9, dtype=np.float16),
    "float64": np.array([[np.nan, np.inf], [-0.0, 1e-320]]),
    "bool": np.array([[True], [False]]),
    "complex": np.array([1 + 2j, 3]),
    "other end first": np.arange(5, dtype=">i4"),
    "dates": np.array(["2020-02-29", "NaT"], "datetime64[D]"),
    "records": np.array([(1, 2.5)], [("a", "u1"), ("b", "f8")]),
    "records in Greek": np.array([(1, 2.5)], [("α", "u1"), ("β", "f8")]),
    "big": np.arange(50_000, dtype=np.float64),
}


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_come_back_as_they_were_written(tmp_path, array, save):
    names = {"abcdefghi"[:length] for length in range(1, 10)}  # so that arrays begin anywhere in the file
    save(tmp_path / "arrays.npz", **dict.fromkeys(names, array))
    found = cache.map_npz(tmp_path / "arrays.npz")
    assert set(found) == names
    for back in found.values():
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array.tobytes()
        assert back.flags.writeable


def test_plain_bytes_are_mapped_and_writing_to_them_leaves_the_file(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, x=ARRAYS["uint8"])
    before = path.read_bytes()
    x = cache.map_npz(path)["x"]
    assert isinstance(x, np.memmap)
    x += 1
    x.flush()
    assert path.read_bytes() == before
    assert np.array_equal(cache.map_npz(path)["x"], ARRAYS["uint8"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_python_objects_are_refused(tmp_path, save):
    path = tmp_path / "arrays.npz"
    save(path, x=np.array([{}, None]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        cache.map_npz(path)


class Making:
    """Makes two arrays, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return {"x": np.arange(24.0).reshape(2, 12), "y": np.arange(5, dtype=np.uint8)}


def assert_built(arrays):
    expected = Making()()
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        assert np.array_equal(arrays[name], array)


def test_a_cached_array_file_is_made_once(capsys):
    make = Making()
    for _ in range(3):
        assert_built(cache.load_cached_arrays("made", make))
    assert make.times == 1
    assert names_in(get_cache_folder() / "fast") == {"made.npz"}
    assert capsys.readouterr().err == ""


DAMAGES = {
    "empty": lambda whole: b"",
    "garbage": lambda whole: OTHER,
    "zeros": lambda whole: bytes(len(whole)),
    "a page": lambda whole: HTML,
    "beginning lost": lambda whole: bytes(100) + whole[100:],
    "end lost": lambda whole: whole[:-100] + bytes(100),
    "other names": lambda whole: (
        whole[: whole.index(b"PK\1\2")] + whole[whole.index(b"PK\1\2") :].replace(b"x.npy", b"z.npy")
    ),
    **{
        f"cut to {part}/14": lambda whole, part=part: whole[: len(whole) * part // 14]
        for part in range(1, 14)
    },
    "last byte lost": lambda whole: whole[:-1],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cached_array_file_is_made_again(capsys, damage):
    make = Making()
    cache.load_cached_arrays("made", make)
    path = cache.locate_cached_arrays("made")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    for _ in range(2):
        assert_built(cache.load_cached_arrays("made", make))
    assert make.times == 2
    assert capsys.readouterr().err == f"note: {path} is damaged and is rebuilt\n"
    assert path.read_bytes() == whole
    assert names_in(path.parent) == {"made.npz"}


def test_a_cached_array_file_with_a_changed_byte_is_no_traceback():
    make = Making()
    cache.load_cached_arrays("made", make)
    path = cache.locate_cached_arrays("made")
    whole = path.read_bytes()
    surprises = set()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :])
        try:
            cache.load_cached_arrays("made", make)
        except Exception as error:
            surprises.add(repr(error))
    assert surprises == set()


def below_a_file(tmp_path):
    (tmp_path / "cache").write_bytes(b"")


def fast_is_a_file(tmp_path):
    (folder_of(".") / "fast").write_bytes(b"")


def its_name_is_taken(tmp_path):
    cache.locate_cached_arrays("made").mkdir(parents=True)


def cannot_be_looked_into(tmp_path):
    os.environ["XDG_CACHE_HOME"] = str(tmp_path / TOO_LONG)  # set back by the fixture


@pytest.mark.parametrize("hinder", [below_a_file, fast_is_a_file, its_name_is_taken, cannot_be_looked_into])
def test_without_a_cached_array_file_arrays_come_all_the_same(tmp_path, capsys, hinder):
    hinder(tmp_path)
    before = tree(tmp_path)
    make = Making()
    for times in (1, 2):
        assert_built(cache.load_cached_arrays("made", make))
        assert make.times == times
        err = capsys.readouterr().err
        assert err.startswith(f"note: {cache.locate_cached_arrays('made')} cannot be written (")
        assert err.count("\n") == 1
        assert "None" not in err
    assert tree(tmp_path) == before


@contextmanager
def files_up_to(size):
    """Limit the files that this process writes to `size` bytes, as a full disk would."""
    resource = pytest.importorskip("resource")
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN  # Python's own choice: writing fails instead
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_cached_array_file_that_does_not_fit_leaves_nothing(capsys):
    originals = {"x": np.arange(10), "y": np.arange(100_000)}
    with files_up_to(20_000):
        arrays = cache.load_cached_arrays("made", lambda: originals)
    assert all(np.array_equal(arrays[name], array) for name, array in originals.items())
    note = (
        f"note: {cache.locate_cached_arrays('made')} cannot be written (File too large); made is not cached\n"
    )
    assert capsys.readouterr().err == note
    assert names_in(get_cache_folder() / "fast") == set()
    assert np.array_equal(
        cache.load_cached_arrays("made", lambda: originals)["y"], originals["y"]
    )  # once there is space again
    assert names_in(get_cache_folder() / "fast") == {"made.npz"}
