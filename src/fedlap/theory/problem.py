"""The objective of FedU, with exact gradients and curvature over all rows, in double precision."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.algorithms import Algorithm, LaplacianMethod
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.models import Architecture, Batch, CrossEntropy, DenseNetwork, Model, Network
from fedlap.training.jobs import bind_algorithm
from fedlap.training.placement import PlacedClients
from fedlap.training.schedule import compute_sample_size

DoubleStack = Float64[Tensor, "client param"]
PerClient = Float64[Tensor, "client"]

GRADIENT_BLOCK = 8_000_000  # values of per-row gradients that are computed together (64 MB)
DIFFERENCE_STEP = 1e-5  # relative length of the step of central differences


@dataclass(frozen=True, eq=False)
class LaplacianProblem:
    """J(W) = Σ_k F_k(w_k) + (η/2) tr(WᵀLW), and the settings of FedU or dFedU that minimise it."""

    algorithm: LaplacianMethod
    model: Model
    clients: PlacedClients
    sampled: int  # S

    @staticmethod
    def of(
        algorithm: Algorithm,
        federation: Federation,
        model: Architecture,
        *,
        batch: BatchSize = 20,
        sample: float = 1.0,
    ) -> "LaplacianProblem":
        """Build the problem of a run, with its rows in double precision."""
        if not isinstance(algorithm, LaplacianMethod):
            name = type(algorithm).__name__
            raise InputError(f"theory: the algorithm is {name}; expected FedU or dFedU")
        if algorithm.coupling.graph.server:
            raise InputError(
                "theory: the graph has a server vertex, whose zero loss has no curvature; use a graph of "
                "clients only"
            )
        if algorithm.coupling.is_by_block:
            raise InputError("theory: the strength has a value per block of parameters; use one number")
        method, built_model = bind_algorithm(algorithm, federation, model)
        assert isinstance(method, LaplacianMethod)
        host = torch.device("cpu")
        resident = federation.to_device(host, torch.float64)
        rows = PlacedClients.of([resident], [0], built_model, batch, host, torch.float64)
        return LaplacianProblem(
            method, built_model, rows, compute_sample_size(method, sample, len(federation.clients))
        )

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return len(self.clients.train.count)

    @property
    def share(self) -> float:
        """τ = S/N."""
        return self.sampled / self.size

    @property
    def graph(self) -> Graph:
        """The graph that couples the models."""
        return self.algorithm.coupling.graph

    @property
    def strength(self) -> float:
        """η."""
        return self.algorithm.coupling.eta

    @property
    def coupling(self) -> float:
        """ηρ, the largest curvature of the second term."""
        return self.strength * self.graph.rho

    @cached_property
    def local_work(self) -> LocalWork:
        """R local steps or epochs."""
        return LocalWork.of(self.algorithm.local_steps, self.algorithm.local_epochs)

    @property
    def step(self) -> float:
        """μ̃ = μR."""
        return self.algorithm.lr * self.local_work.repeats

    @property
    def is_linear(self) -> bool:
        """True if scores are linear in the parameters: the loss is then convex and its curvature known."""
        return is_linear_network(self.model.network)

    @property
    def is_classifier(self) -> bool:
        """True if the loss is cross-entropy."""
        return isinstance(self.model.loss_function, CrossEntropy)

    @property
    def is_full_batch(self) -> bool:
        """True if every step uses all rows of its client."""
        batch = self.clients.batch
        return batch == "all" or batch >= int(self.clients.train.count.max())

    def initial_models(self, seed: int) -> DoubleStack:
        """Return the initial models of a run with this seed."""
        return self.model.start(seed).expand(self.size, -1).clone()

    def losses(self, W: DoubleStack) -> PerClient:
        """Return F_k(w_k) of each client, including the L2 term."""
        tally = self.clients.tally(W, self.clients.train, torch.arange(self.size))
        return tally.loss / tally.count + self.model.ridge(W)

    def objective(self, W: DoubleStack) -> float:
        """Return J(W)."""
        return float(self.losses(W).sum() + self.strength / 2 * self.graph.smoothness(W))

    def loss_gradient(self, W: DoubleStack) -> DoubleStack:
        """Return ∇F(W)."""
        gradient, unpenalized = self.model.l2 * W, replace(self.model, l2=0.0)
        for ids, batch in self._iterate_batches():
            gradient[ids] += unpenalized.gradient(W[ids], batch)
        return gradient

    def gradient(self, W: DoubleStack) -> DoubleStack:
        """Return ∇J(W) = ∇F(W) + ηLW."""
        return self.loss_gradient(W) + self.strength * self.graph.apply_laplacian(W)

    def loss_hessian_product(self, W: DoubleStack, V: DoubleStack) -> DoubleStack:
        """Return ∇²F(W) V, client by client; by central differences of gradients unless scores are linear."""
        if self.is_linear:
            product = self.model.l2 * V
            for ids, batch in self._iterate_batches():
                product[ids] += self._linear_hessian_product(W[ids], V[ids], batch)
            return product
        w_norm, v_norm = W.norm(dim=1, keepdim=True), V.norm(dim=1, keepdim=True).clamp_min(1e-300)
        step: Tensor = DIFFERENCE_STEP * (1 + w_norm) / v_norm
        forward, backward = self.loss_gradient(W + step * V), self.loss_gradient(W - step * V)
        return (forward - backward) / (2 * step)

    def hessian_product(self, W: DoubleStack, V: DoubleStack) -> DoubleStack:
        """Return ∇²J(W) V."""
        return self.loss_hessian_product(W, V) + self.strength * self.graph.apply_laplacian(V)

    def gradient_variance(self, W: DoubleStack) -> float:
        """Return Σ_k E‖∇F̃_k(w_k) − ∇F_k(w_k)‖² exactly, over all mini-batches of B of a client's n rows.

        Per client it is the variance of one row's gradient times (n − B)/(B(n − 1)).
        """
        total = 0.0
        for client, rows in enumerate(self.clients.train.count.tolist()):
            size = rows if self.clients.batch == "all" else min(self.clients.batch, rows)
            if size < rows:
                total += (rows - size) / (size * (rows - 1)) * self._row_variance(W[client], client)
        return total

    def client_rows(self, client: int) -> tuple[Float64[Tensor, "row *feature"], Tensor]:
        """Return a client's training rows: features as models see them, and labels."""
        places = self.clients.train.locate_client(client)
        index = torch.arange(places.start, places.stop).unsqueeze(0)
        x, y = self.clients.take(self.clients.train, torch.tensor([client]), index)
        return x[0], y[0]

    def client_weights(self, client: int) -> Float64[Tensor, "row"]:
        """Return the weights of a client's training rows, with mean one."""
        weight = self.clients.train.get_client_weight(client)
        if weight is None:
            return torch.ones(int(self.clients.train.count[client]), dtype=torch.float64)
        return weight

    def _row_variance(self, w: Float64[Tensor, "param"], client: int) -> float:
        """Return the mean squared distance of the rows' weighted gradients from their mean."""
        (x, y), weight = self.client_rows(client), self.client_weights(client)
        unpenalized, size = replace(self.model, l2=0.0), max(1, GRADIENT_BLOCK // self.model.size)
        squares, mean = 0.0, torch.zeros_like(w)
        for features, targets, share in zip(x.split(size), y.split(size), weight.split(size), strict=True):
            stack = w.expand(len(features), -1).contiguous()
            batch = Batch(features.unsqueeze(1), targets.unsqueeze(1), share.unsqueeze(1))
            gradients = unpenalized.gradient(stack, batch)
            squares += float(gradients.square().sum()) / len(x)
            mean += gradients.sum(0) / len(x)
        return max(0.0, squares - float(mean.square().sum()))

    def _linear_hessian_product(self, W: DoubleStack, V: DoubleStack, batch: Batch) -> DoubleStack:
        """Return ∇²F V of a linear model: its scores of V, times the loss's Hessian at W, times features."""
        probability = torch.softmax(self.model.scores(W, batch.x).mT, -2) if self.is_classifier else None

        def multiply_loss_hessian(scores: Tensor) -> Tensor:
            if probability is not None:
                scores = probability * scores
                scores = scores - probability * scores.sum(-2, keepdim=True)
            return scores * batch.weight.unsqueeze(-2)

        return self.model.network.gradient(V, batch.x, multiply_loss_hessian)

    def _iterate_batches(self) -> Iterator[tuple[Int64[Tensor, "block"], Batch]]:
        """Yield all rows in blocks with their clients' ids, weighted by 1/n_k times the row's weight."""
        ids = self.clients.sort_by_count(torch.arange(self.size))
        cohort = self.clients.build_cohort(ids)
        for batch, _ in self.clients.read_batches(self.clients.train, cohort):
            yield ids[: len(batch.x)], batch


def is_linear_network(network: Network) -> bool:
    """Return whether scores are linear in the parameters of a network."""
    return isinstance(network, DenseNetwork) and len(network.widths) == 2
