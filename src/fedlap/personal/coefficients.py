"""Coefficients of linear models in the units of the data, with standard errors."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64, Num
from torch import Tensor

from fedlap.algorithms import ALGORITHMS, BASELINES, Algorithm, LaplacianMethod
from fedlap.data.federation import Federation
from fedlap.graph import Graph
from fedlap.graph.description import label_components
from fedlap.models import DenseNetwork, Model
from fedlap.personal.smoothness import SINGULAR
from fedlap.personal.uncertainty import Blocks, QuadraticProblem, estimate_errors
from fedlap.summaries import summarise_fields

INTERCEPT = "intercept"
FAR_FROM_MINIMUM = 0.5  # standard errors; models that are farther away are not the minimiser of J
MIN_FREEDOM = 20  # degrees of freedom with which a variance has a standard error of about 30 %
MOST_PARAMETERS = 2_000  # of all clients together; their Hessian is decomposed (about five seconds at 2,000)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Coefficients of each client's linear model, in the units of features and target.

    names: a name per coefficient, the intercept last. With two classes, coefficients are those of the log
        odds of the second class; with more, of each class against the mean of all ("class: feature").
    covariance: of the error of each client's coefficients; NaN where it is not known.
    noise: standard deviation of a target around its prediction; None for classes.
    distance: the largest distance of a coefficient from the minimiser of J, in standard errors.
    remark: why there are no standard errors; empty if there are.
    """

    names: tuple[str, ...]
    values: Float64[Tensor, "client coefficient"]
    covariance: Float64[Tensor, "client coefficient coefficient"]
    noise: float | None = None
    distance: float = math.nan
    remark: str = ""

    __repr__ = summarise_fields

    @property
    def errors(self) -> Float64[Tensor, "client coefficient"]:
        """Standard error of each coefficient."""
        return self.covariance.diagonal(dim1=1, dim2=2).sqrt()

    def prediction_errors(
        self, clients: Int64[Tensor, "row"], x: Num[Tensor, "row feature"]
    ) -> Float64[Tensor, "row"]:
        """Return the standard error of a new target around its prediction, row by row.

        It includes the error of the coefficients and the noise of the target.
        """
        design = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
        variance = torch.einsum("np,npq,nq->n", design, self.covariance[clients], design)
        return (variance + (self.noise or 0.0) ** 2).sqrt()


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
    size = rows.W.shape[1]
    remark = _explain_missing_errors(algorithm, len(rows.W) * size, federation.roster.is_weighted)
    if remark:
        unknown = torch.full((len(rows.W), size, size), torch.nan, dtype=torch.float64)
        return rows.convert(unknown, remark=remark)
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
    return ""


class LinearRows:
    """Rows of linear models, and the parameters that these rows determine.

    Adding a constant to the scores of all classes changes no prediction. With classes, parameters are
    therefore the coordinates of the scores in an orthonormal basis of the contrasts between classes.
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
        self.W = torch.einsum("oc,kof->kcf", self.basis, full).flatten(1)
        self.count = self.placed.train.count

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
            by_parameter = variance.repeat_interleave(self.width)
            return by_parameter.unsqueeze(1) * information / self.count.view(-1, 1, 1)

        found = estimate_errors(problem, estimate_noise)
        error = found.covariance.diagonal(dim1=1, dim2=2).sqrt()
        known = error > 0
        distance = float((found.newton_step.abs() / error)[known].max()) if bool(known.any()) else math.nan
        noise = None
        if self.federation.labels is None:
            noise = float((variance * self._target_unit.square()).mean().sqrt())
        return self.convert(found.covariance, noise, distance)

    def _sum_rows(self) -> tuple[Blocks, Float64[Tensor, "client param"], Float64[Tensor, "output"]]:
        """Return ∇²F_k and ∇F_k without the L2 term, and the squared residuals of each output."""
        size, outputs = self.W.shape[1], self.basis.shape[1]
        information = torch.zeros(len(self.W), size, size, dtype=torch.float64)
        gradient, residuals = torch.zeros_like(self.W), torch.zeros(outputs, dtype=torch.float64)
        train = self.placed.train
        for client, (first, number) in enumerate(
            zip(train.first.tolist(), train.count.tolist(), strict=True)
        ):
            x = train.store[train.row[first : first + number]].double().flatten(1)
            x = torch.cat([x, x.new_ones(number, 1)], 1)
            y, scores = train.y[first : first + number], x @ self.W[client].view(outputs, -1).mT
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
        design, outputs = information[:, : self.width, : self.width], len(residuals)
        determined = torch.linalg.matrix_rank(design, rtol=SINGULAR, hermitian=True).sum()
        left = float(self.count.sum() - determined)
        if left >= MIN_FREEDOM:
            slope = gradient.view(-1, outputs, self.width)
            solved = slope @ torch.linalg.pinv(design, rtol=SINGULAR, hermitian=True)
            excess = (self.count.view(-1, 1) * (slope * solved).sum(2)).sum(0)
            variance: Tensor = (residuals - excess).clamp_min(0) / left
            return variance
        used = torch.einsum("kpq,kqp->k", inverse, information).nan_to_num(self.width).sum() / outputs
        left = float(self.count.sum()) - float(used)
        return residuals / left if left > 0 else torch.full_like(residuals, torch.nan)

    @property
    def _target_unit(self) -> Float64[Tensor, "output"]:
        """The unit of each model output, in the unit of the data: the deviation of standardised targets."""
        scale = self.federation.target_scale
        return torch.ones(self.basis.shape[0], dtype=torch.float64) if scale is None else scale.deviation

    def convert(
        self, covariance: Blocks, noise: float | None = None, distance: float = math.nan, remark: str = ""
    ) -> Coefficients:
        """Return coefficients in the units of the data."""
        outputs = torch.eye(self.basis.shape[0], dtype=torch.float64) @ self.basis
        labels = self.federation.labels
        if labels is not None and len(labels) == 2:
            outputs = torch.tensor([[-1.0, 1.0]], dtype=torch.float64) @ self.basis
        features = self._build_feature_maps()
        if labels is None:
            outputs = outputs * self._target_unit.unsqueeze(1)
        maps = torch.einsum("oc,kfg->kofcg", outputs, features)
        maps = maps.reshape(len(maps), outputs.shape[0] * self.width, -1)
        values = torch.einsum("kpq,kq->kp", maps.expand(len(self.W), -1, -1), self.W)
        if self.federation.target_scale is not None:
            values[:, self.width - 1 :: self.width] += self.federation.target_scale.mean
        return Coefficients(
            self._name_coefficients(outputs.shape[0]),
            values,
            maps @ covariance @ maps.mT,
            noise,
            distance,
            remark,
        )

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
