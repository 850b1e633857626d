"""Coefficients in the units of the data, and their standard errors."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.models import Model
from fedlap.personal import uncertainty
from fedlap.personal.coefficients import INTERCEPT, Coefficients, compute_coefficients, format_estimate
from fedlap.personal.smoothness import fix_variances
from fedlap.personal.uncertainty import QuadraticProblem, estimate_errors
from fedlap.report.page.answer_sections import build_coefficient_sections
from fedlap.report.page.sections import IntervalSection

rng = np.random.default_rng(0)


def build_regression(counts, scale="none", features=2):
    arrays = {}
    for client, count in enumerate(counts):
        x = rng.normal(5.0, 3.0, size=(count, features))
        arrays[f"c{client}"] = x, 2.0 + x @ np.arange(1.0, features + 1) + rng.normal(size=count)
    return fl.Federation.from_arrays(arrays, test_share=0, scale=scale), arrays


def size_model(federation, l2=0.0):
    return Model(fl.models.linear().build(federation.inputs, federation.outputs), federation.loss, l2)


def with_intercept(x):
    return np.hstack([x, np.ones((len(x), 1))])


def test_local_models_have_the_errors_of_least_squares():
    federation, arrays = build_regression([12, 30, 7])
    fits = {name: np.linalg.lstsq(with_intercept(x), y, rcond=None)[0] for name, (x, y) in arrays.items()}
    models = torch.tensor(np.stack(list(fits.values())))
    found = compute_coefficients(federation, size_model(federation), fl.Local(), models)
    residual = sum(((y - with_intercept(x) @ fits[name]) ** 2).sum() for name, (x, y) in arrays.items())
    variance = residual / (12 + 30 + 7 - 3 * 3)
    wanted = [
        np.sqrt(variance * np.linalg.inv(with_intercept(x).T @ with_intercept(x)).diagonal())
        for x, _ in arrays.values()
    ]
    assert found.names == ("x1", "x2", INTERCEPT)
    torch.testing.assert_close(found.values, models)
    torch.testing.assert_close(found.errors, torch.tensor(np.stack(wanted)))
    assert found.noise == pytest.approx(variance**0.5)
    assert found.distance < 1e-6
    assert not found.remark


@pytest.mark.parametrize("scale", ["pooled", "client"])
def test_coefficients_predict_from_raw_features(scale):
    federation, arrays = build_regression([12, 30, 7], scale)
    graph = fl.Graph.ring(federation.clients)
    result = fl.fit(fl.FedU(graph, strength=0.1), federation, fl.models.linear(), rounds=3, dtype="float64")
    found = compute_coefficients(federation, result.objective, result.algorithm, result.models)
    for client, (name, (x, _)) in enumerate(arrays.items()):
        predicted = result.predict(name, x).flatten()
        torch.testing.assert_close(torch.tensor(with_intercept(x)) @ found.values[client], predicted)


def test_two_classes_have_the_errors_of_the_fisher_information():
    x = rng.normal(size=(80, 2))
    y = (rng.random(80) < 1 / (1 + np.exp(-x @ [1.0, -2.0] - 0.5))).astype(int)
    federation = fl.Federation.from_arrays({"a": (x, y)}, test_share=0, scale="none", labels=["no", "yes"])
    design, w = with_intercept(x), np.zeros(3)
    for _ in range(30):  # Newton's method for the log odds
        p = 1 / (1 + np.exp(-design @ w))
        information = design.T @ (design * (p * (1 - p))[:, None])
        w += np.linalg.solve(information, design.T @ (y - p))
    weight, bias = np.stack([-w[:2] / 2, w[:2] / 2]), np.array([-w[2] / 2, w[2] / 2])
    models = torch.tensor(np.concatenate([weight.ravel(), bias]))[None]
    found = compute_coefficients(federation, size_model(federation), fl.Local(), models)
    torch.testing.assert_close(found.values[0], torch.tensor(w))
    errors = torch.tensor(np.sqrt(np.linalg.inv(information).diagonal()))
    torch.testing.assert_close(found.errors[0], errors, rtol=1e-6, atol=0)
    assert found.noise is None


def test_three_classes_are_compared_with_their_mean():
    x, y = rng.normal(size=(60, 1)), np.arange(60) % 3
    federation = fl.Federation.from_arrays({"a": (x, y)}, test_share=0, scale="none", labels=["u", "v", "w"])
    models = torch.tensor(rng.normal(size=(1, 6)))
    found = compute_coefficients(federation, size_model(federation), fl.Local(), models)
    assert found.names[:2] == ("u: x1", f"u: {INTERCEPT}")
    slopes = models[0, :3]
    torch.testing.assert_close(found.values[0, ::2], slopes - slopes.mean())
    assert bool((found.errors > 0).all())


def test_a_client_whose_rows_determine_no_model_has_no_error():
    federation, _ = build_regression([20, 2])
    found = compute_coefficients(
        federation, size_model(federation), fl.Local(), torch.zeros(2, 3, dtype=torch.float64)
    )
    assert bool(found.errors[0].isfinite().all())
    assert bool(found.errors[1].isnan().all())


no_test_rows = pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")
SOILS = ["clay", "loam", "sand"]


def build_frame(counts, draws, noise=1.0):
    """Return rows of clients with a number, a text and a target."""
    client = np.repeat([f"c{k:02}" for k in range(len(counts))], counts)
    soil = np.concatenate([draws.permutation(np.arange(count) % 3) for count in counts])
    depth = draws.normal(5.0, 3.0, size=len(client))
    y = 0.5 * depth + np.array([1.0, -1.0, 2.0])[soil] + noise * draws.normal(size=len(client))
    return pd.DataFrame({"client": client, "depth": depth, "soil": np.array(SOILS)[soil], "y": y})


def estimate(frame, method, models=None, scale="none", l2=0.0):
    federation = fl.Federation.from_dataframe(frame, "client", "y", test_share=0, scale=scale)
    size = federation.inputs[0] + 1
    found = torch.zeros(len(federation.clients), size) if models is None else models
    graph = fl.Graph.ring(federation.clients)
    return federation, compute_coefficients(federation, size_model(federation, l2), method(graph), found)


@no_test_rows
@pytest.mark.parametrize("scale", ["none", "pooled"])
def test_levels_of_a_text_have_the_errors_of_effects_that_add_up_to_zero(scale):
    """Least squares with sum coding, whose design has full rank, gives the same values and errors."""
    frame = build_frame([40], np.random.default_rng(3))
    soil = np.stack([frame.soil == level for level in SOILS], 1).astype(float)
    design = np.column_stack([frame.depth, soil[:, :2] - soil[:, 2:], np.ones(40)])
    wanted, residual = np.linalg.lstsq(design, frame.y, rcond=None)[:2]
    spread = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, -1, -1, 0], [0, 0, 0, 1]])
    covariance = residual / 36 * spread @ np.linalg.inv(design.T @ design) @ spread.T
    federation = fl.Federation.from_dataframe(frame, "client", "y", test_share=0, scale=scale)
    placed = federation.to_device(torch.device("cpu"), torch.float64, as_bytes=False).train
    rows, targets = with_intercept(placed.client(0)[0].numpy()), placed.client(0)[1]
    # Any minimiser: the sum of the levels, minus the constant, moves it and nothing else.
    fit = np.linalg.lstsq(rows, targets.numpy().ravel(), rcond=None)[0]
    found = estimate(frame, lambda _: fl.Local(), torch.tensor(fit)[None], scale)[1]
    assert found.names == ("depth", "soil=clay", "soil=loam", "soil=sand", INTERCEPT)
    torch.testing.assert_close(found.values[0], torch.tensor(spread @ wanted), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.covariance[0], torch.tensor(covariance), rtol=1e-4, atol=1e-6)
    assert not found.undetermined
    assert not found.explain_gaps()
    x = torch.tensor([[5.0, 0.0, 1.0, 0.0], [5.0, 0.0, 0.0, 0.0]])
    errors = found.prediction_errors(torch.zeros(2, dtype=torch.int64), x)
    row = np.array([5.0, 0.0, 1.0, 1.0])
    about = row @ np.linalg.inv(design.T @ design) @ row
    assert float(errors[0]) == pytest.approx(float(np.sqrt(residual[0] / 36 * (1 + about))), rel=1e-4)
    assert bool(errors[1].isnan())  # The row has a level that no training row has.


@no_test_rows
@pytest.mark.parametrize("scale", ["none", "pooled"])
@pytest.mark.parametrize("pull", [0.0, 0.05])
@pytest.mark.parametrize(("name", "lost"), [("fathoms", ("depth", "fathoms")), ("flat", ("flat", INTERCEPT))])
def test_a_feature_that_repeats_others_leaves_the_errors_of_the_rest(name, lost, pull, scale):
    """Errors of other coefficients and of predictions are those without this feature."""

    def method(graph):
        return fl.FedU(graph, strength=pull, lr=0.001) if pull else fl.Local()

    frame = build_frame([30, 20, 25], np.random.default_rng(4)).drop(columns="soil")
    wide = frame.assign(fathoms=frame.depth / 1.8288, flat=7.0)[["client", "depth", name, "y"]]
    _, once = estimate(frame, method, scale=scale)
    _, found = estimate(wide, method, scale=scale)
    assert found.undetermined == lost
    assert found.names == ("depth", name, INTERCEPT)
    rest = "depth" if name == "flat" else INTERCEPT
    errors, wanted = (one.errors[:, one.names.index(rest)] for one in (found, once))
    assert bool(found.errors[:, [found.names.index(one) for one in lost]].isnan().all())
    assert found.explain_gaps().startswith(f"No standard error of {', '.join(lost)}: features repeat")
    x = torch.tensor([[4.0], [9.0], [1.0]], dtype=torch.float64)
    both = torch.cat([x, x / 1.8288 if name == "fathoms" else torch.full_like(x, 7.0)], 1)
    places = torch.arange(3)
    predicted = found.prediction_errors(places, both)
    if not pull:  # The pull depends on the units of a direction.
        torch.testing.assert_close(errors, wanted, rtol=1e-4, atol=0)
        torch.testing.assert_close(predicted, once.prediction_errors(places, x), rtol=1e-4, atol=0)
    assert bool(errors.isfinite().all())
    assert bool(predicted.isfinite().all())
    both[1, 1] = 0.0  # In no training row are the features related in this way.
    assert found.prediction_errors(places, both).isnan().tolist() == [False, True, False]


@no_test_rows
def test_an_l2_term_determines_every_coefficient():
    frame = build_frame([30, 20, 25], np.random.default_rng(5))
    frame["fathoms"] = frame.depth / 1.8288
    _, found = estimate(frame, lambda _: fl.Local(), scale="pooled", l2=0.1)
    assert not found.undetermined
    assert bool(found.errors.isfinite().all())


def test_clients_without_errors_are_counted():
    federation, _ = build_regression([20, 2])
    models = torch.zeros(2, 3, dtype=torch.float64)
    found = compute_coefficients(federation, size_model(federation), fl.Local(), models)
    assert found.explain_gaps().startswith("1 of 2 clients have no standard errors: ")
    (section, *_) = build_coefficient_sections("local", found, federation, None, "seed 0")
    assert found.explain_gaps() in section.about


@no_test_rows
@pytest.mark.parametrize("scale", ["none", "pooled"])
@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0, 25.0])
def test_intervals_of_levels_cover_the_true_effects(factor, scale):
    """On a ring of 40 clients with 6 to 24 rows; effects are those around the mean of the levels."""
    draws, clients, t = np.random.default_rng(6), 40, 0.2
    laplacian = 2 * np.eye(clients) - np.roll(np.eye(clients), 1, 0) - np.roll(np.eye(clients), -1, 0)
    value, vector = np.linalg.eigh(laplacian)
    root = vector[:, 1:] / np.sqrt(value[1:])
    counts = draws.integers(6, 25, clients)
    strength = float(factor / (counts.mean() * t))
    centre = np.array([[2, -1, -1, 0], [-1, 2, -1, 0], [-1, -1, 2, 0], [1, 1, 1, 3]]) / 3
    inside = []
    for _ in range(15):
        true = root @ draws.normal(size=(clients - 1, 4)) * np.sqrt([t, t, t, 0.0]) + [1.0, -1.0, 2.0, 0.5]
        frame = build_frame(counts, draws).drop(columns="depth")
        soil = np.stack([frame.soil == level for level in SOILS], 1).astype(float)
        frame["y"] = (with_intercept(soil) * true.repeat(counts, 0)).sum(1) + draws.normal(size=len(soil))
        federation = fl.Federation.from_dataframe(frame, "client", "y", test_share=0, scale=scale)
        placed = federation.to_device(torch.device("cpu"), torch.float64, as_bytes=False).train
        H, moment = strength * np.kron(laplacian, np.eye(4)), np.zeros(4 * clients)
        for k in range(clients):
            x, y = (part.numpy() for part in placed.client(k))
            x, part = with_intercept(x), slice(4 * k, 4 * k + 4)
            H[part, part] += x.T @ x / len(x)
            moment[part] = x.T @ y.ravel() / len(x)
        models = torch.tensor(np.linalg.lstsq(H, moment, rcond=1e-10)[0].reshape(clients, 4))
        method = fl.FedU(fl.Graph.ring(federation.clients), strength=strength, lr=1e-9)
        found = compute_coefficients(federation, size_model(federation), method, models)
        difference = found.values - torch.tensor(true @ centre.T)
        inside.append((difference.abs() <= 1.96 * found.errors)[:, :3].double().mean())
    assert abs(float(torch.stack(inside).mean()) - 0.95) <= 0.03


def test_missing_errors_have_a_reason():
    federation, _ = build_regression([20, 20])
    models = torch.zeros(2, 3)
    model = size_model(federation)
    assert "FedAvg" in compute_coefficients(federation, model, fl.FedAvg(), models).remark
    star = fl.FedU(fl.Graph.star(federation.clients, server=True), strength=0.1)
    assert "server vertex" in compute_coefficients(federation, model, star, models).remark
    wide, _ = build_regression([5] * 20, features=120)
    many = compute_coefficients(wide, size_model(wide), fl.Local(), torch.zeros(20, 121))
    assert "2,420" in many.remark
    hidden = Model(fl.models.mlp((3,)).build((2,), 1), federation.loss)
    assert compute_coefficients(federation, hidden, fl.Local(), torch.zeros(2, 13)) is None


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.2345, 0.0567, "1.234 ± 0.057"),
        (-0.0184, 0.683, "-0.02 ± 0.68"),
        (-0.001, 0.4, "0.00 ± 0.40"),
        (512.3, 41.7, "512 ± 42"),
        (98765.4, 1234.5, "98765 ± 1234"),
        (1.2345, float("nan"), "1.23"),
        (1.2345, 0.0, "1.23"),
    ],
)
def test_estimates_have_the_decimals_of_their_errors(value, error, text):
    assert format_estimate(value, error) == text


# Coverage


class SmoothClients:
    """Regressions whose true models are smooth on a ring with chords: differences have variances t."""

    def __init__(self, clients, chord, fewest, most, t, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.laplacian = torch.zeros(clients, clients, dtype=torch.float64)
        for k in range(clients):
            for step in (1, chord) if chord else (1,):
                other = (k + step) % clients
                self.laplacian[[k, other], [k, other]] += 1
                self.laplacian[[k, other], [other, k]] -= 1
        value, vector = torch.linalg.eigh(self.laplacian)
        self.root = vector[:, 1:] / value[1:].sqrt()
        self.count = torch.randint(fewest, most, (clients,), generator=self.generator)
        self.t = torch.tensor(t, dtype=torch.float64)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def cover(self, strength, repeats):
        """Return the share of true parameters within 1.96 standard errors of the minimiser of J."""
        inside = []
        for _ in range(repeats):
            clients = len(self.count)
            true = self.root @ self.draw(clients - 1, 2) * self.t.sqrt() + torch.tensor([1.0, -0.5])
            xs = [torch.stack([self.draw(n), torch.ones(n).double()], 1) for n in self.count]
            ys = [x @ w + self.draw(len(x)) for x, w in zip(xs, true, strict=True)]
            information = torch.stack([x.mT @ x / len(x) for x in xs])
            moment = torch.stack([x.mT @ y / len(x) for x, y in zip(xs, ys, strict=True)])
            eye = torch.eye(2, dtype=torch.float64)
            H = strength * torch.einsum("kl,pq->kplq", self.laplacian, eye)
            H[range(clients), :, range(clients), :] += information
            W = torch.linalg.solve(H.reshape(2 * clients, -1), moment.flatten()).view(clients, 2)
            residual = sum(float((y - x @ w).square().sum()) for x, y, w in zip(xs, ys, W, strict=True))

            def estimate_noise(inverse, information=information, residual=residual):
                used = torch.einsum("kpq,kqp->", inverse, information)
                variance = residual / (self.count.sum() - used)
                return variance * information / self.count.view(-1, 1, 1)

            problem = QuadraticProblem(
                W, information, torch.zeros_like(W), self.laplacian, torch.zeros(clients).long(), strength
            )
            error = estimate_errors(problem, estimate_noise).covariance.diagonal(dim1=1, dim2=2).sqrt()
            inside.append(((W - true).abs() <= 1.96 * error).double().mean())
        return float(torch.stack(inside).mean())


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("counts", [(4, 25), (2, 6)])
def test_intervals_cover_the_true_models(factor, counts):
    """Nominal coverage is 95 %, also where the strength is not the best one and clients have few rows."""
    clients = SmoothClients(40, 0, *counts, t=(0.3, 0.05), seed=1)
    best = 1 / (float(clients.count.double().mean()) * 0.15)  # σ²/(n t), with the mean of both variances
    assert abs(clients.cover(factor * best, repeats=40) - 0.95) <= 0.03


@pytest.mark.parametrize("factor", [0.2, 1.0])
def test_intervals_cover_on_a_denser_graph(factor):
    clients = SmoothClients(40, 7, 4, 25, t=(0.3, 0.1), seed=2)
    best = 1 / (float(clients.count.double().mean()) * 0.2)
    assert abs(clients.cover(factor * best, repeats=40) - 0.95) <= 0.03


@pytest.mark.parametrize("seed", [2, 5])
def test_intervals_cover_on_a_denser_graph_with_far_too_strong_a_pull(seed):
    clients = SmoothClients(40, 7, 4, 25, t=(0.3, 0.1), seed=seed)
    best = 1 / (float(clients.count.double().mean()) * 0.2)
    assert abs(clients.cover(5 * best, repeats=40) - 0.95) <= 0.03


def test_errors_without_the_bias_are_too_small(monkeypatch):
    """The bias matters: without it the intervals cover far too little, so the tests above can fail."""
    monkeypatch.setattr(
        uncertainty, "_estimate_variances", lambda *_: fix_variances(torch.zeros(2, dtype=torch.float64))
    )
    clients = SmoothClients(40, 0, 4, 25, t=(0.3, 0.05), seed=1)
    assert clients.cover(5 / (float(clients.count.double().mean()) * 0.15), repeats=10) < 0.8


def test_the_best_strength_gives_the_posterior(monkeypatch):
    """With equal counts and η = σ²/(n t), the covariance is σ²/n · H⁻¹."""
    clients = SmoothClients(8, 0, 9, 10, t=(0.3, 0.3), seed=3)
    monkeypatch.setattr(uncertainty, "_estimate_variances", lambda *_: fix_variances(clients.t))
    information = torch.stack([x.mT @ x / len(x) for x in (clients.draw(9, 2) for _ in range(8))])
    strength = 1 / (9 * 0.3)
    problem = QuadraticProblem(
        clients.draw(8, 2),
        information,
        torch.zeros(8, 2).double(),
        clients.laplacian,
        torch.zeros(8).long(),
        strength,
    )
    found = estimate_errors(problem, lambda _: information / 9)
    (part,) = problem.split()
    torch.testing.assert_close(found.covariance, part.diagonal_blocks() / 9, rtol=1e-6, atol=0)


def test_a_large_excess_is_explained():
    """In a sentence with the number of clients, also on the page."""
    federation, _ = build_regression([9] * 5, features=1)
    values = torch.zeros(5, 2, dtype=torch.float64)
    covariance = torch.eye(2, dtype=torch.float64).expand(5, 2, 2)
    for excess, sentence in ((0.19, ""), (0.554, "the error of one that does not is about 55 % smaller.")):
        found = Coefficients(("x1", INTERCEPT), values, covariance, covariance, excess=excess)
        assert found.explain_excess().endswith(sentence)
        assert bool(found.explain_excess()) == bool(sentence)
        section = next(
            part
            for part in build_coefficient_sections("fedu", found, federation, None, "seed 0")
            if isinstance(part, IntervalSection)
        )
        assert found.explain_excess() in section.about
        assert ("too large" in section.about) == bool(sentence)
