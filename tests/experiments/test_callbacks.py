"""Callbacks stop a run, early stopping among them; Ctrl-C returns the result so far."""

import logging
import signal
import subprocess
import sys
import threading

import pytest

import fedlap as fl
from example_scores import run
from fedlap.experiments.fit import check_callbacks
from fit_results import same


def train(federation, **settings):
    return fl.fit(fl.Local(), federation, fl.models.linear(), **{"rounds": 6} | settings)


class Observer(fl.Callback):
    """Notes everything; stops as its functions say."""

    def __init__(self, stops_at_score=lambda score: None, stops_at_round=lambda end: None):
        self.stops_at_score, self.stops_at_round = stops_at_score, stops_at_round
        self.events = []

    def on_start(self, scores):
        self.events.append(("start", len(scores)))

    def on_score(self, score):
        self.events.append(("score", score.round))
        return self.stops_at_score(score)

    def on_round(self, end):
        self.events.append(("round", end.round))
        return self.stops_at_round(end)


def test_callbacks_see_every_score_and_round(federation):
    observer = Observer()
    first = train(federation, rounds=3, evaluate_every=2, callbacks=[observer])
    assert observer.events == [
        ("start", 0), ("round", 1), ("score", 2), ("round", 2), ("score", 3), ("round", 3),
    ]  # fmt: skip
    observer.events.clear()
    train(federation, rounds=4, evaluate_every=2, resume=first, callbacks=[observer])
    assert observer.events == [("start", 2), ("score", 4), ("round", 4)]


@pytest.mark.parametrize(
    "observer",
    [
        Observer(stops_at_score=lambda score: score.round == 2),
        Observer(stops_at_round=lambda end: end.round == 2),
        Observer(stops_at_round=lambda end: end.stop() if end.round == 2 else None),
    ],
    ids=["score", "round", "stop()"],
)
def test_every_way_to_stop_ends_the_run_after_the_round(observer, federation):
    stopped = train(federation, callbacks=[observer])
    assert stopped.progress.round == 2
    assert not stopped.is_complete
    same(train(federation, resume=stopped), train(federation))


def test_a_run_to_its_end_is_complete(federation):
    assert train(federation).is_complete


@pytest.mark.parametrize("callbacks", [[print], [fl.EarlyStopping], fl.EarlyStopping()])
def test_other_objects_are_refused(callbacks):
    with pytest.raises(fl.InputError, match=r"callbacks (contains a \w+; derive its class|is a single)"):
        check_callbacks(callbacks)


def count_scores(stopping, scores):
    """Return how many scores were passed when the run was stopped."""
    return next((number for number, score in enumerate(scores, 1) if stopping.on_score(score)), None)


def test_early_stopping_waits_for_patience_scores():
    accuracies = [0.5, 0.6, 0.6, 0.59, 0.61, 0.61, 0.6, 0.6]
    assert count_scores(fl.EarlyStopping("accuracy", patience=3), run(*accuracies)) == 8
    assert count_scores(fl.EarlyStopping("accuracy", patience=2), run(*accuracies)) == 4
    assert count_scores(fl.EarlyStopping("accuracy", patience=2, min_delta=0.05), run(*accuracies)) == 4
    assert count_scores(fl.EarlyStopping("accuracy", patience=3, min_delta=0.05), run(*accuracies)) == 5
    assert count_scores(fl.EarlyStopping("train_loss", patience=1), run(*accuracies)) is None
    assert count_scores(fl.EarlyStopping("loss", patience=4), run(*accuracies)) == 5


def test_early_stopping_gives_the_same_numbers_when_resumed(federation, tmp_path):
    def fit(**settings):
        stopping = fl.EarlyStopping("accuracy", patience=3)
        return train(federation, rounds=200, callbacks=[stopping], **settings)

    unbroken = fit()
    assert 4 <= unbroken.progress.round < 200
    first = train(federation, rounds=unbroken.progress.round - 1)
    same(fit(resume=first), unbroken)
    same(fit(folder=tmp_path), unbroken)
    same(fit(folder=tmp_path), unbroken)  # the folder's scores stop it before the next round


def test_one_callback_serves_several_runs(federation):
    stopping = fl.EarlyStopping("accuracy", patience=3)
    first, second = (train(federation, rounds=200, callbacks=[stopping]) for _ in range(2))
    same(first, second)


def test_early_stopping_names_what_is_wrong(federation):
    with pytest.raises(fl.InputError, match="unknown metric 'los'; did you mean 'loss"):
        fl.EarlyStopping("los")
    with pytest.raises(fl.InputError, match="patience = 0; expected an integer of at least 1"):
        fl.EarlyStopping(patience=0)
    with pytest.raises(fl.InputError, match="min_delta = -1; expected a finite number of at least zero"):
        fl.EarlyStopping(min_delta=-1)
    with pytest.raises(fl.InputError, match="gap has no value in these scores; use another metric"):
        train(federation, callbacks=[fl.EarlyStopping("gap")], score_training="always")


def press_ctrl_c(*rounds):
    """Return a function of rounds that sends the signal of Ctrl-C to this process."""
    return lambda round: signal.raise_signal(signal.SIGINT) if round in rounds else None


def test_ctrl_c_returns_the_result_so_far(federation, caplog):
    before = signal.getsignal(signal.SIGINT)
    stopped = train(federation, on_round=press_ctrl_c(3))
    assert signal.getsignal(signal.SIGINT) is before
    assert stopped.progress.round == 3
    assert not stopped.is_complete
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "stopping after this round (press Ctrl-C again to quit now)",
        "interrupted after round 3 of 6; pass resume=result to continue",
    ]
    same(train(federation, resume=stopped), train(federation))


def test_ctrl_c_leaves_a_folder_that_resumes(federation, tmp_path):
    stopped = train(federation, on_round=press_ctrl_c(3), folder=tmp_path)
    assert stopped.progress.round == 3
    same(train(federation, folder=tmp_path), train(federation))


def test_a_second_ctrl_c_raises(federation):
    before = signal.getsignal(signal.SIGINT)

    def press_twice(round):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(federation, on_round=press_twice)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_and_a_program_with_a_handler_keep_theirs(federation):
    before, seen = signal.getsignal(signal.SIGINT), []
    note = lambda number, frame: seen.append(number)  # noqa: E731

    def notice(round):
        seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=train, args=(federation,), kwargs={"rounds": 1, "on_round": notice})
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, note)
    try:
        train(federation, rounds=1, on_round=notice)
        complete = train(federation, rounds=2, on_round=press_ctrl_c(1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [before, note, signal.SIGINT]
    assert complete.is_complete


def test_a_progress_bar_is_shown_only_when_asked_for(federation, capsys):
    train(federation)
    assert capsys.readouterr() == ("", "")
    train(federation, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("Local  round 6/6  test accuracy ")


def test_training_alone_imports_neither_rich_nor_pydantic():
    script = (
        "import sys, fedlap as fl\n"
        "federation = fl.data.load('synthetic', clients=4, rows=20)\n"
        "fl.fit(fl.Local(), federation, fl.models.linear(), rounds=1, callbacks=[fl.EarlyStopping()])\n"
        "assert not {'rich', 'pydantic', 'pandas', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
