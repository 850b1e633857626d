"""Helpers that create and inspect files and folders, and expect errors about them."""

import io
import tarfile
import zipfile
from contextlib import contextmanager

import pytest

import fedlap as fl
from fedlap.storage.cache_folder import get_cache_folder

TOO_LONG = "n" * 300  # no system has folders of such names: asking for one is an error other than "not there"


@contextmanager
def expect_error(*words):
    """Expect an InputError of one line with these words in it."""
    with pytest.raises(fl.InputError) as error:
        yield
    text = str(error.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == [], text


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def folder_of(name="set"):
    folder = get_cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_zip(members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def make_tar(members):
    """Pack members whose content is bytes, or for a link the name of its target."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()
