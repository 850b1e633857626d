"""The interval between scores: exact answers, and equal scored rounds in every form of a run."""

import json
import logging

import pytest
import torch

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Loader, prepare
from fedlap.models.dense import DenseNetwork
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule
from fedlap.training.scoring_interval import (
    INTERVALS,
    SCORED_ROWS_PER_TRAINED_ROW,
    choose_interval,
    count_scored_rows,
    count_trained_rows,
    estimate_fixed_rows,
    find_interval,
)
from fit_results import same


@pytest.fixture(scope="module")
def module(federation):
    """A network whose work per row is not known, so that rows alone decide the interval."""
    torch.manual_seed(0)
    return fl.models.module(torch.nn.Linear(federation.inputs[0], federation.outputs))


# Three of six clients are sampled, so that rows of mini-batches are few against test rows.
FEW = {"batch": 2, "sample": 0.5}
ONE_STEP = fl.Local(lr=0.05, local_steps=1)


@pytest.mark.parametrize(
    ("scored", "trained", "fixed", "interval"),
    [
        (0, 1, 0, 1), (150, 100, 0, 1), (151, 100, 0, 2), (300, 100, 0, 2), (301, 100, 0, 5),
        (301, 100, 150, 2), (750, 100, 0, 5), (1500, 100, 0, 10), (1501, 100, 0, 20), (15_000, 100, 0, 100),
        (10**9, 1, 0, 100),
    ],
)  # fmt: skip
def test_the_smallest_interval_whose_rounds_cost_a_scoring_is_chosen(scored, trained, fixed, interval):
    assert SCORED_ROWS_PER_TRAINED_ROW == 1.5
    assert find_interval(scored, trained, fixed) == interval


def test_rows_of_a_round_are_counted(federation):
    rows = federation.train.count.double()
    three = {"batch": 6, "sample": 0.5}
    mean = float(rows.clamp_max(6).mean())
    for method, settings, wanted in (
        (fl.Local(local_steps=4), three, 3 * 4 * mean),
        (fl.Local(local_steps=4), {**three, "batch": "all"}, 3 * 4 * float(rows.mean())),
        (fl.Local(local_epochs=2), three, 3 * 2 * float(rows.mean())),
        (fl.Global(local_steps=4), three, 3 * 4 * 6),
        (fl.Global(local_epochs=2), three, 2 * float(rows.sum())),
    ):
        assert count_trained_rows(method, federation, Schedule(**settings)) == pytest.approx(wanted)


def test_rows_of_a_scoring_are_counted(federation):
    train, test = (int(rows.count.sum()) for rows in (federation.train, federation.test))
    always = Schedule(score_training="always")
    assert count_scored_rows(fl.Local(), federation, Schedule()) == test
    assert count_scored_rows(fl.Local(), federation, always) == test + train
    assert count_scored_rows(fl.PerFedAvg(), federation, Schedule()) == test + 1.5 * train


def test_the_fixed_cost_of_a_round_counts_for_dense_networks_alone(federation, module):
    inputs, outputs = federation.inputs[0], federation.outputs
    size = DenseNetwork((inputs, 4, outputs)).size
    assert estimate_fixed_rows(federation, fl.models.mlp((4,))) == 5e6 / (500 + size)
    assert estimate_fixed_rows(federation, module) == 0


def test_neither_rounds_nor_seed_nor_device_change_the_interval(federation, module):
    first = choose_interval(Job(ONE_STEP, federation, module), Schedule(**FEW))
    assert first in INTERVALS[1:]
    for rounds in (1, 10_000):
        for seed in (0, 7):
            for engine in ("stacked", "one_by_one"):
                schedule = Schedule(rounds, engine=engine, **FEW)
                assert choose_interval(Job(ONE_STEP, federation, module, seed), schedule) == first
    assert choose_interval(Job(ONE_STEP, federation, module), Schedule(evaluate_every=0, **FEW)) == 0


def test_auto_is_the_explicit_number_bit_for_bit(federation, module, tmp_path):
    every = choose_interval(Job(ONE_STEP, federation, module), Schedule(**FEW))
    words = (ONE_STEP, federation, module)
    long = 2 * every + 1
    explicit = fl.fit(*words, rounds=long, evaluate_every=every, **FEW)
    assert [score.round for score in explicit.scores] == [every, 2 * every, long]
    same(fl.fit(*words, rounds=long, **FEW), explicit)
    # A run that is extended, from a result or in a folder, has the scores of an uninterrupted one.
    for last in (1, every, every + 1):
        same(fl.fit(*words, rounds=long, resume=fl.fit(*words, rounds=last, **FEW), **FEW), explicit)
        fl.fit(*words, rounds=last, folder=tmp_path / str(last), **FEW)
        same(fl.fit(*words, rounds=long, folder=tmp_path / str(last), **FEW), explicit)


def test_a_chosen_interval_is_logged_unless_every_round_is_scored(federation, module, caplog):
    caplog.set_level(logging.INFO, "fedlap")
    every = choose_interval(Job(ONE_STEP, federation, module), Schedule(**FEW))
    fl.fit(ONE_STEP, federation, module, rounds=1, **FEW)
    wanted = f"evaluate_every = {every} so that scoring takes less time than training"
    assert [message for message in caplog.messages if "evaluate_every" in message] == [wanted]
    caplog.clear()
    fl.fit(ONE_STEP, federation, module, rounds=1, evaluate_every=5, **FEW)
    fl.fit(fl.Local(), federation, fl.models.linear(), rounds=1)
    assert not [message for message in caplog.messages if "evaluate_every" in message]


def test_a_run_whose_every_round_is_scored_has_the_folder_of_earlier_versions():
    (chosen,) = prepare([Experiment.of({"algorithm": {"name": "local"}})])
    (explicit,) = prepare([Experiment.of({"algorithm": {"name": "local"}, "evaluate_every": 1})])
    assert chosen.experiment == explicit.experiment
    assert "score_training" not in chosen.experiment.describe()
    always = chosen.experiment.model_copy(update={"score_training": "always"})
    assert always.digest != chosen.experiment.digest
    assert Experiment.of(always.describe()) == always


def test_all_seeds_of_a_row_are_scored_in_the_rounds_of_the_first(monkeypatch):
    monkeypatch.setattr(
        "fedlap.experiments.prepare.choose_interval", lambda job, schedule: {3: 2, 4: 1, 5: 5}[job.seed]
    )
    alone = [Loader().prepare(Experiment.of({"seed": seed})).experiment.evaluate_every for seed in (3, 4, 5)]
    assert alone == [2, 1, 5]
    result = fl.compare(["local"], "digits", seeds=[3, 4, 5], rounds=3)
    (runs,) = result.comparison.runs.values()
    assert [[score.round for score in scores] for scores in runs] == [[2, 3]] * 3


@pytest.mark.parametrize("wrong", ["often", -1, 1.5, True, None])
def test_what_is_no_interval_is_refused(wrong):
    with pytest.raises(fl.InputError, match="evaluate_every"):
        Experiment.of({"evaluate_every": wrong})


def test_an_unknown_way_to_score_training_rows_is_refused():
    with pytest.raises(fl.InputError, match="score_training = 'seldom'"):
        Experiment.of({"score_training": "seldom"})


def test_the_command_line_says_once_how_often_it_scores(call, tmp_path):
    words = ("--data", "synthetic", "--sample", "0.01", "--rounds", "4", "--json")
    words += ("--set", "data.clients=100")
    wanted = "scores every 2 rounds so that scoring takes less time than training; --evaluate-every 1 scores"
    code, out, err = call("compare", *words, "--algorithms", "local,fedavg", "--seeds", "0,1")
    assert code == 0, err
    assert " ".join(err.split()).count(wanted) == 1
    for run in (tmp_path / "runs").glob("*/experiment.toml"):
        assert "evaluate_every = 2" in run.read_text()
    code, out, err = call("run", *words, "--algorithm", "local", "--evaluate-every", "2")
    assert "finished and loaded from" in err  # the run of the comparison
    assert "scores every" not in err
    assert json.loads(out)["last"]["objective"] is not None
