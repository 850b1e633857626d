"""Standard errors of predictions if columns are constant within a client, such as the place of a station."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.models import Model
from fedlap.personal.coefficients import compute_coefficients

ROWS = 30  # per client


class Stations:
    """Regressions on a ring: a slope and an intercept that differ smoothly, and columns of the place.

    constants: number of columns of the place. t: variance of the differences between clients.
    """

    def __init__(self, clients, constants, t, seed=0):
        self.clients, self.constants, self.size = clients, constants, constants + 2
        self.draws = np.random.default_rng(seed)
        self.graph = fl.Graph.ring([f"c{k}" for k in range(clients)])
        weights = self.graph.weights.matrix().toarray()
        self.laplacian = np.diag(weights.sum(1)) - weights
        value, vector = np.linalg.eigh(self.laplacian)
        self.root = vector[:, 1:] / np.sqrt(value[1:])
        self.t = np.array([t, *[0.0] * constants, t])
        self.draw()

    def draw(self):
        """Draw places, true models and rows."""
        self.places = self.draws.normal(size=(self.clients, self.constants))
        smooth = self.root @ self.draws.normal(size=(self.clients - 1, self.size)) * np.sqrt(self.t)
        self.true = smooth + self.draws.normal(size=self.size)
        self.x = [self.draw_design(k, ROWS) for k in range(self.clients)]
        self.y = [x @ w + self.draws.normal(size=ROWS) for x, w in zip(self.x, self.true, strict=True)]

    def draw_design(self, client, rows):
        """Return rows at the place of a client: a feature, the place and the constant 1."""
        place = np.tile(self.places[client], (rows, 1))
        return np.hstack([self.draws.normal(size=(rows, 1)), place, np.ones((rows, 1))])

    def train(self, strength):
        """Return the minimiser of J, and the coefficients with their errors."""
        arrays = {f"c{k}": (x[:, :-1], y) for k, (x, y) in enumerate(zip(self.x, self.y, strict=True))}
        federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
        H = strength * np.kron(self.laplacian, np.eye(self.size))
        for k, x in enumerate(self.x):
            part = slice(self.size * k, self.size * (k + 1))
            H[part, part] += x.T @ x / ROWS
        moment = np.concatenate([x.T @ y / ROWS for x, y in zip(self.x, self.y, strict=True)])
        models = np.linalg.lstsq(H, moment, rcond=1e-10)[0].reshape(self.clients, self.size)
        model = Model(fl.models.linear().build(federation.inputs, federation.outputs), federation.loss)
        method = fl.FedU(self.graph, strength=strength, lr=1e-9) if strength else fl.Local()
        return models, compute_coefficients(federation, model, method, torch.tensor(models))

    def predict_errors(self, strength, repeats):
        """Return the errors of predictions at the clients' places, and what their standard errors say.

        The standard errors are those of the predictions (without noise) and those of new targets.
        """
        errors, spreads, standards = [], [], []
        for _ in range(repeats):
            self.draw()
            models, found = self.train(strength)
            for k in range(self.clients):
                x = self.draw_design(k, 5)
                standard = found.prediction_errors(torch.full((5,), k), torch.tensor(x[:, :-1])).numpy()
                errors.append(x @ (models[k] - self.true[k]))
                spreads.append(np.sqrt(np.maximum(standard**2 - found.noise**2, 0)))
                standards.append(standard)
        return np.concatenate(errors), np.concatenate(spreads), np.concatenate(standards)


def check_coverage(clients, constants, factor, t, repeats):
    errors, spreads, standards = Stations(clients, constants, t).predict_errors(factor / ROWS, repeats)
    assert 0.90 <= (np.abs(errors) <= 1.96 * spreads).mean() <= 0.99
    assert standards.mean() == pytest.approx(np.sqrt(1 + np.square(errors).mean()), rel=0.05)  # noise 1


@pytest.mark.slow
@pytest.mark.parametrize("t", [0.05, 0.5])
@pytest.mark.parametrize("factor", [1.0, 10.0])
@pytest.mark.parametrize("constants", [0, 1, 2, 3])
@pytest.mark.parametrize("clients", [5, 6])
def test_intervals_of_predictions_cover(clients, constants, factor, t):
    """From 90 to 99 % of the true values are in intervals of 95 %, and errors have the right size."""
    check_coverage(clients, constants, factor, t, repeats=40)


def test_places_do_not_inflate_the_errors_of_few_clients():
    check_coverage(6, 3, 10.0, 0.5, repeats=10)


def test_local_predictions_have_the_errors_of_least_squares_at_the_clients_place():
    """Columns of the place and the intercept share an effect that the rows of a client determine."""
    stations = Stations(4, 2, 0.3)
    _, found = stations.train(0.0)
    assert bool(found.errors.isnan().all())
    assert found.explain_gaps().startswith("4 of 4 clients have no standard errors")
    for k, x in enumerate(stations.x):
        plain, new = x[:, [0, -1]], stations.draw_design(k, 6)
        inverse = np.linalg.inv(plain.T @ plain)
        spread = np.einsum("np,pq,nq->n", new[:, [0, -1]], inverse, new[:, [0, -1]])
        features = torch.tensor(new[:, :-1])
        errors = found.prediction_errors(torch.full((6,), k), features)
        torch.testing.assert_close(errors, torch.tensor(found.noise * np.sqrt(1 + spread)))
        elsewhere = features + torch.tensor([0.0, 0.5, 0.0])
        assert bool(found.prediction_errors(torch.full((6,), k), elsewhere).isnan().all())
