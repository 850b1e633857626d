"""Tiny stored runs: helpers that train them and read their folders."""

import json

import pytest

TINY = (
    "--data", "synthetic", "--set", "data.clients=4", "--set", "data.features=3", "--set", "data.rows=8",
    "--set", "data.test_rows=4", "--save-rounds", "1",
)  # fmt: skip
RUN = ("run", *TINY)
COMPARE = ("compare", *TINY, "--algorithms", "fedu,scaffold", "--seeds", "0-1", "--json")


@pytest.fixture(name="run")
def running(call, tmp_path):
    """Run `fedlap run …` on tiny data; return its folder and the notes on stderr."""

    def run(*words, out="runs", command=RUN):
        code, printed, err = call(*command, "--json", *words, "--out", str(tmp_path / out), out=False)
        assert code == 0, err
        return tmp_path / out / json.loads(printed)["folder"].rpartition("/")[2], err

    return run


def files(folder):
    """Return the bytes and the modification time of every stored file."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def rounds(folder):
    """The lines of rounds.jsonl but for the times."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


def same(one, other):
    """Two folders of one run are alike in all but times."""
    assert one.name == other.name
    assert rounds(one) == rounds(other)
    for name in ("experiment.toml", "models/models.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    last = [max((folder / "checkpoint").iterdir()) for folder in (one, other)]
    assert last[0].name == last[1].name
    assert (last[0] / "state.safetensors").read_bytes() == (last[1] / "state.safetensors").read_bytes()


def read_error(answer):
    """Return the one error line of a refused command."""
    code, out, err = answer
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(errors)) == (2, "", 1), err
    assert err.splitlines()[-1] == errors[0]
    assert "Traceback" not in err
    return errors[0]


def checkpoint(folder, round):
    return folder / "checkpoint" / f"round-{round:08d}"
