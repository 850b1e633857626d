"""Real targets are standardised by pooled training rows; scores and predictions keep the unit of the data."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.data.client_rows import ClientRows
from fedlap.data.target_scale import TargetScale
from fedlap.errors import InputError
from fedlap.experiments.content_digest import digest_content
from fedlap.personal import Personal, Personals
from laws import METHODS, WORK
from random_inputs import random_arrays, random_weights

COUNTS = [7, 23, 5, 12]
FACTOR, OFFSET = np.array([250.0, 0.004]), np.array([3e4, -7.0])
every_method = pytest.mark.parametrize("name", METHODS)


def real_rows(outputs=2):
    """Targets that depend on the features, so that there is something to learn."""
    arrays = random_arrays(COUNTS, real=True, labels=outputs, seed=3)
    return {name: (x, 0.3 * y + x[:, :outputs]) for name, (x, y) in arrays.items()}


def change_unit(arrays, outputs=2):
    return {name: (x, y * FACTOR[:outputs] + OFFSET[:outputs]) for name, (x, y) in arrays.items()}


def constants(federation):
    return torch.stack((federation.target_scale.mean, federation.target_scale.deviation))


def train(name, federation, rounds=3, **how):
    graph = fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)
    method = METHODS[name]
    algorithm = method.make(graph, **WORK["steps"])
    return fl.fit(algorithm, federation, method.model, rounds=rounds, batch=4, dtype="float64", **how)


def test_constants_by_hand():
    rows = {"a": (np.zeros((2, 1)), [1.0, 3.0]), "b": (np.ones((1, 1)), [8.0])}
    federation = fl.Federation.from_arrays(rows, test={"a": (np.zeros((1, 1)), [1e9]), "b": ([[0.0]], [5.0])})
    deviation = np.std([1.0, 3.0, 8.0])
    assert constants(federation).flatten().tolist() == pytest.approx([4.0, deviation], abs=1e-15)
    placed = federation.to_device(torch.device("cpu"), torch.float64)
    assert placed.train.y.flatten().tolist() == pytest.approx([-3 / deviation, -1 / deviation, 4 / deviation])
    assert placed.target_scale is None
    assert placed.to_device(torch.device("cpu"), torch.float64).train.y.equal(placed.train.y)  # only once
    assert federation.train.y.flatten().tolist() == [1.0, 3.0, 8.0]


def test_the_rule():
    arrays = real_rows()
    for scale in ("pooled", "client"):
        federation = fl.Federation.from_arrays(arrays, scale=scale)
        y = federation.train.y.numpy()
        assert constants(federation).numpy() == pytest.approx(np.stack((y.mean(0), y.std(0))), abs=1e-14)
    assert fl.Federation.from_arrays(arrays, scale="none").target_scale is None
    assert fl.Federation.from_arrays(random_arrays(COUNTS), labels=3).target_scale is None


def test_constant_targets_are_only_shifted():
    rows = {"a": (np.arange(6.0)[:, None], np.full(6, 0.1)), "b": (np.ones((5, 1)), np.full(5, 0.1))}
    federation = fl.Federation.from_arrays(rows)
    assert constants(federation).flatten().tolist() == [0.1, 1.0]
    result = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=1, dtype="float64")
    assert result.scores[-1].rmse < 1
    assert result.scores[-1].r2 is None


def test_constants_follow_the_training_rows():
    federation = fl.Federation.from_arrays(real_rows(), 0.3)

    def expect(changed):
        y = changed.train.y.numpy()
        return np.stack((y.mean(0), y.std(0)))

    for changed in (federation.scarce(0.5, 0.3), federation.fold(3, 1)):
        assert constants(changed).numpy() == pytest.approx(expect(changed), abs=1e-14)
        assert not np.allclose(expect(changed), expect(federation))
    for same in (federation.reorder(federation.clients[::-1]), federation.pool_clients()):
        assert constants(same).equal(constants(federation))
    by_client = federation.standardize("client")
    assert by_client.pool_clients().train.y.sum() == pytest.approx(float(by_client.train.y.sum()))


@every_method
def test_test_targets_never_reach_training(name):
    federation = fl.Federation.from_arrays(real_rows(), 0.3)
    test = federation.test
    poisoned = replace(federation, test=ClientRows(test.store, test.row, 1e6 - 9 * test.y, test.count))
    poisoned = poisoned.standardize("pooled")
    assert constants(poisoned).equal(constants(federation))
    one, other = (train(name, data) for data in (federation, poisoned))
    assert one.models.equal(other.models)
    assert one.scores[-1].rmse != other.scores[-1].rmse


@every_method
def test_another_unit_of_the_targets_changes_nothing_but_the_unit(name):
    """y → a·y + b: predictions become a·p + b, errors |a| times as large, and R² and J stay."""
    arrays = real_rows(1)
    results = [train(name, fl.Federation.from_arrays(rows, 0.3)) for rows in (arrays, change_unit(arrays, 1))]
    before, after = (result.scores[-1] for result in results)
    factor, offset = FACTOR[0], OFFSET[0]
    for metric, times in (("rmse", abs(factor)), ("mae", abs(factor)), ("r2", 1.0), ("loss", factor**2)):
        for suffix in ("", "_mean", "_worst", "_std"):
            expected = times * getattr(before, metric + suffix)
            assert getattr(after, metric + suffix) == pytest.approx(expected, rel=1e-8), metric + suffix
    assert after.train_loss == pytest.approx(factor**2 * before.train_loss, rel=1e-8)
    x = arrays["b"][0]
    first, second = (result.predict("b", x) for result in results)
    assert second.numpy() == pytest.approx(factor * first.numpy() + offset, rel=1e-10)


def test_a_reversed_target_reverses_models_that_start_at_zero():
    arrays = real_rows(1)
    reversed_rows = {name: (x, 5.0 - 2.0 * y) for name, (x, y) in arrays.items()}
    federations = [fl.Federation.from_arrays(rows, 0.3) for rows in (arrays, reversed_rows)]
    first, second = (train("fedu", data, start=torch.zeros(5).double()) for data in federations)
    assert second.models.numpy() == pytest.approx(-first.models.numpy(), rel=1e-9, abs=1e-12)
    assert second.scores[-1].rmse == pytest.approx(2.0 * first.scores[-1].rmse, rel=1e-9)
    assert second.scores[-1].r2 == pytest.approx(first.scores[-1].r2, rel=1e-9)


def test_several_targets_in_units_far_apart():
    arrays = real_rows()
    federations = [fl.Federation.from_arrays(rows, 0.3) for rows in (arrays, change_unit(arrays))]
    results = [train("fedu", federation) for federation in federations]
    before, after = (result.scores[-1] for result in results)
    assert (after.r2, after.objective) == pytest.approx((before.r2, before.objective), rel=1e-8)
    x = arrays["b"][0]
    first, second = (result.predict("b", x).numpy() for result in results)
    assert second == pytest.approx(FACTOR * first + OFFSET, rel=1e-10)
    truth = [federations[1].test.client(k)[1].numpy() for k in range(4)]
    names = federations[1].clients
    guess = [results[1].predict(n, federations[1].test.client(k)[0]).numpy() for k, n in enumerate(names)]
    errors = np.concatenate(truth) - np.concatenate(guess)
    assert after.rmse == pytest.approx(np.sqrt((errors**2).mean(0)).mean(), rel=1e-12)
    assert after.loss == pytest.approx((errors**2).sum(1).mean() / 2, rel=1e-12)


@pytest.mark.parametrize("name", ["fedu", "global", "mocha", "perfedavg", "fedper"])
def test_engines_agree_in_the_unit_of_the_data(name):
    federation = fl.Federation.from_arrays(change_unit(real_rows()), 0.3, scale="client")
    one, other = (
        train(name, federation, engine=engine).scores[-1].as_dict() for engine in ("stacked", "one_by_one")
    )
    assert one.keys() == other.keys()
    for key in one.keys() - {"seconds"}:
        assert (one[key] is None) == (other[key] is None), key
        if one[key] is not None:
            assert one[key] == pytest.approx(other[key], rel=1e-9, abs=1e-12), key


def test_single_precision_survives_a_large_offset():
    """In float32 a target of 30,000 ± 250 has two decimals; standardised it has seven digits."""
    federation = fl.Federation.from_arrays(change_unit(real_rows()), 0.3)
    methods = fl.Local(lr=0.1), federation, fl.models.linear()
    scores = [fl.fit(*methods, rounds=20, dtype=dtype).scores[-1] for dtype in ("float32", "float64")]
    assert scores[0].rmse == pytest.approx(scores[1].rmse, rel=1e-5)
    assert scores[0].r2 == pytest.approx(scores[1].r2, abs=1e-5)


def scale_features(result, x):
    return result.federation.scale.apply(torch.tensor(x)[None], torch.tensor([1]), torch.float64)[0]


def test_saved_models_predict_in_the_unit_of_the_data(tmp_path):
    arrays = change_unit(real_rows())
    result = train("fedu", fl.Federation.from_arrays(arrays, 0.3))
    x, names = arrays["b"][0], ["b"] * len(arrays["b"][0])
    expected = result.predict("b", x)
    assert abs(float(expected[:, 0].mean()) - OFFSET[0]) < 1e3
    result.personals.save(tmp_path / "all")
    result.personal("b").save(tmp_path / "b.safetensors")
    stored = Personals.load(tmp_path / "all")
    assert stored.scores(names, x).numpy() == pytest.approx(expected.numpy(), rel=1e-14)
    assert Personal.load(tmp_path / "b.safetensors").predict(x).equal(expected)
    assert json.loads((tmp_path / "b.json").read_text())["scales_target"] is True
    module = result.model("b")(scale_features(result, x))
    assert result.federation.target_scale.restore(module).detach().numpy() == pytest.approx(
        expected.numpy(), rel=1e-12
    )


def test_files_of_unscaled_models_have_no_constants_of_targets(tmp_path):
    for place, federation in enumerate((
        fl.Federation.from_arrays(real_rows(), scale="none"),
        fl.Federation.from_arrays(random_arrays(COUNTS), labels=3),
    )):  # fmt: skip
        result = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=1)
        result.personals.save(tmp_path / str(place))
        assert "scales_target" not in json.loads((tmp_path / str(place) / "about.json").read_text())
        assert Personals.load(tmp_path / str(place)).target_scale is None


def test_a_newcomer_is_trained_in_the_unit_of_the_run():
    arrays = real_rows(1)
    newcomer = {"new": arrays.pop("d")}
    joined = []
    for unit in (lambda rows: rows, lambda rows: change_unit(rows, 1)):
        result = train("fedu", fl.Federation.from_arrays(unit(arrays), 0.3))
        joined.append(result.join(*unit(newcomer)["new"], {"a": 1.0, "b": 0.5}))
    x = newcomer["new"][0]
    first, second = (personal.predict(x).numpy() for personal in joined)
    assert second == pytest.approx(FACTOR[0] * first + OFFSET[0], rel=1e-10)
    assert joined[0].parameters.numpy() == pytest.approx(joined[1].parameters.numpy(), rel=1e-8)


def test_the_content_of_scaled_targets_differs():
    """Runs of versions that did not scale targets are trained again; other runs keep their folders."""
    federation = fl.Federation.from_arrays(real_rows())
    assert digest_content(federation) != digest_content(replace(federation, target_scale=None))


def test_wrong_constants_are_refused():
    federation = fl.Federation.from_arrays(real_rows())
    one = TargetScale(torch.zeros(1).double(), torch.ones(1).double())
    with pytest.raises(InputError, match=r"expected torch.float64 of shape \(2,\)"):
        replace(federation, target_scale=one)
    classes = fl.Federation.from_arrays(random_arrays(COUNTS), labels=3)
    with pytest.raises(InputError, match="expected none for classes"):
        replace(classes, target_scale=one)
    with pytest.raises(InputError, match="the scaling differs"):
        train("local", replace(federation, target_scale=None), rounds=4, resume=train("local", federation))
