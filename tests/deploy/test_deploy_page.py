"""`docs/howto/deploy.md`: its commands are run in their order; its plan and lists are those of the code."""

import re
import shlex
import time
from pathlib import Path

import numpy as np
import pandas
import pytest

from fedlap.cli.exit_codes import EXIT_CODES
from fedlap.deploy.event_log import read_events
from fedlap.deploy.message_sizes import build_first_setup
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange, change_setup
from fedlap.deploy.transport import ExitCode
from fedlap.errors import InputError
from method_kinds import SERVER_METHODS
from ports import find_ports

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "deploy.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = ("north", "east", "south", "west")
LIMIT = 90.0  # seconds of any wait, on a machine with other work


def read_blocks(title):
    """Return the blocks of code in a section of the page, or before the first one."""
    section = TEXT.split(f"\n## {title}\n")[1] if title else TEXT
    return re.findall(r"^```(?:\w*)\n(.*?)^```", section.split("\n## ")[0], re.S | re.M)


def read_commands(title, place=0):
    """Return the words of each command of `fedlap` in a block."""
    lines = [shlex.split(line, comments=True) for line in read_blocks(title)[place].splitlines()]
    return [words[1:] for words in lines if words and words[0] == "fedlap"]


def test_the_methods_that_refuse_changes_of_the_roster_are_named():
    refusing, others = [], set()
    for name in SERVER_METHODS:
        data = {"label": "y", "features": ["u"]}
        values = {"name": "x", "clients": list("abc"), "algorithm": {"name": name}, "data": data}
        if name in ("fedper", "fedrep"):
            values["model"] = {"name": "mlp", "hidden": [3]}
        setup = build_first_setup(Plan.of(values))
        for change in (RosterChange("join", "d"), RosterChange("eject", "b")):
            try:
                change_setup(setup, change, 9, 2)
                others.add(name)
            except InputError:
                refusing.append(name)
    assert others | {*refusing} == {*SERVER_METHODS}
    assert not others & {*refusing}, "a method refuses newcomers alone, or ejections alone"
    (sentence,) = re.findall(r"The server's state of (.*?) depends on the number of clients", TEXT, re.S)
    assert set(re.findall(r"`(\S+?)`", sentence)) == set(refusing)


def test_the_exit_codes_are_those_of_the_commands():
    shown = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.*?) \|", TEXT, re.M)}
    assert set(map(int, ExitCode)) | {0, 1, 2, 70, 130} == set(shown)
    for code in map(int, ExitCode):
        assert shown[code].lower() == EXIT_CODES[code].meaning.rstrip(".").lower()


@pytest.fixture
def site(starter, tmp_path):
    """Run commands of the page in one folder, as five machines would."""
    return Site(starter, tmp_path)


class Site:
    def __init__(self, starter, folder):
        self.starter, self.folder, self.port, self.pids = starter, folder, find_ports(1)[0], {}
        self.brake = folder / "brake"

    def start(self, owner, words, change=None):
        """Start a command of the page with addresses and files of this machine."""
        address = f"127.0.0.1:{self.port}"
        places = {
            "0.0.0.0:7447": address,
            "fedlap.example.org:7447": address,
            "fedlap.example.org": "127.0.0.1",
            "my.csv": f"{owner}.csv",
            "request.pem": f"keys/client-{owner}/request.pem",
            f"client-{owner}-1.pem": f"keys/authority/issued/client-{owner}-1.pem",
        }
        words = [places.get(word, word) for word in words]
        self.pids[owner] = self.starter.start(words, self.folder / f"{owner}.out", self.folder, {}, change)

    def run(self, owner, words, code=0):
        """Run a command to its end and return its output."""
        before = len(self.read(owner))
        self.start(owner, words)
        self.wait_for_end(owner, code)
        return self.read(owner)[before:]

    def read(self, owner):
        path = self.folder / f"{owner}.out"
        return path.read_text() if path.exists() else ""

    def wait(self, condition, what):
        end = time.monotonic() + LIMIT
        while not (value := condition()):
            assert time.monotonic() < end, what + "".join(
                f"\n--- {name}\n{self.read(name)}" for name in self.pids
            )
            time.sleep(0.02)
        return value

    def wait_for_end(self, owner, code=0):
        self.wait(lambda: self.starter.poll(self.pids[owner]) is not None, f"{owner} ends")
        assert self.starter.poll(self.pids[owner]) == code, self.read(owner)

    def wait_for_event(self, event, **facts):
        folder = self.folder / "runs" / "radon-minnesota"

        def is_logged():
            found = read_events(folder) if folder.exists() else []
            return any(
                line.event == event and all(getattr(line, key) == facts[key] for key in facts)
                for line in found
            )

        self.wait(is_logged, f"{event} {facts}")


@pytest.mark.docs
def test_the_commands_work_in_their_order(site):
    """Four hospitals train, one is ejected and one leaves; the others have models, and predict."""
    draw, folder = np.random.default_rng(0), site.folder
    (folder / "plan.toml").write_text(read_blocks("The plan")[0])
    for name in NAMES:
        table = pandas.DataFrame(draw.normal(size=(40, 3)), columns=["floor", "uranium", "log_radon"])
        table.to_csv(folder / f"{name}.csv", index=False)
    table.drop(columns="log_radon").to_csv(folder / "new.csv", index=False)

    def rename(words, name):
        return [word.replace("north", name) for word in words]

    authority, server, *client_keys, show = read_commands("Keys")
    for words in (authority, server):
        site.run("authority", words)
    for name in NAMES:
        for words in client_keys:
            site.run(name, rename(words, name))
    assert "north" in site.run("north", show)

    serve, client, status = read_commands("")
    site.start("server", serve)
    site.wait_for_event("listening")
    (check,) = read_commands("Check before the first round")
    lines = [line.split()[:2] for line in site.run("north", check).splitlines() if line[:4].strip() == "ok"]
    shown = re.findall(r"^\| (\w+) \| ", TEXT.split("## Check before")[1].split("\n## ")[0], re.M)[1:]
    assert {subject for _, subject in lines} == set(shown) != set()

    site.brake.touch()
    slow = "train_slowly_while", str(site.brake), 0.3
    for name in NAMES:
        site.start(name, rename(client, name), slow if name == "north" else None)
    site.wait_for_event("round-merged", round=2)
    admit, eject, leave = read_commands("Clients come and go")
    assert "coast: requested" in site.run("operator", admit)
    assert "south: requested" in site.run("operator", eject)
    site.wait_for_event("ejected", name="south")
    site.wait_for_end("south", ExitCode.REFUSED)
    site.starter.send_signal(site.pids["west"], 15)
    site.wait_for_end("west")
    site.run("west", leave)
    site.wait_for_event("left", name="west")
    site.brake.unlink()
    for owner in ("north", "east", "server"):
        site.wait_for_end(owner)
    assert "round 50/50, done" in site.run("operator", status)

    report, model_only, predict, forget = read_commands("Train")
    assert "page.html" in site.run("operator", report)
    site.run("north", model_only)
    site.run("north", predict)
    assert (folder / "north.safetensors").is_file()
    site.run("north", forget)
    assert not (folder / "fedlap-north").exists()
    assert (folder / "fedlap-east" / "model.safetensors").is_file()
    assert "radon-minnesota is done: 50 rounds, report" in site.run("server", serve)
