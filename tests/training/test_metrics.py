import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
from example_scores import BLANK
from fedlap.data.client_rows import ClientRows
from fedlap.errors import InputError
from fedlap.training.metrics import METRICS, choose_metric
from fedlap.training.scores import Score, Tally, compute_score
from random_inputs import random_arrays

NEW = [f"{name}{suffix}" for name in ("rmse", "mae", "r2") for suffix in ("", "_mean", "_worst", "_std")]


def score_predictions(truth, guess):
    """The score of predictions of each client: lists of rows of targets."""
    y = torch.tensor([row for client in truth for row in client], dtype=torch.float64).reshape(-1, 1)
    count = torch.tensor([len(client) for client in truth])
    rows = ClientRows.of(torch.zeros(len(y), 1), y, count)
    errors = torch.zeros(len(truth), 2, 1, dtype=torch.float64)
    for k, (true, predicted) in enumerate(zip(truth, guess, strict=True)):
        difference = torch.tensor(predicted).double() - torch.tensor(true).double()
        errors[k, :, 0] = torch.stack((difference.square().sum(), difference.abs().sum()))
    test = Tally.of_errors(errors, rows, torch.arange(len(truth)))
    train = Tally(torch.ones(len(truth)).double(), None, torch.ones(len(truth)).long())
    return compute_score(1, train, test, torch.zeros(len(truth)).double(), 0.0, None, (0, 0), 0.0)


def test_regression_scores_by_hand():
    # Errors are 1, −1 and 3, 0; targets vary by ½·2² = 2 and by ½·4² = 8 around the clients' means 1 and 6.
    score = score_predictions([[0.0, 2.0], [4.0, 8.0]], [[1.0, 1.0], [7.0, 8.0]])
    assert (score.rmse, score.mae) == pytest.approx(((11 / 4) ** 0.5, 5 / 4), abs=1e-15)
    assert score.loss == pytest.approx(11 / 8, abs=1e-15)
    assert (score.rmse_mean, score.rmse_worst) == pytest.approx(((1 + 4.5**0.5) / 2, 4.5**0.5), abs=1e-15)
    assert (score.mae_mean, score.mae_worst, score.mae_std) == pytest.approx((1.25, 1.5, 0.25), abs=1e-15)
    # The pooled mean is 3.5, around which the targets vary by 3.5² + 1.5² + 0.5² + 4.5².
    assert score.r2 == pytest.approx(1 - 11 / 35, abs=1e-15)
    assert (score.r2_mean, score.r2_worst) == pytest.approx(((0 - 1 / 8) / 2, -1 / 8), abs=1e-15)
    assert score.r2_std == pytest.approx(1 / 16, abs=1e-15)


def test_r2_leaves_out_clients_whose_test_targets_are_constant():
    with_constant = score_predictions(
        [[0.0, 2.0], [0.1, 0.1, 0.1], [5.0], []], [[1.0, 1.0], [0.0] * 3, [4.0], []]
    )
    assert (with_constant.r2_mean, with_constant.r2_worst, with_constant.r2_std) == (0.0, 0.0, 0.0)
    assert with_constant.r2 is not None
    assert with_constant.rmse_worst == pytest.approx(1)
    constant = score_predictions([[0.1, 0.1], [0.1]], [[1.0, 2.0], [3.0]])
    assert [getattr(constant, name) for name in NEW if name.startswith("r2")] == [None] * 4
    assert constant.mae == pytest.approx((0.9 + 1.9 + 2.9) / 3)
    empty = score_predictions([[], []], [[], []])
    assert [getattr(empty, name) for name in NEW] == [None] * 12


@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_of_several_targets_are_means_over_the_targets(engine, dtype):
    arrays = random_arrays([7, 23, 5, 12], real=True, labels=2)
    federation = fl.Federation.from_arrays(arrays, 0.4, 3, scale="none")
    model = fl.models.mlp(hidden=5)
    result = fl.fit(fl.Local(), federation, model, rounds=3, dtype=dtype, engine=engine)
    score, tolerance = result.scores[-1], 1e-12 if dtype == "float64" else 1e-6
    truth = [federation.test.client(k)[1].numpy() for k in range(4)]
    guess = [
        result.predict(name, federation.test.client(k)[0]).double().numpy()
        for k, name in enumerate(federation.clients)
    ]

    def measure(y, p):
        squared, varied = ((y - p) ** 2).mean(0), y.var(0)
        return np.sqrt(squared).mean(), np.abs(y - p).mean(), (1 - squared / varied).mean()

    pooled = measure(np.concatenate(truth), np.concatenate(guess))
    assert (score.rmse, score.mae, score.r2) == pytest.approx(pooled, abs=tolerance)
    rmse, mae, r2 = np.array([measure(y, p) for y, p in zip(truth, guess, strict=True)]).T
    for name, values, worst in (("rmse", rmse, max(rmse)), ("mae", mae, max(mae)), ("r2", r2, min(r2))):
        found = [getattr(score, f"{name}_{statistic}") for statistic in ("mean", "worst", "std")]
        assert found == pytest.approx([values.mean(), worst, values.std()], abs=tolerance)


def test_classification_has_no_errors():
    federation = fl.Federation.from_arrays(random_arrays([7, 23]), labels=3)
    score = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=1).scores[-1]
    assert [getattr(score, name) for name in NEW] == [None] * 12
    assert score.accuracy is not None


def test_scores_of_older_versions_can_be_read():
    stored = {
        name: value for name, value in json.loads(json.dumps(BLANK.as_dict())).items() if name not in NEW
    }
    assert len(stored) == 15
    assert Score.from_dict(stored) == BLANK


def test_the_default_metric_and_wrong_ones():
    classes = BLANK
    real = replace(BLANK, accuracy=None, rmse=1.0, mae=1.0, r2=0.5)
    old = replace(BLANK, accuracy=None)
    untested = replace(old, loss=None)
    for score, name in ((classes, "accuracy"), (real, "rmse"), (old, "loss"), (untested, "accuracy")):
        assert choose_metric([score]).name == name
    assert choose_metric([real, real], "r2") is METRICS["r2"]
    assert choose_metric([untested], "r2") is METRICS["r2"]
    with pytest.raises(InputError, match="metric = rmse: these runs do not have it; use accuracy, loss"):
        choose_metric([classes], "rmse")
    with pytest.raises(
        InputError, match="metric = accuracy: these runs do not have it; use loss, rmse, mae, r2"
    ):
        choose_metric([real], "accuracy")
    with pytest.raises(InputError, match="unknown metric 'rsme'; did you mean 'rmse'"):
        choose_metric([real], "rsme")
