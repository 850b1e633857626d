"""Folders of data: where files are looked for, and where downloads go."""

import os

import pytest

from disk import TOO_LONG, expect_error, tree
from downloads import CONTENT, asked_for, closing, names_in, naming, put, serving  # noqa: F401 — fixtures
from fedlap.data import download
from fedlap.data.download import fetch_file, find_file
from fedlap.storage.cache_folder import get_cache_folder

pytestmark = pytest.mark.usefixtures("alone")


def test_folders_are_searched_in_order_and_the_cache_last(folders, closed):
    named = folders("a", "b")
    os.environ["FEDLAP_DATA"] += os.pathsep * 2  # an empty name is none
    places = [*named, get_cache_folder()]
    assert download.get_data_folders() == places
    (places[0] / "set" / "file.bin").mkdir(parents=True)  # not a file
    for place in reversed(places[1:]):
        put(place)
        assert find_file("set", "file.bin") == place / "set" / "file.bin"
    before = [tree(place) for place in places]
    assert fetch_file("set", asked_for(closed)) == places[1] / "set" / "file.bin"
    assert [tree(place) for place in places] == before  # nothing is written where nothing is needed


def test_a_home_folder_is_understood(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDLAP_DATA", "~/data")
    assert download.get_data_folders()[0] == tmp_path / "data"


def test_downloads_go_to_the_first_folder_that_can_be_written(folders, serve, tmp_path):
    (tmp_path / "file").write_bytes(b"as it was")
    _, good, later = folders("file/below", "good", "later")
    server = serve(CONTENT)
    assert fetch_file("set", asked_for(server.address)) == good / "set" / "file.bin"
    assert names_in(good / "set") == {"file.bin"}
    assert (tmp_path / "file").read_bytes() == b"as it was"
    assert not later.exists()
    assert not get_cache_folder().exists()


def test_without_a_folder_to_write_to_each_is_named(folders, tmp_path, closed):
    for name in ("file", "cache"):
        (tmp_path / name).write_bytes(b"")
    (below,) = folders("file/below")
    with expect_error(str(below / "set"), str(get_cache_folder() / "set"), "Not a directory", "FEDLAP_DATA"):
        fetch_file("set", asked_for(closed))


@pytest.mark.parametrize("name", [TOO_LONG, "~nobody-of-this-name/data"], ids=["too long", "of nobody"])
def test_a_folder_that_cannot_be_looked_into_is_passed_over(monkeypatch, serve, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLAP_DATA", os.pathsep.join([name, str(tmp_path / "good")]))
    server = serve(CONTENT)
    path = fetch_file("set", asked_for(server.address))
    assert path.read_bytes() == CONTENT
