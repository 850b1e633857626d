"""Scores of training rows: in the last round by default, in no round if asked, and nowhere else computed."""

import json
import math

import pytest
import torch

import fedlap as fl
from fedlap.training.engines import Stacked
from fedlap.training.jobs import detect_divergence
from fedlap.training.one_by_one import OneByOne
from fedlap.training.scores import TRAINING_FIELDS, Tally
from fit_results import same
from laws import METHODS

ENGINES = {"stacked": Stacked, "one_by_one": OneByOne}


def split_fields(score):
    """Values of a score from training rows, and the others without the time."""
    values = score.as_dict() | {"seconds": 0}
    return {name: values.pop(name) for name in TRAINING_FIELDS}, values


@pytest.mark.parametrize("name", ["fedu", "dfedu", "perfedavg", "mocha", "global"])
@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_values_of_training_rows_depend_on_the_setting(name, engine, federation, graph):
    method = METHODS[name]
    words = (method.make(graph, local_steps=2), federation, method.model)
    never, last, always = (
        fl.fit(*words, rounds=3, batch=4, evaluate_every=1, engine=engine, score_training=when)
        for when in ("never", "last", "always")
    )
    assert torch.equal(last.models, always.models)
    assert torch.equal(never.models, always.models)
    for none, one, other in zip(never.scores, last.scores, always.scores, strict=True):
        (unseen, same), (seen, rest), (wanted, others) = map(split_fields, (none, one, other))
        assert rest == others == same
        assert unseen == dict.fromkeys(TRAINING_FIELDS)
        assert wanted["train_loss"] is not None
        assert wanted["objective"] is not None
        assert (wanted["gap"] is None) == (name != "mocha")
        assert seen == (wanted if one.round == 3 else dict.fromkeys(TRAINING_FIELDS))


@pytest.mark.parametrize("engine", ENGINES)
def test_training_rows_are_read_only_where_they_are_scored(engine, federation, graph, monkeypatch):
    tally, seen = ENGINES[engine]._tally, []

    def record(self, W, rows, *place):
        seen.append("train" if rows is self.scored.train else "test")
        return tally(self, W, rows, *place)

    monkeypatch.setattr(ENGINES[engine], "_tally", record)
    gaps = []
    gap = fl.Mocha.gap
    monkeypatch.setattr(fl.Mocha, "gap", lambda self, *parts: gaps.append(1) or gap(self, *parts))

    def train(**settings):
        seen.clear()
        gaps.clear()
        fl.fit(fl.Mocha(graph, 0.3), federation, METHODS["mocha"].model, engine=engine, **settings)
        return list(seen)

    calls = 1 if engine == "stacked" else len(federation.clients)
    assert train(rounds=4, evaluate_every=2, score_training="never") == ["test", "test"]
    assert not gaps
    assert train(rounds=4, evaluate_every=2) == ["test", "test", "train"]
    assert len(gaps) == calls
    assert train(rounds=4, evaluate_every=2, score_training="always") == ["test", "train"] * 2
    assert len(gaps) == 2 * calls


def test_a_folder_that_is_extended_forgets_the_training_part_of_its_former_last_score(federation, tmp_path):
    words = (fl.Local(lr=0.1), federation, fl.models.linear(l2=0.01))

    def read_objectives():
        lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
        return [json.loads(line)["objective"] is not None for line in lines]

    fl.fit(*words, rounds=2, evaluate_every=1, folder=tmp_path)
    assert read_objectives() == [False, True]
    extended = fl.fit(*words, rounds=4, evaluate_every=1, folder=tmp_path)
    assert read_objectives() == [False, False, False, True]
    same(extended, fl.fit(*words, rounds=4, evaluate_every=1))
    with pytest.raises(fl.InputError, match="score_training = unset, but score_training = always was passed"):
        fl.fit(*words, rounds=4, evaluate_every=1, folder=tmp_path, score_training="always")


@pytest.mark.parametrize("metric", TRAINING_FIELDS)
def test_early_stopping_asks_for_the_training_rows_it_needs(metric, federation):
    stop = fl.EarlyStopping(metric, patience=1)
    for when in ("never", "last"):
        with pytest.raises(
            fl.InputError, match=f"{metric} comes from training rows, and score_training = '{when}'"
        ):
            fl.fit(
                fl.Local(), federation, fl.models.linear(), rounds=3, callbacks=[stop], score_training=when
            )
    if metric != "gap":
        how = {"rounds": 3, "evaluate_every": 1, "callbacks": [fl.EarlyStopping(metric, 1, 1e9)]}
        stopped = fl.fit(fl.Local(), federation, fl.models.linear(), score_training="always", **how)
        assert stopped.progress.round == 2


def test_without_training_rows_a_model_that_is_not_finite_has_diverged(federation):
    finite = torch.ones(6, dtype=torch.bool)
    assert detect_divergence(None, finite, federation, 4, fl.Local()) is None
    finite[1] = False
    error = detect_divergence(None, finite, federation, 4, fl.Local())
    name = federation.clients[1]
    assert f"by round 4 the model of client {name!r} is not finite (1 of 6 clients)" in str(error)


@pytest.mark.parametrize("without", [False, True], ids=["test rows", "no test rows"])
def test_divergence_is_found_before_the_last_round(without, arrays):
    large = {name: (1e3 * x, y) for name, (x, y) in arrays.items()}
    share = 0.0 if without else 0.25
    federation = fl.Federation.from_arrays(large, test_share=share, labels=3, scale="none")
    seen = []
    with pytest.raises(fl.DivergedError) as caught:
        fl.fit(
            fl.Local(lr=1e30, local_steps=5), federation, fl.models.mlp((5,), l2=1.0), rounds=50,
            evaluate_every=5, on_round=seen.append,
        )  # fmt: skip
    assert max(seen) < 50
    assert "is not finite" in str(caught.value)


def test_a_loss_that_grows_far_above_the_lowest_has_diverged(federation):
    count = torch.tensor([2] * 6)
    tally = Tally(torch.tensor([2e7] + [2.0] * 5).double(), torch.ones(6).double(), count)
    finite = torch.ones(6, dtype=torch.bool)
    assert detect_divergence(tally, finite, federation, 1, fl.Local(), math.inf) is None
    error = detect_divergence(tally, finite, federation, 2, fl.Local(), 1.0)
    assert "has grown to 1e+07 (1 of 6 clients)" in str(error)


def test_advice_names_settings_that_the_method_has(federation, graph):
    no_client = torch.zeros(len(federation.clients), dtype=torch.bool)
    assert "lower lr" in str(detect_divergence(None, no_client, federation, 4, fl.Local()))
    advice = str(detect_divergence(None, no_client, federation, 4, fl.Mocha(graph)))
    assert "lr" not in advice
    assert advice.endswith("scale the features")
