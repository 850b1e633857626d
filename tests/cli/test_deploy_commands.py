"""Commands of a run with a server: typos, a finished run, and a client's folder and model."""

import json
import os
import shutil
import stat

import pytest
import torch

from deployment_processes import build_federation, describe_plan, format_toml
from deployments import LocalDeployment, read_model
from fedlap.deploy import client as client_module
from fedlap.deploy.change_files import CHANGES_FOLDER
from fedlap.deploy.client_storage import MODEL_FILE, ClientStorage
from fedlap.deploy.event_log import EVENT_LOG_FILE
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.errors import InputError
from fedlap.personal import Personal
from fedlap.storage.locks import raise_if_locked


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """The folder of a finished run: those of the server and of its clients a to d."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "FIRST_DELAY", 0.0)
        patch.setattr(os, "fsync", lambda descriptor: None)
        values = describe_plan(rounds=2, evaluate_every=1, graph={"name": "complete"})
        LocalDeployment(folder, Plan.of(values), build_federation()).run()
    lines = [f"{key} = {format_toml(value)}" for key, value in values.items()]
    (folder / "plan.toml").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def folder(finished_run, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished_run, tmp_path / "run")


def read_error(call, *words):
    """Return the one line with which a command ends."""
    code, out, err = call(*words, out=False)
    assert (code, out) == (2, "")
    line = " ".join(err.split())  # a console folds long lines
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("eject", "{}", "cc"), "unknown client 'cc'; did you mean 'c'?"),
        (("admit", "{}", "e", "--neighbours", "a,dd"), "unknown neighbour 'dd'; did you mean 'd'?"),
        (("admit", "{}", "a"), "client 'a' is part of the run already; choose another name"),
        (("admit", "{}", "e", "--neighbours", "a=0"), "neighbour 'a'"),
    ],
)
def test_a_typo_in_a_change_of_the_roster_is_refused_by_the_command(words, expected, folder, call):
    server = str(folder / "server")
    line = read_error(call, *(word.format(server) for word in words))
    assert expected in line
    assert not (folder / "server" / CHANGES_FOLDER).exists()


def test_a_change_of_the_roster_is_requested(folder, call):
    server = folder / "server"
    for number, words in enumerate(
        [("admit", str(server), "e", "--neighbours", "a,d=2"), ("eject", str(server), "c")], 1
    ):
        code, out, _ = call(*words, out=False)
        assert code == 0
        assert f"{words[2]}: requested; see fedlap status" in " ".join(out.split())
        assert len(list((server / CHANGES_FOLDER).iterdir())) == number


def test_a_newcomer_that_is_admitted_can_be_ejected(folder, call):
    change = RosterChange("join", "e", {"a": 1.0}).to_dict()
    (folder / "server" / "pending.json").write_text(json.dumps([change]))
    code, out, _ = call("eject", str(folder / "server"), "e", out=False)
    assert (code, out.startswith("e: requested")) == (0, True)


def test_a_finished_run_that_is_served_again_is_done(folder, call):
    """It neither listens nor waits for clients, and its folder stays as it is."""
    umask = os.umask(0)
    os.umask(umask)
    server = folder / "server"
    before = {path: path.read_bytes() for path in server.rglob("*") if path.is_file()}
    try:
        for _ in range(2):
            code, out, err = call(
                "serve", str(folder / "plan.toml"), "--insecure", "--folder", str(server),
                "--listen", "127.0.0.1:0", out=False,
            )  # fmt: skip
            text = " ".join(out.split())
            assert (code, err) == (0, "")
            assert text.startswith("test is done: 2 rounds, folder")
            assert text.endswith("the models are in the clients' folders")
    finally:
        os.umask(umask)
    after = {path: path.read_bytes() for path in server.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert {path.name for path in set(after) - set(before)} <= {EVENT_LOG_FILE, ".lock", "lock"}


def test_a_model_is_copied_without_a_connection(folder, call, tmp_path):
    to, umask = tmp_path / "north.safetensors", os.umask(0o022)
    try:
        code, out, _ = call(
            "client", "--name", "a", "--folder", str(folder / "a"), "--model-only", str(to), out=False
        )
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)
    assert code == 0
    assert to.name in "".join(out.split())
    assert torch.equal(Personal.load(to).parameters.unsqueeze(0), read_model(folder / "a"))
    rows = tmp_path / "rows.csv"
    rows.write_text("u,v,w,t\n0.5,1,-1,2\n")
    code, out, _ = call("predict", str(to), str(rows), out=False)
    assert code == 0
    assert [stat.S_IMODE(path.stat().st_mode) for path in (to, to.with_suffix(".json"))] == [0o600, 0o600]
    (folder / "a" / MODEL_FILE).unlink()
    line = read_error(call, "client", "--name", "a", "--folder", str(folder / "a"), "--model-only", str(to))
    assert "has no model yet; a client stores it after the first scored round" in line


def test_forgetting_deletes_the_folder_of_a_client_alone(folder, call, tmp_path):
    code, out, _ = call("client", "--name", "a", "--folder", str(folder / "a"), "--forget", out=False)
    assert code == 0
    assert "is deleted; the server keeps the models that it has received" in " ".join(out.split())
    assert not (folder / "a").exists()
    assert (folder / "b" / MODEL_FILE).exists()
    assert (folder / "server").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("text")
    line = read_error(call, "client", "--name", "a", "--folder", str(other), "--forget")
    assert "is no folder of fedlap client or fedlap peer; nothing was deleted, use --folder" in line
    assert (other / "thesis.tex").exists()
    line = read_error(call, "client", "--name", "a", "--folder", str(folder / "server"), "--forget")
    assert "is no folder of fedlap client or fedlap peer" in line
    assert (folder / "server" / "plan.json").exists()


def test_forgetting_deletes_no_rows_and_no_keys_and_waits_for_no_lock(folder, call, monkeypatch):
    place, forget = folder / "a", ClientStorage.forget
    (place / "rows.csv").write_text("u,y\n1,2\n")
    (place / "keys").mkdir()

    def forget_locked(self, others):
        with pytest.raises(InputError, match="another process"):
            raise_if_locked(self.folder)
        forget(self, others)

    monkeypatch.setattr(ClientStorage, "forget", forget_locked)
    code, out, _ = call("client", "--name", "a", "--folder", str(place), "--forget", out=False)
    assert code == 0
    assert "are deleted; the folder still has keys, rows.csv; the server keeps" in " ".join(out.split())
    assert {path.name for path in place.iterdir()} == {"keys", "rows.csv"}


def test_a_limit_below_the_messages_of_a_run_is_refused_at_the_start(folder, call, tmp_path):
    plan = tmp_path / "small.toml"
    text = (folder / "plan.toml").read_text()
    wide = format_toml({"name": "mlp", "hidden": [2500]})
    text = text.replace("limits = {", 'limits = {"most_bytes" = 20000, ')
    plan.write_text(f"{text}model = {wide}\n")
    umask = os.umask(0)
    os.umask(umask)
    try:
        line = read_error(call, "serve", str(plan), "--insecure", "--folder", str(tmp_path / "s"))
    finally:
        os.umask(umask)
    assert "limits: most_bytes = 20,000; the longest message of this run has 80," in line
