"""FedU as a classifier and as a regressor of scikit-learn: one model per client, coupled by a graph."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.data.row_weights import convert_weights
from fedlap.data.standardize import Scaling
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.fit import fit
from fedlap.graph import GRAPHS, Graph, build_graph
from fedlap.models import linear, mlp
from fedlap.personal import Personals
from fedlap.training.schedule import DtypeName

UnknownClients = Literal["mean", "error"]
SINGLE_CLIENT = "all"  # the name of the client of all rows, if no clients are passed
MEAN_CLIENT = "mean"

Rows = Float[np.ndarray, "row feature"]
Names = Shaped[np.ndarray, "row"]


class _FedUEstimator(BaseEstimator):  # type: ignore[misc]
    """The shared part of both estimators: settings, training, and the scores of rows."""

    def __init__(
        self,
        *,
        graph: Any = "complete",
        strength: float | None = None,
        lr: float = 0.03,
        rounds: int = 100,
        local_steps: int = 5,
        batch: BatchSize = 20,
        sample: float = 1.0,
        hidden: Sequence[int] = (),
        l2: float = 0.0,
        scale: Scaling = "pooled",
        dtype: DtypeName = "float64",
        client_column: str | int | None = None,
        unknown: UnknownClients = "mean",
        seed: int = 0,
    ) -> None:
        self.graph = graph
        self.strength = strength
        self.lr = lr
        self.rounds = rounds
        self.local_steps = local_steps
        self.batch = batch
        self.sample = sample
        self.hidden = hidden
        self.l2 = l2
        self.scale = scale
        self.dtype = dtype
        self.client_column = client_column
        self.unknown = unknown
        self.seed = seed

    def _train(
        self, x: Rows, y: np.ndarray, owners: Any, labels: int | None, graph: Any, sample_weight: Any
    ) -> None:
        """Train one model per client and store the models, without the rows."""
        if self.unknown not in ("mean", "error"):
            raise unknown_name_error("way to treat unknown clients", self.unknown, ("mean", "error"))
        names = _check_names(owners, len(x))
        clients = np.full(len(x), SINGLE_CLIENT) if names is None else names
        self.clients_ = np.unique(clients)
        rows = {name: clients == name for name in self.clients_}
        arrays = {str(name): (x[mask], y[mask]) for name, mask in rows.items()}
        weight = None
        if sample_weight is not None:
            weights = convert_weights("sample_weight", sample_weight, len(x))
            weight = {str(name): weights[torch.from_numpy(mask)] for name, mask in rows.items()}
        federation = Federation.from_arrays(
            arrays, test_share=0.0, labels=labels, scale=self.scale, weight=weight
        )
        method = ALGORITHMS["fedu"](  # type: ignore[call-arg]
            self._build_graph(self.graph if graph is None else graph, federation),
            strength=self.strength,
            lr=self.lr,
            local_steps=self.local_steps,
        )
        hidden = tuple(self.hidden)
        model = mlp(hidden, l2=self.l2) if hidden else linear(l2=self.l2)
        result = fit(
            method,
            federation,
            model,
            rounds=self.rounds,
            batch=self.batch,
            sample=self.sample,
            dtype=self.dtype,
            seed=self.seed,
            evaluate_every=0,
        )
        self.personals_ = result.personals
        self.n_iter_ = result.progress.round

    def _build_graph(self, graph: Any, federation: Federation) -> Graph:
        """Return the graph of the clients that have training rows; other clients of a graph are left out."""
        if isinstance(graph, str):
            if graph not in GRAPHS:
                raise unknown_name_error("graph", graph, GRAPHS)
            return build_graph(graph, federation, self.seed)
        if not isinstance(graph, Graph):
            return Graph.from_matrix(graph, federation.clients)
        if graph.clients is None or set(graph.clients) <= set(federation.clients):
            return graph
        places = [place for place, name in enumerate(graph.clients) if name in set(federation.clients)]
        matrix = graph.weights.matrix()[places][:, places]
        return Graph.from_matrix(matrix, [graph.clients[place] for place in places])

    def _split_clients(self, X: Any, clients: Any) -> tuple[Any, Any]:
        """Return the features, and the client of each row; None if there are no clients."""
        if self.client_column is None:
            return X, clients
        if clients is not None:
            raise InputError("clients and client_column are both set; pass only one of them", field="clients")
        if isinstance(self.client_column, str):
            columns = list(getattr(X, "columns", ()))
            if self.client_column not in columns:
                raise unknown_name_error("column of X", self.client_column, map(str, columns))
            return X.drop(columns=self.client_column), X[self.client_column]
        array = np.asarray(X)
        if array.ndim != 2 or not -array.shape[1] <= self.client_column < array.shape[1]:
            raise InputError(
                f"client_column = {self.client_column}; expected a column of X, which has shape "
                f"{array.shape}",
                field="client_column",
            )
        return np.delete(array, self.client_column, 1), array[:, self.client_column]

    def _score_rows(self, X: Any, clients: Any) -> Float[np.ndarray, "row output"]:
        """Return the network's output for each row, by the model of its client or by the mean model."""
        check_is_fitted(self)
        features, owners = self._split_clients(X, clients)
        x: Rows = validate_data(self, features, reset=False, dtype=np.float64)
        names = _check_names(owners, len(x))
        if names is None and len(self.clients_) == 1:
            names = np.repeat(self.clients_, len(x))
        known = np.zeros(len(x), dtype=bool) if names is None else np.isin(names, self.clients_)
        if self.unknown == "error" and not known.all():
            if names is None:
                raise InputError("predict: clients is missing; pass the client of each row", field="clients")
            raise unknown_name_error("client", names[~known][0], map(str, self.clients_))
        scores = np.empty((len(x), self.personals_.metadata.outputs))
        if known.any():
            assert names is not None  # else none is known
            scores[known] = self.personals_.scores(names[known].tolist(), x[known]).cpu().numpy()
        if not known.all():
            mean = self._build_mean_model()
            scores[~known] = mean.of_client(MEAN_CLIENT).scores(x[~known]).cpu().numpy()
        return scores

    def _build_mean_model(self) -> Personals:
        """Return the mean of all clients' models, for clients that were not trained."""
        personals = self.personals_
        if personals.scale.kind == "client":
            raise InputError(
                "predict: a client without training rows has no scaling constants; use scale='pooled'",
                field="scale",
            )
        mean = personals.models.double().mean(0, keepdim=True).to(personals.models.dtype)
        return replace(personals, clients=(MEAN_CLIENT,), models=mean)


class FedUClassifier(ClassifierMixin, _FedUEstimator):  # type: ignore[misc]
    """FedU as a classifier of scikit-learn: one model per client, coupled by a graph of clients.

    graph: the name of a graph ("complete", "ring", …), a Graph, or a matrix with rows in the order of
        `clients_`. Clients of a Graph that have no training rows are left out.
    strength: η, the strength of the coupling; default: as in `fedlap.FedU`.
    lr, local_steps, batch, rounds, sample: step size, steps per round, rows per mini-batch, rounds, and the
        share of clients sampled per round.
    hidden, l2: widths of hidden layers, none for a linear model, and the weight of (l2/2)‖w‖².
    scale: standardisation of features by training rows: "pooled", "client" or "none".
    dtype: "float64" or "float32".
    client_column: a column of X with the clients (a name for a data frame, or an index), instead of the
        argument `clients`. It is no feature.
    unknown: the model of a row whose client had no training rows, or is not passed: "mean" uses the mean of
        all models, "error" raises InputError.
    seed: the seed of starts, sampling and batches.

    `fit` takes weights of rows (`sample_weight`), which are divided by the mean weight of their client. With
    batch="all", an integer weight is a repeated row; mini-batches of weighted and of repeated rows differ.

    Without clients, all rows belong to one client. `personals_` has the models (`fedlap.personal.Personals`),
    `clients_` the clients in sorted order. Training rows are not stored.
    """

    def fit(
        self, X: Any, y: Any, clients: Any = None, graph: Any = None, sample_weight: Any = None
    ) -> "FedUClassifier":
        """Train one model per client.

        clients: the client of each row. graph: instead of the estimator's setting. sample_weight: the weight
        of each row, finite and at least 0.
        """
        features, owners = self._split_clients(X, clients)
        x, labels = validate_data(self, features, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self._train(x, codes.astype(np.int64), owners, len(self.classes_), graph, sample_weight)
        return self

    def predict(self, X: Any, clients: Any = None) -> Shaped[np.ndarray, "row"]:
        """Predict the class of each row, by the model of its client."""
        codes = self._score_rows(X, clients).argmax(1)
        predicted: Names = self.classes_[codes]
        return predicted

    def predict_proba(self, X: Any, clients: Any = None) -> Float[np.ndarray, "row label"]:
        """Return the probability of each class, in the order of `classes_`."""
        scores = torch.from_numpy(self._score_rows(X, clients))
        return scores.softmax(1).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None, clients: Any = None) -> float:
        """Return the accuracy."""
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))


class FedURegressor(RegressorMixin, _FedUEstimator):  # type: ignore[misc]
    """FedU as a regressor of scikit-learn: one model per client, coupled by a graph of clients.

    The settings and attributes are those of `FedUClassifier`. With scale "pooled" or "client", targets are
    standardised for training, too; predictions have the unit of y.
    """

    def fit(
        self, X: Any, y: Any, clients: Any = None, graph: Any = None, sample_weight: Any = None
    ) -> "FedURegressor":
        """Train one model per client.

        clients: the client of each row. graph: instead of the estimator's setting. sample_weight: the weight
        of each row, finite and at least 0.
        """
        features, owners = self._split_clients(X, clients)
        x, targets = validate_data(self, features, y, dtype=np.float64, y_numeric=True)
        self._train(x, np.asarray(targets, dtype=np.float64), owners, None, graph, sample_weight)
        return self

    def predict(self, X: Any, clients: Any = None) -> Float[np.ndarray, "row"]:
        """Predict the target of each row, by the model of its client."""
        return self._score_rows(X, clients)[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, clients: Any = None) -> float:
        """Return R²."""
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))


def _check_names(clients: Any, rows: int) -> Names | None:
    """Return the client of each row as text; raise InputError unless there is one per row.

    None stays None.
    """
    if clients is None:
        return None
    array = np.asarray(clients)
    if array.shape != (rows,):
        raise InputError(
            f"clients has shape {array.shape}; expected one name per row of X, ({rows},)", field="clients"
        )
    missing = [name is None or name != name for name in array.tolist()]
    if any(missing):
        raise InputError(
            f"clients, row {missing.index(True)}: the client is missing; fill in or remove such rows",
            field="clients",
        )
    if array.dtype.kind == "f" and bool((array == np.floor(array)).all()):
        array = array.astype(np.int64)
    return np.array([str(name) for name in array.tolist()])
