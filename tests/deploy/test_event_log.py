"""The log of a deployment: only listed words and numbers, whole lines, bounded size."""

import ast
import errno
import json
import math
import os
import re
import stat
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlap.deploy import event_log
from fedlap.deploy.event_log import (
    Event,
    EventLog,
    decode_event,
    encode_event,
    format_event,
    read_events,
)
from fedlap.deploy.event_words import EVENTS, NUMBERS, EventReason
from fedlap.deploy.transport import ExitCode, PermanentError
from property_settings import short_law

MARK = "Ms Marked-Row"


@pytest.fixture
def log(tmp_path):
    opened = EventLog(tmp_path / "log.jsonl", "radon", ["north", "south"])
    yield opened
    opened.close()


class Text(str):
    """A str of another type."""


class Count(int):
    """An int of another type."""


ROWS = {
    "tensor": torch.arange(3.0),
    "scalar tensor": torch.tensor(3.0),
    "array": np.arange(3),
    "numpy float": np.float64(3.5),
    "numpy int": np.int64(3),
    "numpy bool": np.bool_(True),
    "frame": pandas.DataFrame({"a": [MARK]}),
    "series": pandas.Series([1.5]),
    "text": MARK,
    "bytes": MARK.encode(),
    "list": [63, 1],
    "tuple": (63,),
    "dict": {"age": 63},
    "decimal": Decimal(3),
    "fraction": Fraction(1, 3),
    "complex": 3j,
    "own int": Count(3),
    "huge int": 1 << 63,
    "exception": ValueError(MARK),
    "none": None,
}


OPTIONAL = ("round", "reason")  # may be None


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        (field, kind)
        for field in ("rows", "round", "name", "reason", "event", "age")
        for kind in ROWS
        if not (field in OPTIONAL and kind == "none")
    ],
)
def test_values_of_rows_cannot_be_logged(field, kind, log, tmp_path):
    words, value = {"event": "answered", "round": 3, "name": "south", "rows": 12}, ROWS[kind]
    with pytest.raises((TypeError, ValueError)) as caught:
        log.write(**{**words, field: value})
    assert "Marked" not in str(caught.value)
    assert read_events(tmp_path) == []


@pytest.mark.parametrize("text", ["", " south", "a" * 65, "a\nb", "a\tb", "\x1b[31m", "\u202eb", Text("a")])
def test_texts_that_are_no_names_are_refused(text, log, tmp_path):
    with pytest.raises((TypeError, ValueError)):
        log.write("answered", name=text)
    for run, names in ((text, ()), ("radon", [text])):
        with pytest.raises((TypeError, ValueError)):
            EventLog(tmp_path / "log.jsonl", run, names)
    assert read_events(tmp_path) == []


def test_names_are_those_of_the_roster(log, tmp_path):
    with pytest.raises(ValueError, match="call `allow`"):
        log.write("joined", name="west")
    log.allow(["west"])
    log.write("joined", name="west")
    log.write("left", name="south")
    assert [event.name for event in read_events(tmp_path)] == ["west", "south"]


def test_unlisted_words_are_refused(log):
    with pytest.raises(ValueError, match="add its sentence to EVENTS"):
        log.write("age-of-patient")
    with pytest.raises(ValueError, match="add its name and unit to NUMBERS"):
        log.write("answered", name="south", age=63)
    with pytest.raises(TypeError, match="expected an EventReason"):
        log.write("answered", name="south", reason="wrong shapes")
    with pytest.raises(ValueError, match="has no name"):
        log.write("answered")


def test_an_event_is_one_line_of_json(log, tmp_path):
    log.write("left-out", round=12, name="south", reason=EventReason.SILENT, silent_seconds=600.5, rows=40)
    log.write("run-started", clients=4)
    first, second, end = (tmp_path / "log.jsonl").read_text().split("\n")
    assert end == ""
    facts = json.loads(first)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", facts.pop("time"))
    assert facts == {
        "run": "radon",
        "round": 12,
        "name": "south",
        "event": "left-out",
        "reason": "silent until the deadline",
        "silent_seconds": 600.5,
        "rows": 40,
    }
    assert json.loads(second)["name"] is None
    assert [event.event for event in read_events(tmp_path)] == ["left-out", "run-started"]


def test_numbers_that_are_not_finite_are_null(log, tmp_path):
    log.write("scored", loss=math.nan, norm=-math.inf)
    (event,) = read_events(tmp_path)
    assert event.numbers == {"loss": None, "norm": None}
    assert format_event(event).endswith("(loss not finite, norm not finite)")


number = st.one_of(
    st.integers(1 - (1 << 63), (1 << 63) - 1), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)
names = st.text(max_size=20).map(str.strip).filter(lambda text: text and text.isprintable())
events = st.builds(
    Event,
    st.just("2026-07-03T12:00:01.250Z"),
    names,
    st.sampled_from(sorted(EVENTS)),
    st.none() | st.integers(0, 1 << 40),
    st.none() | names,
    st.none() | st.sampled_from(EventReason).map(str),
    st.dictionaries(st.sampled_from(sorted(NUMBERS)), number),
)


@short_law
@given(events)
def test_lines_can_be_read_back(event):
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert decode_event(line) == event
    assert format_event(event).isprintable()


@short_law
@given(events, st.data())
def test_damaged_lines_are_events_or_nothing(event, data):
    line = encode_event(event)
    cut = data.draw(st.integers(0, len(line) - 2))
    assert decode_event(line[:cut]) is None
    assert decode_event(line[cut:] if cut else b"[1]") is None


def test_every_exit_code_has_a_reason():
    assert len({EventReason.from_code(code) for code in ExitCode}) == len(ExitCode)


def test_the_readable_form(log, tmp_path):
    log.write("left-out", round=3, name="south", reason=EventReason.SILENT, silent_seconds=600.0)
    log.write("answered", round=3, name="south", bytes=40120)
    log.write("dialled", name="south", attempt=2)
    log.write("listening", port=5000)
    stored = read_events(tmp_path)
    moments, sentences = zip(*(format_event(event).split("  ") for event in stored), strict=True)
    assert moments[0] == f"{stored[0].time[:10]} {stored[0].time[11:19]}Z"
    assert sentences == (
        "round 3: south is left out of the round: silent until the deadline (silent 600 s)",
        "round 3: south has answered (40,120 bytes)",
        "south: The server answers (attempt 2)",
        "The process listens (port 5000)",
    )


def test_files_rotate_and_stay_private(tmp_path):
    before = os.umask(0)
    try:
        log = EventLog(tmp_path / "state" / "log.jsonl", "radon", most_bytes=1_000, most_files=3)
        for round in range(100):
            log.write("round-merged", round=round, replies=4)
        log.close()
    finally:
        os.umask(before)
    files = sorted((tmp_path / "state").iterdir())
    assert [file.name for file in files] == ["log.1.jsonl", "log.2.jsonl", "log.jsonl"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert all(file.stat().st_size <= 1_000 for file in files)
    rounds = [event.round for event in read_events(tmp_path / "state")]
    assert rounds == list(range(rounds[0], 100))
    assert len(rounds) > 14  # two full files hold at least seven lines each


def test_one_file_is_a_bound_too(tmp_path):
    log = EventLog(tmp_path / "log.jsonl", "radon", most_bytes=500, most_files=1)
    for round in range(20):
        log.write("round-merged", round=round)
    log.close()
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]
    assert read_events(tmp_path)[-1].round == 19


def test_a_restart_appends_and_ends_a_torn_line(tmp_path):
    first = EventLog(tmp_path / "log.jsonl", "radon")
    first.write("run-started")
    first.close()
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": "2026-07')
    path.chmod(0o644)
    second = EventLog(path, "radon")
    second.write("run-resumed")
    second.close()
    assert [event.event for event in read_events(tmp_path)] == ["run-started", "run-resumed"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_disk_leaves_a_gap_and_no_error(tmp_path, monkeypatch):
    lines = []
    log = EventLog(tmp_path / "log.jsonl", "radon", show=lines.append)
    log.write("run-started")
    open_append = event_log.open_append

    class FullDisk:
        def __init__(self, file):
            self._file, self.fileno, self.seek, self.close = file, file.fileno, file.seek, file.close

        def write(self, content):
            self._file.write(content[:10])  # the last bytes that fit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(event_log, "open_append", lambda path, **how: FullDisk(open_append(path, **how)))
        log._file = FullDisk(log._file)
        for round in range(3):
            log.write("round-merged", round=round)
    log.write("round-merged", round=3)
    log.close()
    stored = read_events(tmp_path)
    assert [event.event for event in stored] == ["run-started", "log-gap", "round-merged"]
    assert stored[1].numbers == {"events": 3}
    assert [line for line in lines if "No space left on device" in line] == [
        f"{tmp_path / 'log.jsonl'} cannot be written (No space left on device); make room there"
    ]
    assert sum("merged" in line for line in lines) == 4  # the console has every event


def test_threads_write_whole_lines(tmp_path):
    names = ("north", "south", "west")
    log = EventLog(tmp_path / "log.jsonl", "radon", names, most_bytes=5_000, most_files=100)

    def write_many(name):
        for round in range(100):
            log.write("answered", name=name, round=round)

    threads = [threading.Thread(target=write_many, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    stored = read_events(tmp_path)
    for name in names:
        assert [event.round for event in stored if event.name == name] == list(range(100))


def test_a_block_closes_the_log(tmp_path):
    lines = []
    with EventLog.open(tmp_path, "radon", ["north"], lines.append) as log:
        log.write("run-started", clients=1)
    assert lines == [format_event(event) for event in read_events(tmp_path)]
    assert lines[0].endswith("The run starts (clients 1)")
    assert log._file is None


def find_log_calls():
    """Yield the place, the event and the keywords of calls that log an event."""
    source = Path(event_log.__file__).parents[1]
    for path in [*(source / "deploy").rglob("*.py"), *(source / "cli").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            if ast.unparse(node.func) in ("log.write", "self.log", "self._log", "run.log"):
                yield f"{path.name}:{node.lineno}", node.args[0], node.keywords


def list_constants(node):
    """Return the constants that an expression may be."""
    if isinstance(node, ast.IfExp):
        return [*list_constants(node.body), *list_constants(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) else []


def test_every_call_uses_listed_words():
    """An unlisted word would end a process, perhaps in a case that no other test reaches."""
    fields = {"round", "name", "reason", *NUMBERS}
    for place, event, keywords in find_log_calls():
        passed = {keyword.arg: keyword.value for keyword in keywords if keyword.arg is not None}
        assert passed.keys() <= fields, place
        assert not isinstance(passed.get("reason"), ast.JoinedStr), place
        assert [text for text in list_constants(passed.get("reason")) if text is not None] == [], place
        for word in list_constants(event):
            assert word in EVENTS, place
            assert "{name}" not in EVENTS[word] or "name" in passed, place


def test_every_word_is_used():
    """A word that nothing logs describes an event that nobody sees."""
    source, words = Path(event_log.__file__).parents[1], {code.name for code in ExitCode}
    for path in [*(source / "deploy").rglob("*.py"), *(source / "cli").rglob("*.py")]:
        if path.name == "event_words.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "EventReason":
                words.add(node.attr)
    assert sorted({*EVENTS, *(reason.name for reason in EventReason)} - words) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermanentError("of another plan", ExitCode.OTHER_PLAN), "other plan, data or graph"),
        (ValueError(MARK), None),
        (None, "no event"),
        (KeyboardInterrupt(), "no event"),
    ],
)
def test_an_error_that_ends_the_process_is_an_event(error, reason, tmp_path):
    lines, caught = [], None
    try:
        with EventLog(tmp_path / "log.jsonl", "radon", show=lines.append):
            if error is not None:
                raise error
    except (Exception, KeyboardInterrupt) as raised:
        caught = raised
    assert caught is error
    assert [event.reason for event in read_events(tmp_path) if event.event == "failed"] == (
        [] if reason == "no event" else [reason]
    )
    assert lines == []  # The command prints the error itself.
    assert MARK not in "".join(path.read_text() for path in tmp_path.iterdir())


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "log.jsonl").symlink_to(victim)
    with pytest.raises(ValueError, match="is a link"):
        EventLog(folder / "log.jsonl", "radon").write("run-started")
    assert victim.read_text() == "precious"
