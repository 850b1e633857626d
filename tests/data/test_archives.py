"""Members of archives, whatever is in them."""

import gzip
import stat
import struct
import tarfile
import zipfile

import pytest

import fedlap as fl
from disk import expect_error, make_tar, make_zip, tree
from downloads import CONTENT, HTML, OTHER
from fedlap.data import archives

pytestmark = pytest.mark.usefixtures("alone")


def read_zip(path):
    return archives.read_zip(path, lambda name: True, path.name)


def read_tar(path):
    return archives.read_tar(path, lambda name: True)


PACKED = {"good.txt": b"good " * 20, "é.txt": b"accent"}
KINDS = {"zip": (make_zip, read_zip), "tar": (make_tar, read_tar)}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_members_that_point_elsewhere_write_nothing(tmp_path, kind):
    pack, read = kind
    inner, secret = tmp_path / "a" / "b", tmp_path / "secret"
    inner.mkdir(parents=True)
    secret.write_bytes(b"secret")
    plain = {"../evil": b"evil", str(tmp_path / "absolute"): b"evil", "../../secret": b"evil", **PACKED}
    link = {"link": str(secret), "link/evil": b"evil"}
    if pack is make_zip:
        info = zipfile.ZipInfo("link")
        info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        link = {info: str(secret), "link/evil": b"evil"}
    path = inner / "archive"
    path.write_bytes(pack({**plain, **link}))
    before = tree(tmp_path)
    members = read(path)
    assert tree(tmp_path) == before
    expected = {**plain, "link/evil": b"evil"}
    if pack is make_zip:
        expected["link"] = str(secret).encode()  # not what it leads to; in a tar file, links are left out
    assert members == expected


def test_archives_cut_short_are_refused(tmp_path, kind):
    pack, read = kind
    path = tmp_path / "archive"
    whole = pack({"noise": CONTENT, **PACKED})
    for length in (0, 1, 10, 100, 1_000, len(whole) // 2, len(whole) - 60):
        path.write_bytes(whole[:length])
        with expect_error("archive is not a complete"):
            read(path)


def test_pages_instead_of_archives_are_refused(tmp_path, kind):
    path = tmp_path / "archive"
    for content in (HTML, gzip.compress(HTML), OTHER):
        path.write_bytes(content)
        with expect_error("archive is not a complete"):
            kind[1](path)


@pytest.mark.parametrize("mask", [0x01, 0x04, 0x80, 0xFF])
def test_archives_with_a_changed_byte_are_refused_or_harmless(tmp_path, kind, mask):
    pack, read = kind
    path = tmp_path / "archive"
    whole = pack(PACKED)
    surprises = set()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
        try:
            members = read(path)
        except fl.InputError:
            continue
        except Exception as error:
            surprises.add(repr(error))
        else:
            assert pack is make_tar or set(members.values()) <= set(PACKED.values())  # tar has no sums
    assert surprises == set()


def test_members_that_claim_to_be_huge_are_refused(tmp_path, kind):
    pack, read = kind
    path = tmp_path / "archive"
    if pack is make_zip:
        whole = bytearray(make_zip({"huge": b"small"}))
        struct.pack_into("<I", whole, 22, 0xFFFF_FFF0)  # the size, before the member and in the directory
        struct.pack_into("<I", whole, whole.index(b"PK\1\2") + 24, 0xFFFF_FFF0)
        path.write_bytes(whole)
    else:
        info = tarfile.TarInfo("huge")
        info.size = 1 << 40
        path.write_bytes(gzip.compress(info.tobuf() + bytes(512)))
    with expect_error("archive: 'huge' has ", "expected at most 268,435,456"):
        read(path)
