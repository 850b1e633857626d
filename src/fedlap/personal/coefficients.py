"""Coefficients of linear models in the units of the data, with standard errors."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64, Num
from torch import Tensor

from fedlap.algorithms import ALGORITHMS, BASELINES, Algorithm, LaplacianMethod
from fedlap.data.federation import Federation
from fedlap.graph import Graph
from fedlap.graph.description import label_components
from fedlap.models import DenseNetwork, Model
from fedlap.personal import uncertainty
from fedlap.personal.directions import ROUNDING, split_directions
from fedlap.personal.smoothness import SINGULAR
from fedlap.personal.uncertainty import Blocks, ErrorEstimate, QuadraticProblem
from fedlap.summaries import summarise_fields

INTERCEPT = "intercept"
FAR_FROM_MINIMUM = 0.5  # standard errors; models that are farther away are not the minimiser of J
MIN_FREEDOM = 20  # degrees of freedom with which a variance has a standard error of about 30 %
SUPERFLUOUS = 0.2  # of standard errors; a larger excess is reported
MOST_PARAMETERS = 2_000  # of all clients together; at 2,000, errors take 14 seconds of a processor core
MAX_LISTED_COEFFICIENTS = 3  # in a sentence


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Coefficients of each client's linear model, in the units of features and target.

    names: a name per coefficient, the intercept last. With two classes, coefficients are those of the log
        odds of the second class; with more, of each class against the mean of all ("class: feature").
        Coefficients of the levels of a text column are differences from their mean.
    covariance: of the error of each client's coefficients; NaN where it is not known.
    of_forms: covariance of the same errors for sums of several coefficients, such as predictions.
    noise: standard deviation of a target around its prediction; None for classes.
    distance: the largest distance of a coefficient from the minimiser of J, in standard errors.
    excess: the part of a standard error, in the median, that is superfluous if the true models are equal; it
        counts coefficients of which the rows do not show that they differ between clients.
    remark: why there are no standard errors; empty if there are.
    undetermined: coefficients that no row determines, since features repeat each other or are constant; their
        errors are NaN. Predictions do not depend on how such features share their effect.
    blind: combinations of features and the constant 1 that are zero in all training rows of a client and of
        its connected clients, or not all levels of a text: a row in which one is not zero has no error.
    """

    names: tuple[str, ...]
    values: Float64[Tensor, "client coefficient"]
    covariance: Float64[Tensor, "client coefficient coefficient"]
    of_forms: Float64[Tensor, "client coefficient coefficient"]
    noise: float | None = None
    distance: float = math.nan
    excess: float = 0.0
    remark: str = ""
    undetermined: tuple[str, ...] = ()
    blind: Float64[Tensor, "client width combination"] | None = None

    __repr__ = summarise_fields

    @property
    def errors(self) -> Float64[Tensor, "client coefficient"]:
        """Standard error of each coefficient."""
        errors: Tensor = self.covariance.diagonal(dim1=1, dim2=2).sqrt()
        unknown = torch.tensor([name in self.undetermined for name in self.names])
        return errors.masked_fill(unknown, torch.nan)

    def explain_gaps(self) -> str:
        """Return why some standard errors are missing, in sentences; empty if none is."""
        if self.remark:
            return ""
        sentences = []
        if self.undetermined:
            names = ", ".join(self.undetermined[:MAX_LISTED_COEFFICIENTS])
            if len(self.undetermined) > MAX_LISTED_COEFFICIENTS:
                names += f", … ({len(self.undetermined)} in all)"
            sentences.append(
                f"No standard error of {names}: features repeat each other or are constant, so that the rows "
                "do not determine the coefficients one by one; remove such columns."
            )
        if missing := int(self.covariance.isnan().flatten(1).any(1).sum()):
            sentences.append(
                f"{missing} of {len(self.values)} clients have no standard errors: their rows, together with "
                "those of all clients that they are connected to, do not determine a model."
            )
        return " ".join(sentences)

    def explain_excess(self) -> str:
        """Return why standard errors may be too large, as a sentence; empty if the excess is small."""
        if not self.excess > SUPERFLUOUS:
            return ""
        return (
            f"Standard errors may be too large: the rows of {len(self.values)} clients do not show that "
            "every coefficient truly differs between clients; the error of one that does not is about "
            f"{100 * self.excess:.0f} % smaller."
        )

    def prediction_errors(
        self, clients: Int64[Tensor, "row"], x: Num[Tensor, "row feature"]
    ) -> Float64[Tensor, "row"]:
        """Return the standard error of a new target around its prediction, row by row.

        It includes the error of the coefficients and the noise of the target. It is NaN for a row unlike all
        training rows in a combination of features, such as one with an unknown level.
        """
        design = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
        variance = torch.einsum("np,npq,nq->n", design, self.of_forms[clients], design)
        errors: Tensor = (variance + (self.noise or 0.0) ** 2).sqrt()
        if self.blind is None:
            return errors
        blind = self.blind[clients]
        terms = design.unsqueeze(2) * blind
        is_new = terms.sum(1).abs() > ROUNDING * terms.abs().sum(1)
        return errors.masked_fill(is_new.any(1), torch.nan)


def format_estimate(value: float, error: float) -> str:
    """Format a coefficient to the decimals of its standard error, which has two significant digits."""
    if not error > 0 or not math.isfinite(error):
        return f"{value:.3g}"
    decimals = min(max(1 - math.floor(math.log10(error)), 0), 12)
    return f"{value:z.{decimals}f} ± {error:.{decimals}f}"


def compute_coefficients(
    federation: Federation, objective: Model, algorithm: Algorithm, models: Tensor
) -> Coefficients | None:
    """Compute the coefficients of each client's model and their errors; None unless the model is linear."""
    network = objective.network
    if not isinstance(network, DenseNetwork) or len(network.widths) != 2:
        return None
    rows = LinearRows(federation, objective, models)
    clients, size = rows.W.shape
    remark = _explain_missing_errors(algorithm, clients * size, federation.roster.is_weighted)
    if remark:
        return rows.convert(uncertainty.leave_unknown(clients, size), remark=remark)
    rows.remove_undetermined()
    return rows.estimate(algorithm)


def _explain_missing_errors(algorithm: Algorithm, parameters: int, is_weighted: bool) -> str:
    """Return why the errors of a method's models are not known; an empty text if they are."""
    if is_weighted:
        return "standard errors are not known for weighted rows; train without weights"
    if parameters > MOST_PARAMETERS:
        return (
            f"standard errors are computed for at most {MOST_PARAMETERS:,} parameters of all clients "
            f"together; there are {parameters:,}"
        )
    is_local = isinstance(algorithm, ALGORITHMS[BASELINES[0]])
    if not is_local and not isinstance(algorithm, LaplacianMethod):
        return f"standard errors of {type(algorithm).__name__} are not known; use a method with a fixed graph"
    if isinstance(algorithm, LaplacianMethod) and algorithm.coupling.graph.server:
        return "standard errors are not known for a graph with a server vertex; use a graph of clients only"
    if isinstance(algorithm, LaplacianMethod) and algorithm.coupling.is_by_block:
        return "standard errors are not known for strengths by block; use one strength"
    return ""


class LinearRows:
    """Rows of linear models, and the parameters that these rows determine.

    Adding a constant to the scores of all classes changes no prediction. With classes, parameters are
    therefore the coordinates of the scores in an orthonormal basis of the contrasts between classes. In the
    same way, one-hot features, which add up to 1, have parameters in an orthonormal basis of the directions
    in which rows differ: along the other directions, neither rows nor neighbours move any model.
    """

    def __init__(self, federation: Federation, objective: Model, models: Tensor) -> None:
        """Place the rows in double precision, and split the flat parameters into weight and bias."""
        self.federation, self.l2 = federation, objective.l2
        self.placed = federation.to_device(torch.device("cpu"), torch.float64, as_bytes=False)
        features, outputs = math.prod(federation.inputs), federation.outputs
        flat = models.detach().cpu().double()
        weight = flat[:, : outputs * features].view(-1, outputs, features)
        full = torch.cat(
            [weight, flat[:, outputs * features :].unsqueeze(2)], 2
        )  # (client, output, feature + 1)
        self.basis = _build_basis(outputs) if federation.labels is not None else torch.eye(outputs).double()
        self.width = features + 1
        self.full = torch.einsum("oc,kof->kcf", self.basis, full)
        self.W = self.full.flatten(1)
        self.directions = torch.eye(self.width, dtype=torch.float64)
        self.empty = self.directions[:, :0]  # the directions in which no rows differ
        self.count = self.placed.train.count

    def remove_undetermined(self) -> None:
        """Restrict parameters to the directions in which rows differ; an L2 term determines all others."""
        if not self.l2:
            self.directions, self.empty = split_directions(self._sum_products())
            self.W = (self.full @ self.directions).flatten(1)

    @property
    def rank(self) -> int:
        """Number of parameters of a client and an output."""
        return self.directions.shape[1]

    def _sum_products(self) -> Float64[Tensor, "width width"]:
        """Return XᵀX of all training rows, with a column of ones."""
        products = torch.zeros(self.width, self.width, dtype=torch.float64)
        for _, x, _ in self._iterate_clients():
            products += x.mT @ x
        return products

    def _iterate_clients(self) -> Iterator[tuple[int, Float64[Tensor, "row width"], Tensor]]:
        """Yield the number, the features with a column of ones, and the targets of each client."""
        train = self.placed.train
        for client, (first, number) in enumerate(
            zip(train.first.tolist(), train.count.tolist(), strict=True)
        ):
            x = train.store[train.row[first : first + number]].double().flatten(1)
            yield client, torch.cat([x, x.new_ones(number, 1)], 1), train.y[first : first + number]

    def estimate(self, algorithm: Algorithm) -> Coefficients:
        """Return the coefficients with their errors."""
        information, gradient, residuals = self._sum_rows()
        graph = algorithm.coupling.graph if isinstance(algorithm, LaplacianMethod) else None
        strength = algorithm.coupling.eta if isinstance(algorithm, LaplacianMethod) else 0.0
        laplacian, component = _build_laplacian(graph, len(self.W))
        ridge = self.l2 * torch.eye(self.W.shape[1], dtype=torch.float64)
        slope = gradient + self.l2 * self.W + strength * laplacian @ self.W
        problem = QuadraticProblem(self.W, information + ridge, slope, laplacian, component, strength)
        variance = torch.ones(self.basis.shape[1], dtype=torch.float64)  # of the noise, relative to ∇²F

        def estimate_noise(inverse: Blocks) -> Blocks:
            if self.federation.labels is None:
                variance.copy_(self._estimate_noise_variance(information, gradient, residuals, inverse))
            by_parameter = variance.repeat_interleave(self.rank)
            return by_parameter.unsqueeze(1) * information / self.count.view(-1, 1, 1)

        found = uncertainty.estimate_errors(problem, estimate_noise)
        error = found.covariance.diagonal(dim1=1, dim2=2).sqrt()
        known = error > 0
        distance = float((found.newton_step.abs() / error)[known].max()) if bool(known.any()) else math.nan
        noise = None
        if self.federation.labels is None:
            noise = float((variance * self._target_unit.square()).mean().sqrt())
        return self.convert(found, noise, distance)

    def _sum_rows(self) -> tuple[Blocks, Float64[Tensor, "client param"], Float64[Tensor, "output"]]:
        """Return ∇²F_k and ∇F_k without the L2 term, and the squared residuals of each output."""
        size, outputs = self.W.shape[1], self.basis.shape[1]
        information = torch.zeros(len(self.W), size, size, dtype=torch.float64)
        gradient, residuals = torch.zeros_like(self.W), torch.zeros(outputs, dtype=torch.float64)
        for client, design, y in self._iterate_clients():
            x, number = design @ self.directions, len(design)
            scores = x @ self.W[client].view(outputs, -1).mT
            if self.federation.labels is None:
                difference = scores - y.double().view(number, outputs)
                curvature = torch.eye(outputs, dtype=torch.float64).expand(number, -1, -1)
                residuals += difference.square().sum(0)
            else:
                p = torch.softmax(scores @ self.basis.mT, 1)
                difference = (p - torch.nn.functional.one_hot(y, p.shape[1])) @ self.basis
                curvature = (
                    self.basis.mT @ (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) @ self.basis
                )
            information[client] = (
                torch.einsum("nab,ni,nj->aibj", curvature, x, x).reshape(size, size) / number
            )
            gradient[client] = (difference.mT @ x).flatten() / number
        return information, gradient, residuals

    def _estimate_noise_variance(
        self,
        information: Blocks,
        gradient: Float64[Tensor, "client param"],
        residuals: Float64[Tensor, "output"],
        inverse: Blocks,
    ) -> Float64[Tensor, "output"]:
        """Return the variance of the targets around their predictions, with the degrees of freedom left.

        Residuals are those of each client's least squares, which no pull of the neighbours enlarges. If they
        leave too few degrees of freedom, residuals are those of the trained models.
        """
        design, outputs = information[:, : self.rank, : self.rank], len(residuals)
        determined = torch.linalg.matrix_rank(design, rtol=SINGULAR, hermitian=True).sum()
        left = float(self.count.sum() - determined)
        if left >= MIN_FREEDOM:
            slope = gradient.view(-1, outputs, self.rank)
            solved = slope @ torch.linalg.pinv(design, rtol=SINGULAR, hermitian=True)
            excess = (self.count.view(-1, 1) * (slope * solved).sum(2)).sum(0)
            variance: Tensor = (residuals - excess).clamp_min(0) / left
            return variance
        used = torch.einsum("kpq,kqp->k", inverse, information).nan_to_num(self.rank).sum() / outputs
        left = float(self.count.sum()) - float(used)
        return residuals / left if left > 0 else torch.full_like(residuals, torch.nan)

    @property
    def _target_unit(self) -> Float64[Tensor, "output"]:
        """The unit of each model output, in the unit of the data: the deviation of standardised targets."""
        scale = self.federation.target_scale
        return torch.ones(self.basis.shape[0], dtype=torch.float64) if scale is None else scale.deviation

    def convert(
        self,
        found: ErrorEstimate,
        noise: float | None = None,
        distance: float = math.nan,
        remark: str = "",
    ) -> Coefficients:
        """Return coefficients in the units of the data."""
        outputs = torch.eye(self.basis.shape[0], dtype=torch.float64) @ self.basis
        labels = self.federation.labels
        if labels is not None and len(labels) == 2:
            outputs = torch.tensor([[-1.0, 1.0]], dtype=torch.float64) @ self.basis
        features = self._build_feature_maps()
        if labels is None:
            outputs = outputs * self._target_unit.unsqueeze(1)
        centred = self._centre_levels() @ features
        values = torch.einsum("oc,kfg,kcg->kof", outputs, centred.expand(len(self.W), -1, -1), self.full)
        if self.federation.target_scale is not None:
            values[:, :, -1] += self.federation.target_scale.mean
        maps = torch.einsum("oc,kfg->kofcg", outputs, centred @ self.directions)
        maps = maps.reshape(len(maps), outputs.shape[0] * self.width, -1)
        lost = (centred @ self.empty).norm(dim=2) > ROUNDING * centred.norm(dim=2)
        names = self._name_coefficients(outputs.shape[0])
        missed = lost.any(0).repeat(outputs.shape[0]).tolist()
        return Coefficients(
            names,
            values.flatten(1),
            maps @ found.covariance @ maps.mT,
            maps @ found.of_forms @ maps.mT,
            noise,
            distance,
            found.excess,
            remark,
            tuple(name for name, is_lost in zip(names, missed, strict=True) if is_lost),
            self._list_blind(features, found.null),
        )

    def _list_blind(
        self,
        features: Float64[Tensor, "constants width width"],
        null: Float64[Tensor, "client param direction"],
    ) -> Float64[Tensor, "client width combination"]:
        """Return the combinations of raw features that neither the client's rows nor its neighbours have."""
        clients = len(null)
        undetermined = (
            null.view(clients, self.basis.shape[1], self.rank, null.shape[2]).permute(0, 2, 1, 3).flatten(2)
        )
        empty = torch.cat([self.empty.expand(clients, -1, -1), self.directions @ undetermined], 2)
        return torch.cat([features @ empty, self._list_levels().expand(clients, -1, -1)], 2)

    def _list_levels(self) -> Float64[Tensor, "width text"]:
        """Return the sum of the levels of each text column minus 1, as combinations of features."""
        encoding = self.federation.encoding
        columns, first = [], 0
        for column in encoding.columns if encoding is not None else ():
            number = len(column.features)
            if column.levels:
                sums = torch.zeros(self.width, dtype=torch.float64)
                sums[first : first + number], sums[-1] = 1, -1
                columns.append(sums)
            first += number
        return torch.stack(columns, 1) if columns else torch.zeros(self.width, 0, dtype=torch.float64)

    def _centre_levels(self) -> Float64[Tensor, "width width"]:
        """Return the matrix that moves the mean of the levels of each text to the intercept."""
        levels = self._list_levels()
        means = levels.clamp_min(0) / levels.clamp_min(0).sum(0)
        return torch.eye(self.width, dtype=torch.float64) - levels @ means.mT

    def _build_feature_maps(self) -> Float64[Tensor, "constants width width"]:
        """Return matrices from coefficients of scaled features to coefficients of raw ones."""
        scale = self.federation.scale
        features = self.width - 1
        shift, factor = (c.double().reshape(len(c), -1) for c in (scale.shift, scale.factor))
        shift, factor = shift.expand(-1, features), factor.expand(-1, features)
        maps = torch.diag_embed(torch.cat([factor, factor.new_ones(len(factor), 1)], 1))
        maps[:, -1, :-1] = -shift * factor
        return maps

    def _name_coefficients(self, outputs: int) -> tuple[str, ...]:
        federation = self.federation
        features = federation.features or tuple(f"x{number}" for number in range(1, self.width))
        names = (*features, INTERCEPT)
        if outputs == 1:
            return names
        groups = federation.labels or tuple(f"target {number}" for number in range(1, outputs + 1))
        return tuple(f"{group}: {name}" for group in groups for name in names)


def _build_basis(classes: int) -> Float64[Tensor, "class contrast"]:
    """Return an orthonormal basis of the vectors whose entries sum to zero."""
    centre = torch.eye(classes, dtype=torch.float64) - 1 / classes
    basis: Tensor = torch.linalg.eigh(centre).eigenvectors
    return basis[:, 1:]


def _build_laplacian(graph: Graph | None, clients: int) -> tuple[Tensor, Tensor]:
    """Return the Laplacian as a matrix, and the component of each client; without a graph, no edges."""
    if graph is None:
        return torch.zeros(clients, clients, dtype=torch.float64), torch.arange(clients)
    weights = torch.from_numpy(graph.weights.matrix().toarray()).double()
    return torch.diag(weights.sum(1)) - weights, torch.from_numpy(label_components(graph.weights)).long()
