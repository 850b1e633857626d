"""The estimators follow scikit-learn's conventions and give the numbers of `fl.fit`."""

import pickle
import subprocess
import sys

import numpy as np
import pandas
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

import fedlap as fl

CLIENTS = ("north", "south", "west")


# Mini-batches of weighted rows are not those of repeated rows, as in SGDClassifier of scikit-learn.
MINI_BATCHES = {"check_sample_weight_equivalence_on_dense_data": "mini-batches of repeated rows differ"}


@parametrize_with_checks(
    [fl.FedUClassifier(rounds=30, lr=0.1), fl.FedURegressor(rounds=30, lr=0.1)],
    expected_failed_checks=lambda estimator: MINI_BATCHES,
)
@pytest.mark.filterwarnings("default")  # scikit-learn's checks raise warnings of their own
def test_scikit_learn_s_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [fl.FedUClassifier, fl.FedURegressor])
def test_full_batches_of_weighted_rows_are_those_of_repeated_rows(kind):
    check_sample_weight_equivalence_on_dense_data(kind.__name__, kind(rounds=30, lr=0.1, batch="all"))


def make_rows(task="classification", rows=40):
    """Return features, targets and clients; each client has another true model."""
    generator = np.random.default_rng(0)
    clients = np.repeat(CLIENTS, rows)
    x = generator.normal(size=(len(clients), 3)) * [1, 10, 100] + 5
    slopes = np.repeat([[1.0, 0.1, 0.0], [-1.0, 0.1, 0.01], [1.0, -0.2, 0.0]], rows, axis=0)
    value = (slopes * (x - 5)).sum(1) + 0.1 * generator.normal(size=len(x))
    y = np.where(value > 0, "yes", "no") if task == "classification" else 1000 + 50 * value
    order = generator.permutation(len(x))
    return x[order], y[order], clients[order]


ESTIMATORS = {"classification": fl.FedUClassifier, "regression": fl.FedURegressor}
either_task = pytest.mark.parametrize("task", ESTIMATORS)


@either_task
def test_the_numbers_are_those_of_fit(task):
    x, y, clients = make_rows(task)
    estimator = ESTIMATORS[task](graph="ring", strength=0.1, lr=0.05, rounds=7, seed=3).fit(x, y, clients)
    codes = np.unique(y, return_inverse=True)[1] if task == "classification" else y
    federation = fl.Federation.from_arrays(
        {name: (x[clients == name], codes[clients == name]) for name in CLIENTS}, test_share=0
    )
    method = fl.FedU(fl.Graph.ring(CLIENTS), strength=0.1, lr=0.05, local_steps=5)
    result = fl.fit(method, federation, fl.models.linear(), rounds=7, seed=3, dtype="float64")
    assert estimator.personals_.models.equal(result.models)
    for name in CLIENTS:
        mine = clients == name
        expected = result.predict(name, x[mine]).numpy().flatten()
        if task == "classification":
            expected = estimator.classes_[expected]
        assert (estimator.predict(x[mine], np.repeat(name, mine.sum())) == expected).all()
        assert (estimator.predict(x, clients)[mine] == expected).all()


@either_task
def test_sample_weights_are_those_of_fit(task):
    x, y, clients = make_rows(task)
    weight = np.random.default_rng(1).uniform(0.1, 2, len(x))
    estimator = ESTIMATORS[task](graph="ring", strength=0.1, lr=0.05, rounds=7, seed=3)
    estimator.fit(x, y, clients, sample_weight=weight)
    codes = np.unique(y, return_inverse=True)[1] if task == "classification" else y
    federation = fl.Federation.from_arrays(
        {name: (x[clients == name], codes[clients == name]) for name in CLIENTS},
        test_share=0,
        weight={name: weight[clients == name] for name in CLIENTS},
    )
    method = fl.FedU(fl.Graph.ring(CLIENTS), strength=0.1, lr=0.05, local_steps=5)
    result = fl.fit(method, federation, fl.models.linear(), rounds=7, seed=3, dtype="float64")
    assert estimator.personals_.models.equal(result.models)
    unweighted = ESTIMATORS[task](graph="ring", strength=0.1, lr=0.05, rounds=7, seed=3).fit(x, y, clients)
    assert not estimator.personals_.models.equal(unweighted.personals_.models)


def test_wrong_sample_weights_are_an_error():
    x, y, clients = make_rows()
    with pytest.raises(
        fl.InputError, match="sample_weight, row 0: the weight is negative; expected a finite"
    ):
        fl.FedUClassifier(rounds=1).fit(x, y, clients, sample_weight=np.full(len(x), -1))
    with pytest.raises(fl.InputError, match=r"sample_weight: weights have shape \(3,\); expected one"):
        fl.FedUClassifier(rounds=1).fit(x, y, clients, sample_weight=[1, 2, 3])
    with pytest.raises(fl.InputError, match="all training rows of client 'west' have weight zero"):
        fl.FedUClassifier(rounds=1).fit(x, y, clients, sample_weight=clients != "west")


@either_task
def test_personal_models_beat_one_model(task):
    x, y, clients = make_rows(task)
    estimator = ESTIMATORS[task](strength=0.001, lr=0.3, rounds=60)
    assert estimator.fit(x, y, clients).score(x, y, clients=clients) > 0.9
    assert estimator.fit(x, y).score(x, y) < 0.9


def test_attributes_follow_the_conventions():
    x, y, clients = make_rows()
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    estimator = fl.FedUClassifier(rounds=2, hidden=(4,)).fit(frame, y, clients=clients)
    assert estimator.classes_.tolist() == ["no", "yes"]
    assert estimator.n_features_in_ == 3
    assert estimator.feature_names_in_.tolist() == ["a", "b", "c"]
    assert estimator.clients_.tolist() == sorted(CLIENTS)
    assert estimator.n_iter_ == 2
    probability = estimator.predict_proba(frame, clients)
    assert np.allclose(probability.sum(1), 1)
    assert (estimator.classes_[probability.argmax(1)] == estimator.predict(frame, clients)).all()
    again = pickle.loads(pickle.dumps(estimator))
    assert (again.predict_proba(frame, clients) == probability).all()


def test_parameters_are_stored_as_they_are():
    estimator = fl.FedURegressor(lr=0.5, hidden=(3, 4))
    assert estimator.get_params()["lr"] == 0.5
    assert clone(estimator).set_params(rounds=3).get_params()["rounds"] == 3
    assert clone(estimator).get_params() == estimator.get_params()


@pytest.mark.parametrize("column", ["hospital", 1])
def test_clients_may_be_a_column(column):
    x, y, clients = make_rows()
    data = np.insert(x.astype(object), 1, clients, axis=1)
    if column == "hospital":
        data = pandas.DataFrame(x, columns=["a", "b", "c"]).assign(hospital=clients)
    by_column = fl.FedUClassifier(rounds=3, client_column=column).fit(data, y)
    by_argument = fl.FedUClassifier(rounds=3).fit(x, y, clients)
    assert (by_column.predict_proba(data) == by_argument.predict_proba(x, clients)).all()
    assert by_column.n_features_in_ == 3


def test_unknown_clients_get_the_mean_model_or_an_error():
    x, y, clients = make_rows("regression")
    estimator = fl.FedURegressor(rounds=5).fit(x, y, clients)
    newcomers = np.where(clients == "west", "east", clients)
    models = [estimator.predict(x, np.repeat(name, len(x))) for name in CLIENTS]
    mean = np.mean(models, 0)  # the models are linear
    predicted = estimator.predict(x, newcomers)
    assert np.allclose(predicted[newcomers == "east"], mean[newcomers == "east"], rtol=1e-12)
    assert (predicted != mean)[newcomers != "east"].all()
    assert np.allclose(estimator.predict(x), mean, rtol=1e-12)
    estimator.set_params(unknown="error")
    with pytest.raises(fl.InputError, match="unknown client 'east'"):
        estimator.predict(x, newcomers)
    with pytest.raises(fl.InputError, match="clients is missing; pass the client of each row"):
        estimator.predict(x)


def test_graphs_are_names_matrices_or_graphs():
    x, y, clients = make_rows()
    path = fl.Graph.path(CLIENTS)

    def train(graph=None, **settings):
        fitted = fl.FedUClassifier(rounds=3, strength=0.2, **settings).fit(x, y, clients, graph=graph)
        return fitted.predict_proba(x, clients)

    expected = train(graph=path)
    assert (train(graph="path") == expected).all()
    assert (train(path.weights.matrix().toarray()) == expected).all()
    longer = fl.Graph.from_edges([("north", "south"), ("south", "west"), ("west", "absent")])
    assert (train(longer) == expected).all()
    assert (train() != expected).any()


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@either_task
def test_a_grid_search_passes_clients_by_routing(task, routing):
    x, y, clients = make_rows(task)
    estimator = ESTIMATORS[task](rounds=20, lr=0.1)
    estimator = estimator.set_fit_request(clients=True).set_score_request(clients=True)
    search = GridSearchCV(estimator, {"strength": [0.0, 1.0]}, cv=3).fit(x, y, clients=clients)
    assert search.best_params_ == {"strength": 0.0}
    pipeline = make_pipeline(StandardScaler(), estimator.set_params(strength=0.01))  # clients are unlike
    assert pipeline.fit(x, y, clients=clients).score(x, y, clients=clients) > 0.8


def test_a_column_needs_no_routing():
    x, y, clients = make_rows()
    frame = pandas.DataFrame(x, columns=["a", "b", "c"]).assign(hospital=clients)
    estimator = fl.FedUClassifier(rounds=20, lr=0.1, strength=0.0, client_column="hospital")
    assert cross_val_score(estimator, frame, y, cv=3).mean() > 0.8
    search = GridSearchCV(estimator, {"lr": [1e-6, 0.1]}, cv=3).fit(frame, y)
    assert search.best_params_ == {"lr": 0.1}


def test_errors_say_what_to_do():
    x, y, clients = make_rows()
    for words, settings, message in (
        ((clients[:-1],), {}, r"clients has shape \(119,\); expected one name per row of X, \(120,\)"),
        (([None, *clients[1:]],), {}, "clients, row 0: the client is missing; fill in or remove such rows"),
        ((clients,), {"client_column": 0}, "clients and client_column are both set; pass only one of them"),
        ((), {"client_column": "place"}, "unknown column of X 'place'"),
        ((), {"client_column": 3}, r"client_column = 3; expected a column of X, which has shape \(120, 3\)"),
        ((clients,), {"graph": "rings"}, "unknown graph 'rings'; did you mean 'ring'"),
        ((clients,), {"unknown": "drop"}, "unknown way to treat unknown clients 'drop'"),
        ((clients,), {"lr": 0}, "lr = 0; expected a finite number above zero"),
    ):
        with pytest.raises(fl.InputError, match=message):
            fl.FedUClassifier(**{"rounds": 1, **settings}).fit(x, y, *words)
    scaled = fl.FedUClassifier(rounds=1, scale="client").fit(x, y, clients)
    with pytest.raises(fl.InputError, match="has no scaling constants; use scale='pooled'"):
        scaled.predict(x)


def test_scikit_learn_is_imported_only_when_used():
    script = (
        "import sys, fedlap as fl\n"
        "assert 'sklearn' not in sys.modules\n"
        "assert 'FedUClassifier' in dir(fl)\n"
        "assert fl.FedUClassifier.__name__ == 'FedUClassifier'\n"
        "assert 'sklearn' in sys.modules\n"
        "sys.modules['sklearn.base'] = None\n"
        "for name in ('fedlap.estimators', 'fedlap.estimators.fedu_estimators'):\n"
        "    del sys.modules[name]\n"
        "del fl.estimators\n"
        "try:\n"
        "    fl.FedURegressor\n"
        "except ImportError as error:\n"
        "    assert 'need scikit-learn; run pip install' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["FedUClassifier", "FedURegressor"])
def test_the_estimators_are_documented(name):
    assert getattr(fl, name).__doc__.startswith("FedU as a ")
