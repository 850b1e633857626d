"""The status of a run: a file with UTC, monotonic times in memory, a table, lines, and the command."""

import io
import json
import os
import re
import stat
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedlap.cli import status as status_command
from fedlap.deploy import status as status_module
from fedlap.deploy import status_display
from fedlap.deploy.status import (
    ClientState,
    ClientStatus,
    RunPhase,
    Status,
    StatusWriter,
    decode_status,
    encode_status,
    read_status,
    write_status,
)
from fedlap.deploy.status_display import (
    StatusDisplay,
    describe_state,
    describe_status,
    describe_waiting,
    render_status,
)
from fedlap.errors import InputError
from property_settings import short_law

NOW = 10_000.0
SCORES = {"scores": {"loss": 0.3124, "rmse": 0.79}, "scored_round": 10}
UTC = 1_800_000_000.0  # 2027-01-15 08:00:00


def make_status(**changes):
    clients = {
        "north": ClientStatus("answered", NOW - 2, 12, 120, 4_000_000, 5_000_000, NOW - 2),
        "east": ClientStatus("late", NOW - 190, 9, 80, 3_000, 4_000, NOW - 790),
        "south": ClientStatus("training", NOW - 720, 11, 60, 3_500, 4_500, NOW - 35),
        "west": ClientStatus("training", NOW - 720, 11, 40, 3_500, 4_500, NOW - 3),
        "island": ClientStatus("absent", NOW - 9_000),
    }
    facts = {"clients": clients, "awaited": ("west", "south"), **SCORES, **changes}
    return Status("radon", **{"round": 12, "rounds": 50, "phase": "training", "since": NOW - 12, **facts})


def draw(status, now=NOW, width=100):
    """Return the printed table."""
    console = Console(file=io.StringIO(), width=width)
    console.print(render_status(status, now))
    return console.file.getvalue()


times = st.floats(0, 1e6).map(lambda age: NOW - age)
clients = st.builds(
    ClientStatus,
    st.sampled_from(ClientState.__args__),
    times,
    *[st.integers(0, 1 << 50)] * 4,
    st.none() | times,
)
statuses = st.builds(
    Status,
    st.text(max_size=9),
    st.integers(0, 99),
    st.integers(1, 99),
    st.sampled_from(RunPhase.__args__),
    times,
    st.dictionaries(st.text(max_size=9), clients, max_size=4),
    st.just(()),
    st.dictionaries(st.sampled_from(["loss", "rmse"]), st.none() | st.floats(-9, 9)),
    st.none() | st.integers(0, 99),
)


def forget_times(status):
    """Return the status without times."""
    clients = {name: replace(c, since=0.0, last_seen=None) for name, c in status.clients.items()}
    return replace(status, since=0.0, written=None, clients=clients)


@short_law
@given(statuses, st.floats(0, 1e6))
def test_another_process_reads_the_same_ages(status, boot):
    """The monotonic clock of the reader has another origin; ages agree to the millisecond of the file."""
    facts = json.loads(json.dumps(encode_status(status, NOW, UTC)))
    read = decode_status(facts, NOW + boot, UTC)
    assert forget_times(read) == forget_times(status)
    assert read.written == pytest.approx(NOW + boot, abs=2e-3)
    assert read.since - boot == pytest.approx(status.since, abs=2e-3)
    for name, client in status.clients.items():
        assert read.clients[name].since - boot == pytest.approx(client.since, abs=2e-3)
        if client.last_seen is None:
            assert read.clients[name].last_seen is None
        else:
            assert read.clients[name].last_seen - boot == pytest.approx(client.last_seen, abs=2e-3)


@short_law
@given(statuses)
def test_every_status_can_be_shown(status):
    assert all(part in draw(status, width=300) for part in ("last seen", "down"))
    assert describe_waiting(replace(status, awaited=tuple(status.clients)), NOW) or not status.clients


def test_the_file_has_utc_and_is_private(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: UTC)
    before = os.umask(0)
    try:
        write_status(tmp_path, make_status(), NOW)
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.name == "status.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    facts = json.loads(file.read_text())
    assert facts["written"] == "2027-01-15T08:00:00.000Z"
    assert facts["since"] == "2027-01-15T07:59:48.000Z"
    assert facts["clients"]["south"]["last_seen"] == "2027-01-15T07:59:25.000Z"
    assert facts["clients"]["island"]["last_seen"] is None
    assert (facts["bytes_up"], facts["bytes_down"]) == (4_010_000, 5_013_000)


def test_a_changed_system_time_changes_no_age(monkeypatch):
    """A server whose wall clock jumps by a day still reports ages of its monotonic clock."""
    status = make_status()
    for utc in (UTC, UTC + 86_400):
        read = decode_status(encode_status(status, NOW, utc), NOW, utc)
        assert read.clients["south"].last_seen == pytest.approx(NOW - 35, abs=2e-3)


def test_numbers_that_are_not_finite_stay_json():
    facts = encode_status(make_status(scores={"loss": float("nan")}), NOW, UTC)
    assert json.loads(json.dumps(facts, allow_nan=False))["scores"] == {"loss": None}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be used"),
        (b"[]", "not a status of a run"),
        (b"{}", "not a status of a run"),
        (b"\xff", "cannot be used"),
        (b"[" * 100_000, "nested too deeply"),
        ({"version": 2}, "has version 2, and this fedlap reads 1"),
        ({"phase": "asleep"}, "unknown word 'asleep'"),
        ({"round": "3"}, "unexpected str"),
        ({"round": True}, "unexpected bool"),
        ({"since": "yesterday"}, "yesterday"),
        ({"since": None}, "unexpected NoneType"),
        ({"clients": {"a": None}}, "not a status of a run"),
        ({"clients": []}, "not a status of a run"),
        ({"awaited": ["elsewhere"]}, "waits for a client that it does not list"),
        ({"awaited": 3}, "not a status of a run"),
        ({"scores": {"loss": "low"}}, "unexpected str"),
    ],
)
def test_a_wrong_file_is_an_error_of_one_line(content, words, tmp_path):
    if isinstance(content, dict):
        content = json.dumps({**encode_status(make_status(), NOW, UTC), **content}).encode()
    (tmp_path / "status.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_status(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_is_waited_for():
    status = make_status()
    assert (
        describe_waiting(status, NOW) == "waiting for south (silent for 35 s) and west (training for 12 min)"
    )
    assert describe_waiting(replace(status, awaited=("island",)), NOW) == (
        "waiting for island (not connected yet)"
    )
    assert describe_waiting(replace(status, awaited=()), NOW) == ""
    assert describe_waiting(replace(status, awaited=("south",)), NOW) == "waiting for south (silent for 35 s)"
    gone = {"south": ClientStatus("absent", NOW - 5, last_seen=NOW - 5)}
    assert describe_waiting(replace(status, awaited=("south",), clients=gone), NOW) == (
        "waiting for south (gone for 5 s)"
    )


def test_many_clients_fit_on_a_line():
    clients = {f"c{k:02}": ClientStatus("training", NOW - 9, last_seen=NOW - 60 - k) for k in range(40)}
    text = describe_waiting(make_status(clients=clients, awaited=tuple(clients)), NOW)
    assert text.startswith("waiting for c39 (silent for 2 min), c38 (silent for 2 min), c37")
    assert text.endswith("and 35 others")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("north", "answered"),
        ("east", "late since 07:56:50Z"),
        ("south", "silent for 35 s"),
        ("west", "training for 12 min"),
        ("island", "absent"),
    ],
)
def test_states(name, text, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: UTC)
    assert describe_state(make_status().clients[name], NOW) == text


def test_the_table(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: UTC)
    lines = [line.rstrip() for line in draw(make_status()).splitlines()]
    assert lines[0] == "radon: round 12/50, training for 12 s"
    shown = [" ".join(line.split()) for line in lines]
    assert "north answered 12 120 4 MB 5 MB 2 s ago" in shown
    assert "east late since 07:56:50Z 9 80 3 kB 4 kB 13 min ago" in shown
    assert "island absent 0 0 never" in shown
    assert lines[-3:] == [
        "up 4.01 MB, down 5.01 MB",
        "loss 0.3124, rmse 0.79 (round 10)",
        "waiting for south (silent for 35 s) and west (training for 12 min)",
    ]


def test_an_old_file_is_called_old():
    assert "written 5 min ago: the server does not run" in draw(make_status(written=NOW - 300))
    assert "written" not in draw(make_status(written=NOW - 3))
    assert "written" not in draw(make_status(written=NOW - 300, phase="done"))


def test_one_line_says_everything():
    assert describe_status(make_status(), NOW) == (
        "radon: round 12/50, training for 12 s; 1 of 4 answered; waiting for south (silent for 35 s) and "
        "west (training for 12 min); up 4.01 MB, down 5.01 MB; loss 0.3124, rmse 0.79 (round 10)"
    )


class Clock:
    """A clock that tests move."""

    now = NOW

    def __call__(self):
        return self.now


def test_a_pipe_gets_one_line_per_minute():
    clock, console = Clock(), Console(file=io.StringIO(), width=40)
    with StatusDisplay(console, clock) as display:
        for second in range(181):
            clock.now = NOW + second
            display.update(make_status(since=NOW))
        lines = console.file.getvalue().splitlines()
        assert [line.partition(";")[0] for line in lines] == [
            f"radon: round 12/50, training for {age}" for age in ("0 s", "60 s", "2 min", "3 min")
        ]
        clock.now += 1
        display.update(make_status(phase="done", awaited=()))
        display.update(make_status(phase="done", awaited=()))
    assert len(console.file.getvalue().splitlines()) == 5
    assert "done" in console.file.getvalue()


def test_the_last_line_is_never_missing():
    clock, console = Clock(), Console(file=io.StringIO(), width=200)
    with StatusDisplay(console, clock) as display:
        display.update(make_status())
        display.update(make_status(since=NOW - 600))
    assert "training for 10 min" in console.file.getvalue().splitlines()[-1]


def test_a_terminal_gets_a_table_that_is_redrawn():
    clock = Clock()
    console = Console(file=io.StringIO(), width=100, force_terminal=True, _environ={"TERM": "xterm"})
    with StatusDisplay(console, clock) as display:
        display.update(make_status())
        drawn = len(console.file.getvalue())
        assert drawn > 500
        display.update(make_status())
        assert len(console.file.getvalue()) == drawn  # too soon
        clock.now += 1
        display.update(make_status())
        assert len(console.file.getvalue()) > drawn
    assert console.file.getvalue().count("radon: round 12/50") == 3  # Live draws once at its end


def test_the_file_is_written_once_per_second_and_at_changes(tmp_path):
    clock = Clock()
    writer = StatusWriter(tmp_path, clock)
    assert writer.update(make_status())
    assert not writer.update(make_status())
    assert not writer.update(make_status(round=13))
    clock.now += 1
    assert writer.update(make_status())
    late = make_status().clients | {"west": ClientStatus("late", NOW)}
    assert writer.update(make_status(clients=late))
    assert writer.update(make_status(clients=late, phase="done"))
    assert read_status(tmp_path).phase == "done"


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    def fail(*words, **options):
        raise InputError("status.json cannot be written (No space left on device)")

    clock = Clock()
    writer = StatusWriter(tmp_path, clock)
    with monkeypatch.context() as patch:
        patch.setattr(status_module, "write_file", fail)
        assert not writer.update(make_status())
    clock.now += 1
    assert writer.update(make_status())


def write_now(folder, **changes):
    """Write a status whose times are those of this moment."""
    now = time.monotonic()
    clients = {
        "north": ClientStatus("answered", now - 2, 12, 120, 4_000, 5_000, now - 2),
        "south": ClientStatus("training", now - 720, 11, 60, 3_500, 4_500, now - 35),
    }
    facts = {"phase": "training", "since": now, "clients": clients, "awaited": ("south",), **changes}
    write_status(folder, Status("radon", 12, 50, **facts))


def test_the_command_prints_the_table(call, tmp_path):
    write_now(tmp_path)
    code, out, err = call("status", str(tmp_path), out=False)
    assert (code, err) == (0, "")
    assert "radon: round 12/50" in out
    assert re.search(r"waiting for south \(silent for (3[5-9]|4\d) s\)", out)


def test_the_command_prints_json(call, tmp_path):
    write_now(tmp_path, scores={"loss": 0.5}, scored_round=10)
    code, out, err = call("status", str(tmp_path), "--json", out=False)
    assert (code, err) == (0, "")
    facts = json.loads(out)
    stored = json.loads((tmp_path / "status.json").read_text())
    assert re.fullmatch(r"waiting for south \(silent for (3[5-9]|4\d) s\)", facts.pop("waiting"))
    assert facts.keys() == stored.keys()
    assert facts["scores"] == {"loss": 0.5}
    assert facts["clients"]["south"]["state"] == "training"
    assert facts["written"][:18] == stored["written"][:18]


def test_the_command_watches_until_the_end(call, tmp_path, monkeypatch):
    write_now(tmp_path)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            write_now(tmp_path, phase="done")

    monkeypatch.setattr(status_command.watch_status, "__defaults__", (sleep,))
    code, out, err = call("status", str(tmp_path), "--watch", out=False)
    assert (code, err, len(waits)) == (0, "", 3)
    first, last = out.splitlines()
    assert "training for" in first
    assert "done" in last


def test_control_c_ends_the_watch(call, tmp_path, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    write_now(tmp_path)
    monkeypatch.setattr(status_command.watch_status, "__defaults__", (interrupt,))
    code, out, err = call("status", str(tmp_path), "--watch", out=False)
    assert (code, err) == (0, "")
    assert out.startswith("radon: round 12/50")


def test_errors_of_the_command_are_one_line(call, tmp_path):
    for words, message in (
        (
            [str(tmp_path)],
            "has no status.json; pass the folder of a run that `fedlap serve` or `fedlap peer` has started",
        ),
        ([str(tmp_path), "--json", "--watch"], "--watch and --json cannot be combined; remove one of them"),
    ):
        code, out, err = call("status", *words, out=False)
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1


def test_names_cannot_command_a_terminal(call, tmp_path):
    now = time.monotonic()
    clients = {"\x1b[31m": ClientStatus("absent", now), "[red]": ClientStatus("absent", now)}
    write_status(tmp_path, Status("\x1b]0;x\x07", 1, 2, "gathering", now, clients))
    code, out, _ = call("status", str(tmp_path), out=False)
    assert code == 0
    assert "\x1b" not in out
    assert "[red]" in out


def test_silence_is_longer_than_heartbeats():
    assert status_display.SILENT_SECONDS < status_display.STALE_SECONDS
