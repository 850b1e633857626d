"""A run that resumes where numbers may come out otherwise says so."""

import json

import pytest
import torch

from fedlap.kernels import cpp_library
from run_folders import running  # noqa: F401 — a fixture

REMARK = "last digits may differ from an unbroken run"


@pytest.mark.skipif(cpp_library.load_library(torch.float32) is None, reason="no C++ compiler")
@pytest.mark.parametrize("first", ["present", "missing"])
def test_resume_says_that_the_compiler_is_missing_now_or_was_then(first, run, call, monkeypatch):
    def with_compiler(present, job, *words):
        with monkeypatch.context() as patched:
            if not present:
                patched.setattr(cpp_library, "load_library", lambda dtype: None)
            return job(*words)

    folder, _ = with_compiler(first == "present", run, "--rounds", "2")
    before = json.loads((folder / "environment.json").read_text())["kernel"]
    code, _, notes = with_compiler(first == "missing", call, "resume", str(folder), "--rounds", "3")
    now = json.loads((folder / "environment.json").read_text())["kernel"]
    assert code == 0
    assert [before is None, now is None] == ([False, True] if first == "present" else [True, False])
    assert f"kernel was {before!r} and is now {now!r}; {REMARK}" in " ".join(notes.split())
    assert REMARK not in with_compiler(first == "missing", call, "resume", str(folder), "--rounds", "4")[2]


def test_an_environment_from_before_the_kernel_was_recorded_says_nothing(run, call):
    folder, _ = run("--rounds", "2")
    file = folder / "environment.json"
    known = json.loads(file.read_text())
    del known["kernel"]
    file.write_text(json.dumps(known))
    assert REMARK not in call("resume", str(folder), "--rounds", "3")[2]
