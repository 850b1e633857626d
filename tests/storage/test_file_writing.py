"""One writer: exclusive, by the umask, whole or not at all, and clean after processes that were killed."""

import ast
import io
import os
import signal
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import fedlap as fl
from fedlap.experiments import checkpoints
from fedlap.experiments.checkpoints import Owner
from fedlap.storage import files
from fedlap.storage.tensor_files import SAFETENSORS_NAMES, parse_tensors, write_tensors
from fedlap.training.result import Progress

SRC = Path(fl.__file__).parent

# Calls that write to a file or give one its name, and where they may be: a compiler writes the kernel, a
# download is renamed when it is whole, the archive of cached arrays is in a file that the writer has opened,
# and to_csv, save_npz, mmwrite and the archive of a graph into memory.
WRITERS = {
    "write_bytes", "write_text", "save_file", "savez", "savez_compressed", "save", "tofile", "to_csv",
    "to_parquet", "save_npz", "mmwrite", "savefig", "FileIO", "mkstemp", "TemporaryFile",
    "NamedTemporaryFile", "symlink_to", "renames",
}  # fmt: skip
ALLOWED = {
    "data/cache.py": {"open"},  # of a member of an archive in a file that the writer has opened
    "data/federation_folder.py": {"save"},  # into a folder that replaces another when it is whole
    "costs/calibration.py": {"write_text"},  # to /proc, which resets a counter
    "storage/mapped_tensors.py": {"TemporaryFile"},  # without a name
    "graph/io.py": {"save", "save_npz", "mmwrite", "open"},
    "cli/export.py": {"save"},  # of a model, by the writer
    "cli/join.py": {"save"},  # as well
    "cli/peer.py": {"save"},  # as well
    "cli/site_client.py": {"save"},  # as well
    "deploy/site_model.py": {"save"},  # as well
    "deploy/client_storage.py": {"save"},  # of a worker, by the writer
    "deploy/keys.py": {"save", "symlink_to"},  # of the register, by the writer; of a link to it
    "report/png.py": {"savefig"},
    "report/page/matplotlib_figures.py": {"savefig"},
    "report/score_export.py": {"to_csv", "to_parquet"},
    "data/download.py": {"replace of a path"},
    "kernels/cpp_compiler.py": {"replace of a path"},
    "deploy/event_log.py": {"replace of a path"},  # rotation: names alone change
    "cli/streams.py": {"open"},  # of the null device, where standard output is lost
}


def writing_calls(path):
    """Names of calls that write, in a file of the sources."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if name == "open":
            words = [value.value for value in [*node.args, *(k.value for k in node.keywords)]
                     if isinstance(value, ast.Constant) and isinstance(value.value, str)]  # fmt: skip
            if owner == "os" or any(set(word) & set("wxa+") and len(word) < 4 for word in words):
                yield "open"
        elif name in ("replace", "rename"):
            if len(node.args) == 1 and not node.keywords and isinstance(node.func, ast.Attribute):
                yield f"{name} of a path"
        elif name in WRITERS and owner not in ("result.personals", "run", "self"):
            yield name


def test_nothing_else_writes():
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        at = str(path.relative_to(SRC))
        others = set(writing_calls(path)) - ALLOWED.get(at, set())
        if at != "storage/files.py" and others:
            found[at] = others
    assert found == {}
    assert "open" in set(writing_calls(SRC / "storage" / "files.py"))


def progress():
    W = torch.arange(6.0).reshape(2, 3)
    return Progress(1, W, None, (1, 2), 0.5, [])


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_permissions_are_those_of_the_umask(mask, tmp_path, federation, graph):
    before = os.umask(mask)
    try:
        files.write_file(tmp_path / "a" / "file", b"content")
        checkpoints.write_checkpoint(tmp_path / "checkpoint", progress(), Owner("e", ("e",)))
        fl.fit(fl.FedU(graph), federation, fl.models.linear(), rounds=1).personals.save(tmp_path / "models")
    finally:
        os.umask(before)
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(paths) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o666 & ~mask}
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o777 & ~mask}


def test_a_planted_name_is_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / f".out.{os.getpid()}").symlink_to(tmp_path / "victim")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    files.write_file(tmp_path / "out", b"new")
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "out").read_bytes() == b"new"
    assert not (tmp_path / "out").is_symlink()


def test_names_are_new_each_time_and_fit_a_long_one(tmp_path):
    path = tmp_path / ("ä" * 120)
    assert len({files.choose_temporary_path(path).name for _ in range(100)}) == 100
    files.write_file(path, b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "out").write_bytes(b"old")

    def write():
        with files.replace_file(tmp_path / "out") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"out": b"old"}


def start_writer(folder, until):
    """Start a process that calls `until` in the middle of writing a file and a folder."""
    child = os.fork()
    if child == 0:
        with files.replace_folder(folder / "round"), files.replace_file(folder / "out") as file:
            file.write(b"half")
            file.flush()
            until()
        os._exit(0)
    return child


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    folder = tmp_path
    assert exit_code(start_writer(folder, die)) == -signal.SIGKILL
    left = names(folder)
    assert len(left) == 2
    go, going, (ready, notify) = *os.pipe(), os.pipe()
    living = start_writer(folder, lambda: (os.write(notify, b"."), os.close(going), os.read(go, 1)))
    assert os.read(ready, 1) == b"."
    temporary = names(folder)
    assert len(temporary) == 2  # the living process has swept the folder before it wrote
    assert not temporary & left
    elsewhere = min(temporary).replace(files._identify_host(), "0" * 8)
    users = {".fedlap-notes", ".fedlap-00000000-1-x", "notes"}
    for name in (elsewhere, *users):
        (folder / name).write_bytes(b"")
    files.remove_stale_files(folder)
    assert names(folder) == {*temporary, elsewhere, *users}
    os.close(going)
    assert exit_code(living) == 0
    assert names(folder) == {"out", "round", elsewhere, *users}


def test_the_next_write_into_a_folder_removes_them(tmp_path):
    assert exit_code(start_writer(tmp_path, die)) == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    files.write_file(tmp_path / "other", b"")
    assert names(tmp_path) == {"other"}


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "folder"])
def test_only_regular_files_are_replaced(tmp_path, kind):
    at, to = tmp_path / "at", tmp_path / "to"
    at.mkdir() if kind == "folder" else os.mkfifo(at)
    to.symlink_to(at) if kind.startswith("link") else at.rename(to)
    before = to.lstat().st_mode
    with pytest.raises(
        fl.InputError, match=r"to cannot be written \(it is a (FIFO|directory); use a regular file"
    ):
        files.write_file(to, b"content")
    assert to.lstat().st_mode == before
    assert len(names(tmp_path)) == (2 if kind.startswith("link") else 1)


def every_type():
    draw = torch.Generator().manual_seed(0)
    tensors = {str(kind): torch.randint(0, 2, (3, 5), generator=draw).to(kind) for kind in SAFETENSORS_NAMES}
    empty = {"none": torch.zeros(0, 4), "one": torch.tensor(7), 'a "name" of umlauts äöü': torch.ones(1)}
    return tensors | empty | {"turned": torch.rand(3, 4, generator=draw).T}


def test_tensors_are_in_the_bytes_of_safetensors(tmp_path):
    tensors = every_type()
    with files.replace_file(tmp_path / "t") as file:
        size, digest = write_tensors(file, tensors)
    content = (tmp_path / "t").read_bytes()
    assert content == safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    assert (size, digest) == (len(content), files.hash_file(tmp_path / "t"))
    back = parse_tensors(content)
    assert set(back) == set(tensors)
    assert all(
        torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype
        for name, tensor in tensors.items()
    )


def test_tensors_are_written_without_a_copy():
    tensor, seen = torch.arange(1000.0), []

    class Watched(io.BytesIO):
        def write(self, piece):
            seen.append(np.frombuffer(piece, np.uint8).ctypes.data)

    write_tensors(Watched(), {"x": tensor})
    assert seen[-1] == tensor.data_ptr()
