"""Files of changes: an order without a clock, and no file that a process cannot read ends it."""

import os
import stat
import time

import pytest

from fedlap.deploy import change_files
from fedlap.deploy.change_files import CHANGES_FOLDER, take_change_files, write_change_file
from fedlap.deploy.roster_changes import RosterChange
from fedlap.errors import InputError

CHANGES = [RosterChange(kind, "e").to_dict() for kind in ("join", "leave", "eject")]


def test_changes_are_taken_in_the_order_of_the_commands_whatever_the_clock(tmp_path, monkeypatch):
    times = iter([3, 2, 1])
    monkeypatch.setattr(time, "time_ns", lambda: next(times, 0))
    for change in CHANGES:
        write_change_file(tmp_path, change)
    assert list(take_change_files(tmp_path)) == CHANGES
    assert list(take_change_files(tmp_path)) == []


def test_changes_of_one_moment_do_not_replace_each_other(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(change_files, "_list_files", lambda changes: [])
        for change in CHANGES:
            write_change_file(tmp_path, change)
    assert len(list(take_change_files(tmp_path))) == len(CHANGES)


def test_a_file_that_cannot_be_read_is_removed_and_refused(tmp_path, monkeypatch):
    """As a file that root has written, for a server of another user."""

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    for change in CHANGES[:2]:
        write_change_file(tmp_path, change)
    with monkeypatch.context() as patch:
        patch.setattr(change_files, "read_file", refuse)
        assert list(take_change_files(tmp_path)) == [None, None]
    assert list((tmp_path / CHANGES_FOLDER).iterdir()) == []
    with pytest.raises(InputError, match="belongs to another user; give the command again, as the user of"):
        RosterChange.parse(None)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_removed_and_refused(content, tmp_path):
    write_change_file(tmp_path, CHANGES[0])
    (path,) = (tmp_path / CHANGES_FOLDER).iterdir()
    path.write_bytes(content)
    assert list(take_change_files(tmp_path)) == [None]
    assert not path.exists()


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_the_process_of_the_run_owns_the_folder_and_others_read_nothing(tmp_path):
    mask = os.umask(0)
    try:
        assert list(take_change_files(tmp_path)) == []
        folder = tmp_path / CHANGES_FOLDER
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        write_change_file(tmp_path, CHANGES[0])
        (path,) = folder.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(mask)
