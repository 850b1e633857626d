"""A resumed run equals the run that never stopped, bit for bit."""

import pytest
import torch

import fedlap as fl
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule
from fit_results import same
from laws import METHODS, WORK


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_exactly(name, work, federation, graph):
    method = METHODS[name]
    algorithm = method.make(graph, **work)
    how = {"batch": 4, "seed": 5, "sample": 0.5 if method.sampled else 1.0, "evaluate_every": 2}
    unbroken = fl.fit(algorithm, federation, method.model, rounds=7, **how)
    broken = None
    for rounds in (1, 3, 4, 7):
        broken = fl.fit(algorithm, federation, method.model, rounds=rounds, resume=broken, **how)
    same(broken, unbroken)
    assert not torch.equal(
        unbroken.models, fl.fit(algorithm, federation, method.model, rounds=2, **how).models
    )


@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
def test_every_engine_goes_on_exactly(engine, federation, graph):
    def train(rounds, resume=None):
        method = fl.FedU(graph, strength=0.3)
        return fl.fit(
            method, federation, fl.models.mlp((5,)), rounds=rounds, sample=0.5, engine=engine, resume=resume
        )

    same(train(5, train(2)), train(5))


def test_what_is_resumed_stays_as_it_was(federation, graph):
    first = fl.fit(fl.FedU(graph), federation, fl.models.linear(), rounds=2)
    models, scores = first.server.models.values.clone(), list(first.scores)
    second = fl.fit(fl.FedU(graph), federation, fl.models.linear(), rounds=4, resume=first)
    assert torch.equal(first.server.models.values, models)
    assert first.scores == scores
    assert [score.round for score in second.scores] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "name",
    [name for name, m in METHODS.items() if m.make(fl.Graph.complete("abcdef")).traits.is_stackable],
)
def test_a_stack_of_runs_goes_on_exactly(name, federation, graph):
    method = METHODS[name]

    def train(rounds, before=(None, None, None)):
        trials = [
            Job(method.make(graph, local_steps=2), federation, method.model, seed, None, at and at.progress)
            for seed, at in zip((3, 4, 5), before, strict=True)
        ]
        return fit_all(trials, Schedule(rounds, 4, sample=0.5 if method.sampled else 1.0))

    for one, other in zip(train(5, train(2)), train(5), strict=True):
        same(one, other)


def test_a_round_can_be_the_last(federation):
    def note(moment):
        if moment.round == 3:
            moment.stop()
            (progress,) = moment.collect_progress()
            assert [score.round for score in progress.scores] == [2]

    trial = Job(fl.Local(), federation, fl.models.linear())
    (stopped,) = fit_all([trial], Schedule(6, evaluate_every=2), None, note)
    assert stopped.progress.round == 3
    unbroken = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=6, evaluate_every=2)
    same(
        fl.fit(fl.Local(), federation, fl.models.linear(), rounds=6, evaluate_every=2, resume=stopped),
        unbroken,
    )


def test_what_cannot_be_resumed_is_refused(federation, graph):
    model = fl.models.linear()
    earlier = fl.fit(fl.FedU(graph), federation, model, rounds=3)
    with pytest.raises(fl.InputError, match="has finished 3 rounds, but rounds = 2; set rounds to 3 or more"):
        fl.fit(fl.FedU(graph), federation, model, rounds=2, resume=earlier)
    for other in ({"dtype": "float64"}, {"model": fl.models.mlp()}, {"algorithm": fl.Local()}):
        settings = {"algorithm": fl.FedU(graph), "model": model, "allow_changes": True, **other}
        with pytest.raises(
            fl.InputError,
            match="does not fit this run; pass the method, model, dtype and clients of the saved run",
        ):
            fl.fit(federation=federation, rounds=4, resume=earlier, **settings)
    message = r"cannot be batched: they must share .* the round that they resume from"
    with pytest.raises(fl.InputError, match=message):
        fit_all(
            [
                Job(fl.Local(), federation, model),
                Job(fl.Local(), federation, model, progress=earlier.progress),
            ],
            Schedule(4),
        )


def test_an_exploding_loss_ends_a_run_before_it_is_no_number(federation):
    """One step of 1e9 is finite, and no training."""
    x = {
        name: (federation.train.client(k)[0], federation.train.client(k)[0])
        for k, name in enumerate("abcdef")
    }
    real = fl.Federation.from_arrays(x, scale="none")
    with pytest.raises(fl.DivergedError, match=r"by round \d the loss of client '.' has grown to \d"):
        fl.fit(
            fl.Local(lr=4.0, local_steps=1), real, fl.models.linear(), rounds=60, dtype="float64",
            score_training="always",
        )  # fmt: skip
