"""What FedU minimises, with exact gradients and curvature on all rows, in double precision."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.algorithms import Algorithm, DFedU, FedU
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.models import Architecture, Batch, CrossEntropy, DenseNetwork, Model
from fedlap.training.jobs import suited
from fedlap.training.placement import PlacedClients
from fedlap.training.schedule import sample_size

Stack = Float64[Tensor, "client param"]
Each = Float64[Tensor, "client"]

BLOCK = 8_000_000  # values of rows' gradients that are made together (64 MB)
NUDGE = 1e-5  # the relative length of the two steps that a curvature is measured by


@dataclass(frozen=True, eq=False)
class Problem:
    """J(W) = Σ_k F_k(w_k) + (η/2) tr(WᵀLW), and how FedU or dFedU goes about it."""

    algorithm: FedU | DFedU
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
    ) -> "Problem":
        """The problem of a run, its rows in double precision."""
        if not isinstance(algorithm, FedU | DFedU):
            name = type(algorithm).__name__
            raise InputError(f"theory: both theorems are about FedU and dFedU, and this is {name}")
        if algorithm.graph.server:
            raise InputError(
                "theory: the graph has a server vertex, whose loss of zero has no curvature; the theorems "
                "need a graph of clients alone"
            )
        method, sized = suited(algorithm, federation, model)
        assert isinstance(method, FedU | DFedU)
        host = torch.device("cpu")
        resident = federation.resident(host, torch.float64)
        rows = PlacedClients.of([resident], [0], sized, batch, host, torch.float64)
        return Problem(method, sized, rows, sample_size(method, sample, len(federation.clients)))

    @property
    def size(self) -> int:
        """N, how many clients there are."""
        return len(self.clients.train.count)

    @property
    def share(self) -> float:
        """τ = S/N."""
        return self.sampled / self.size

    @property
    def graph(self) -> Graph:
        """Whose models should be alike."""
        return self.algorithm.graph

    @property
    def strength(self) -> float:
        """η."""
        return self.algorithm.coupling.eta

    @property
    def coupling(self) -> float:
        """ηρ, the largest curvature of the second term."""
        return self.strength * self.graph.rho

    @cached_property
    def work(self) -> LocalWork:
        """R steps, or R passes."""
        return LocalWork.of(self.algorithm.local_steps, self.algorithm.local_epochs)

    @property
    def step(self) -> float:
        """μ̃ = μR."""
        return self.algorithm.lr * self.work.repeats

    @property
    def linear(self) -> bool:
        """Whether scores are linear in the parameters, so that the loss is convex and its curvature known."""
        network = self.model.network
        return isinstance(network, DenseNetwork) and len(network.widths) == 2

    @property
    def classifies(self) -> bool:
        """Whether the loss is cross-entropy."""
        return isinstance(self.model.loss_of, CrossEntropy)

    @property
    def full(self) -> bool:
        """Whether every step sees all of its client's rows."""
        batch = self.clients.batch
        return batch == "all" or batch >= int(self.clients.train.count.max())

    def start(self, seed: int) -> Stack:
        """Where a run with this seed begins."""
        return self.model.start(seed).expand(self.size, -1).clone()

    def losses(self, W: Stack) -> Each:
        """F_k(w_k) of each client, the L2 term included."""
        made = self.clients.tally(W, self.clients.train, torch.arange(self.size))
        return made.loss / made.count + self.model.ridge(W)

    def objective(self, W: Stack) -> float:
        """J(W)."""
        return float(self.losses(W).sum() + self.strength / 2 * self.graph.smoothness(W))

    def loss_gradient(self, W: Stack) -> Stack:
        """∇F(W)."""
        made, bare = self.model.l2 * W, replace(self.model, l2=0.0)
        for at, batch in self._batches():
            made[at] += bare.gradient(W[at], batch)
        return made

    def gradient(self, W: Stack) -> Stack:
        """∇J(W) = ∇F(W) + ηLW."""
        return self.loss_gradient(W) + self.strength * self.graph.laplacian_times(W)

    def loss_curvature(self, W: Stack, V: Stack) -> Stack:
        """∇²F(W) V, client by client; by differences of gradients where scores are not linear."""
        if self.linear:
            made = self.model.l2 * V
            for at, batch in self._batches():
                made[at] += self._bend(W[at], V[at], batch)
            return made
        far, long = W.norm(dim=1, keepdim=True), V.norm(dim=1, keepdim=True).clamp_min(1e-300)
        nudge: Tensor = NUDGE * (1 + far) / long
        ahead, behind = self.loss_gradient(W + nudge * V), self.loss_gradient(W - nudge * V)
        return (ahead - behind) / (2 * nudge)

    def curvature(self, W: Stack, V: Stack) -> Stack:
        """∇²J(W) V."""
        return self.loss_curvature(W, V) + self.strength * self.graph.laplacian_times(V)

    def variance(self, W: Stack) -> float:
        """Σ_k E‖∇F̃_k(w_k) − ∇F_k(w_k)‖², exactly: B of a client's n rows, each set of B equally likely.

        That is the variance of one row's gradient times (n − B)/(B(n − 1)).
        """
        total = 0.0
        for client, rows in enumerate(self.clients.train.count.tolist()):
            size = rows if self.clients.batch == "all" else min(self.clients.batch, rows)
            if size < rows:
                total += (rows - size) / (size * (rows - 1)) * self._row_variance(W[client], client)
        return total

    def rows(self, client: int) -> tuple[Float64[Tensor, "row *feature"], Tensor]:
        """A client's training rows: features as models see them, and labels."""
        places = self.clients.train.places(client)
        at = torch.arange(places.start, places.stop).unsqueeze(0)
        x, y = self.clients.take(self.clients.train, torch.tensor([client]), at)
        return x[0], y[0]

    def _row_variance(self, w: Float64[Tensor, "param"], client: int) -> float:
        """The mean squared distance of the rows' gradients from their mean."""
        x, y = self.rows(client)
        bare, most = replace(self.model, l2=0.0), max(1, BLOCK // self.model.size)
        squares, mean = 0.0, torch.zeros_like(w)
        for some, truth in zip(x.split(most), y.split(most), strict=True):
            stack = w.expand(len(some), -1).contiguous()
            ones = torch.ones(len(some), 1, dtype=w.dtype)
            each = bare.gradient(stack, Batch(some.unsqueeze(1), truth.unsqueeze(1), ones))
            squares += float(each.square().sum()) / len(x)
            mean += each.sum(0) / len(x)
        return max(0.0, squares - float(mean.square().sum()))

    def _bend(self, W: Stack, V: Stack, batch: Batch) -> Stack:
        """∇²F V of a linear model: scores along V, bent as the loss is at W, and taken back to parameters."""
        probability = torch.softmax(self.model.scores(W, batch.x).mT, -2) if self.classifies else None

        def slope(along: Tensor) -> Tensor:
            if probability is not None:
                along = probability * along
                along = along - probability * along.sum(-2, keepdim=True)
            return along * batch.weight.unsqueeze(-2)

        return self.model.network.gradient(V, batch.x, slope)

    def _batches(self) -> Iterator[tuple[Int64[Tensor, "some"], Batch]]:
        """All rows in blocks, and whose they are; weights are one over a client's rows."""
        ids = self.clients.by_count(torch.arange(self.size))
        cohort = self.clients.cohort(ids)
        for x, y, inside in self.clients.blocks(self.clients.train, cohort):
            yield ids[: len(x)], Batch(x, y, inside.double() / cohort.count[: len(x)].unsqueeze(1))
